// Step 1: why attention. A sentence through one vector of fixed size, and with attention: measured, by length.

import { draw, grouped, make } from "./elements.js";
import { withIndices } from "./formula.js";
import { mean } from "./numbers.js";
import { recorded } from "./recorded.js";
import { change, state } from "./state.js";

const en = {
  title: "Why: a sentence in one vector",
  text: "A network without attention has to pack a sentence into one vector before it may say a word. Here two networks were trained to say a sentence again. With attention, the network can look back at every word of the sentence before each word that it says.",
  question: "Move the length from 5 to 20 words. Which words does the one vector still have, and what stays right even about the wrong ones?",
  answer: "The first words come back; farther on, more and more are wrong. But nearly every wrong word is of the right kind: an adjective stands where an adjective belongs. The network has learned the grammar of all sentences and lost what was in this one. Its vector has as many numbers for 50 words as for 5.",
  length: "Length of the sentence: {length} words",
  sentence: "Sentence",
  sentenceName: "sentence {number}",
  fixed: "Through one vector",
  attention: "With attention",
  fixedPicture: "{length} words go into one vector of {vector} numbers; all {length} words have to come out of it. {right} of {length} are right.",
  attentionPicture: "Each of the {length} words that are said looks back at a word of the sentence: a line leads to the one with the largest weight. {right} of {length} are right.",
  vector: "one vector, {vector} numbers",
  read: "sentence",
  fixedSaid: "said again, through one vector",
  attentionSaid: "said again, with attention",
  right: "{right} of {length} words are right.",
  readout: "At {length} words, {fixed} of all words come back right through one vector, {attention} with attention.",
  words: "What was said, word by word: {name}",
  legend: "A word that is wrong has ✗ and a dashed edge, and the right word above it.",
  wordRight: "{word}, right",
  wordWrong: "{said}, wrong: it should be {word}",
  wordMissing: "nothing was said: it should be {word}",
  wordExtra: "{said}, one too many",
  table: "Share of words that come back right, and of whole sentences, by length",
  symbols: "h_i is the state of the network at word i of the sentence, c the one vector, {weight} how much of h_i is mixed into c_t, the vector from which word t is said.",
  straight: " The lines are nearly vertical because the task is to say the same words in the same order: the word to say stands at the same place. In a translation they need not be.",
  columnLength: "words",
  columnWords: "words right",
  columnWhole: "whole sentences right",
  range: "{mean} ({least}–{most})",
  sizes: "Means of {runs} training runs that differ in their random numbers, and below it those of the worst and of the best run; {sentences} sentences of each length that were never trained on. A guess that follows the grammar is right for {guess}% of the words.",
  setting: "Measured, not drawn: two recurrent networks (GRU: they read word by word and carry a state from one word to the next) with nearly the same number of parameters ({fixedParameters} without attention, {attentionParameters} with it) and states of {fixedState} and {attentionState} numbers. The one vector has {vector} numbers: two states, one from reading forwards and one from reading backwards. Trained for {steps} steps with {batch} sentences each, of 1 to {longest} words, all lengths equally often. The sentences are adjective, noun, verb, adjective, noun, over and over, each word drawn from 16.",
  limits: "Words drawn at random cannot be compressed. A natural sentence can, so one vector loses less of it; but also in real translation, it falls behind as sentences grow (Cho et al. 2014; Bahdanau et al. 2015).",
};

const zh = {
  title: "为什么：一句话挤进一个向量",
  text: "没有注意力的网络，必须先把整句话压进一个向量，才能开口说第一个词。这里训练了两个网络，任务是把一句话原样复述一遍。有了注意力，每说一个词，都可以回头看整句话。",
  question: "把长度从 5 个词调到 20 个词。那一个向量还留得住哪些词？说错的词，又有什么仍是对的？",
  answer: "开头几个词还说得对，越往后错得越多。不过说错的词几乎全都词性正确：该是形容词的地方仍是形容词。网络学会了所有句子共有的语法，丢掉的是这一句的内容。无论 5 个词还是 50 个词，那个向量里的数始终一样多。",
  length: "句子长度：{length} 个词",
  sentence: "句子",
  sentenceName: "第 {number} 句",
  fixed: "只经过一个向量",
  attention: "有注意力",
  fixedPicture: "{length} 个词进入一个有 {vector} 个数的向量，{length} 个词都要从它里面出来。说对了 {right} 个。",
  attentionPicture: "每说一个词，都回头看原句：连线指向权重最大的那个词。{length} 个词说对了 {right} 个。",
  vector: "一个向量，{vector} 个数",
  read: "原句",
  fixedSaid: "复述：只经过一个向量",
  attentionSaid: "复述：有注意力",
  right: "{length} 个词说对了 {right} 个。",
  readout: "{length} 个词时，只经过一个向量，说对的词占 {fixed}；有注意力时占 {attention}。",
  words: "逐词对照：{name}",
  legend: "说错的词带 ✗ 和虚线框，上方是原来的词。",
  wordRight: "{word}，对",
  wordWrong: "{said}，错：应为{word}",
  wordMissing: "没有说出来：应为{word}",
  wordExtra: "{said}，多出来的",
  table: "各种长度下，说对的词和整句全对的句子各占多少",
  symbols: "h_i 是网络读到第 i 个词时的状态，c 是那一个向量，{weight} 表示 h_i 以多大的份额混入 c_t，第 t 个词就由 c_t 说出来。",
  straight: "连线几乎都是竖直的，因为任务是按原来的次序复述：要说的词就在同样的位置。翻译时不一定如此。",
  columnLength: "词数",
  columnWords: "说对的词",
  columnWhole: "整句全对",
  range: "{mean}（{least}–{most}）",
  sizes: "数字是 {runs} 次训练（随机数各不相同）的平均，下方小字是最差和最好的一次；每种长度用 {sentences} 个没有训练过的句子来测。只懂语法、靠猜的话，能对 {guess}%。",
  setting: "这些是实测，不是示意：两个循环网络（GRU，逐词阅读，把一个状态从前一个词传到后一个词），参数个数相近（没有注意力的 {fixedParameters} 个，有注意力的 {attentionParameters} 个），状态分别有 {fixedState} 和 {attentionState} 个数。那一个向量有 {vector} 个数：由顺读和倒读得到的两个状态拼成。训练 {steps} 步，每步 {batch} 句，长度 1 到 {longest} 个词，各种长度一样多。句子按“形容词、名词、动词、形容词、名词”循环，每个词从 16 个词里随机抽取。",
  limits: "随机抽取的词没法压缩。自然的句子可以压缩，一个向量丢得会少一些；但在真实的翻译里，句子一长，它同样会落后（Cho 等，2014；Bahdanau 等，2015）。",
};

const MODELS = ["fixed", "attention"];
const WIDTH = 320; // of a picture, in its own units
const HEIGHT = 150;

const percent = (share) => String(Number((100 * share).toFixed(1)));
const isRight = (example, model, place) => example[model][place] === example.source[place];
const countRight = (example, model) => example.source.filter((_, place) => isRight(example, model, place)).length;

// Where the words of a row stand.
const spots = (count) => {
  const gap = Math.min(26, WIDTH / count);
  const left = (WIDTH - gap * (count - 1)) / 2;
  return { size: Math.min(14, gap * 0.72), at: Array.from({ length: count }, (_, place) => left + gap * place) };
};

const square = (x, y, size, className) =>
  draw("rect", { x: x - size / 2, y: y - size / 2, width: size, height: size, rx: size / 5, class: className });
const cross = (x, y, size) =>
  draw("path", { d: `M${x - size / 2} ${y - size / 2}l${size} ${size}m0 ${-size}l${-size} ${size}`, class: "wrong-mark" });

const drawPicture = (svg, example, model, speak, vector) => {
  const top = 34;
  const bottom = HEIGHT - 34;
  const middle = HEIGHT / 2;
  const { at, size } = spots(example.length);
  const parts = [];
  const text = (x, y, words) => draw("text", { x, y, "text-anchor": "middle" }, words);
  const line = (from, y1, to, y2) => draw("path", { d: `M${from} ${y1}L${to} ${y2}`, class: "why-line" });
  if (model === "fixed") {
    parts.push(...at.map((x) => line(x, top, WIDTH / 2, middle)), ...at.map((x) => line(WIDTH / 2, middle, x, bottom)));
    parts.push(draw("rect", { x: 80, y: middle - 12, width: WIDTH - 160, height: 24, rx: 6, class: "why-vector" }));
    parts.push(text(WIDTH / 2, middle + 4, speak("vector", { vector })));
  } else {
    example.strongest.slice(0, example.length).forEach((place, said) => {
      if (at[place] !== undefined) parts.push(line(at[place], top, at[said], bottom));
    });
  }
  at.forEach((x, place) => {
    parts.push(square(x, top, size, "why-read"));
    const right = isRight(example, model, place);
    parts.push(square(x, bottom, size, right ? "why-right" : size < 8 ? "why-wrong bare" : "why-wrong"));
    if (!right) parts.push(cross(x, bottom, size));
  });
  parts.push(text(WIDTH / 2, 16, speak("read")), text(WIDTH / 2, HEIGHT - 8, speak(`${model}Said`)));
  svg.replaceChildren(...parts);
  const filled = { length: example.length, vector, right: countRight(example, model) };
  svg.setAttribute("aria-label", speak(`${model}Picture`, filled));
};

// Each word that was said under the word that was read.
const wordItem = (speak, vocabulary, source, said) => {
  const word = source === undefined ? "" : vocabulary[source];
  const output = said === undefined ? "" : (vocabulary[said] ?? "—");
  const right = source === said;
  const kind = right ? "wordRight" : source === undefined ? "wordExtra" : said === undefined ? "wordMissing" : "wordWrong";
  const read = make("span", { className: "word-read", "aria-hidden": "true" }, right ? "" : word);
  const shown = make("span", { className: "word-said", "aria-hidden": "true" }, right ? output : `✗ ${output || "–"}`);
  const spoken = make("span", { className: "spoken" }, speak(kind, { word, said: output }));
  return make("li", { className: right ? "right" : "wrong" }, read, shown, spoken);
};

const bar = (share) => {
  const filled = make("span");
  filled.style.width = `${100 * share}%`;
  return make("span", { className: "bar", "aria-hidden": "true" }, filled);
};
const meanOf = (values) => `${percent(mean(values))}%`;
const endsOf = (values) => ({ least: percent(Math.min(...values)), most: percent(Math.max(...values)) });
const rangeOf = (values) => `${endsOf(values).least}–${endsOf(values).most}`;
const shareCell = (values) => {
  const cell = make("td", {}, meanOf(values), " ", make("span", { className: "range", textContent: rangeOf(values) }), bar(mean(values)));
  cell.dataset.mean = String(mean(values));
  return cell;
};

const fillTable = (table, speak, data, chosen) => {
  const scoped = (scope, text, more = {}) => make("th", { scope, textContent: text, ...more });
  const groups = make("tr", {}, scoped("col", speak("columnLength"), { rowSpan: 2 }));
  for (const name of ["columnWords", "columnWhole"]) groups.append(scoped("colgroup", speak(name), { colSpan: 2 }));
  const models = make("tr", {}, ...[...MODELS, ...MODELS].map((model) => scoped("col", speak(model))));
  const rows = data.settings.lengths.map((length) => {
    const cells = ["words_right", "sentences_right"].flatMap((what) =>
      MODELS.map((model) => shareCell(data.models[model][what][length])),
    );
    const row = make("tr", { className: length === chosen ? "chosen" : "" }, scoped("row", String(length)), ...cells);
    row.dataset.length = String(length);
    return row;
  });
  const caption = make("caption", { textContent: speak("table") });
  table.replaceChildren(caption, make("thead", {}, groups, models), make("tbody", {}, ...rows));
};

export const whyStep = {
  id: "why",
  formula: [
    ["h_1", "x"],
    " … ",
    ["h_n", "x"],
    " → ",
    ["c", "value"],
    "  ;  ",
    ["c_t", "value"],
    " = Σ_i ",
    ["A_{ti}", "weight"],
    " ",
    ["h_i", "x"],
  ],
  words: { en, zh },
  depends: () => [state.why, state.language],
  build(body, speak) {
    const data = recorded.bottleneck;
    const { lengths } = data.settings;
    const label = make("span", { id: "why-length-label" });
    const slider = make("input", { type: "range", min: "0", max: String(lengths.length - 1), step: "1", id: "why-length" });
    slider.setAttribute("aria-labelledby", label.id);
    const select = make("select", { id: "why-example" });
    const selectLabel = make("label", { htmlFor: select.id });
    const controls = make("div", { className: "controls" }, label, slider, selectLabel, select);
    const live = make("p", { className: "hint", "aria-live": "polite", id: "why-readout" });
    const parts = Object.fromEntries(
      MODELS.map((model) => {
        const heading = make("h3");
        const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "why-picture" });
        const right = make("p", { className: "hint" });
        const list = make("ol", { className: "said-words" });
        const element = make("div", { className: "why-part" }, heading, svg, right, list);
        element.dataset.model = model;
        return [model, { element, heading, svg, right, list }];
      }),
    );
    const both = make("div", { className: "why-parts" }, ...MODELS.map((model) => parts[model].element));
    const legend = make("p", { className: "hint" });
    const table = make("table", { className: "numbers why-table" });
    const box = make("div", { className: "scroll", tabIndex: 0, role: "region" }, table);
    const notes = ["sizes", "setting", "limits"].map((name) => [name, make("p", { className: "hint" })]);
    const symbols = make("p", { className: "hint" });
    body.append(symbols, controls, both, legend, live, box, ...notes.map(([, note]) => note));

    const choose = (fields) => change({ why: { ...state.why, ...fields } }, { undoable: false });
    slider.addEventListener("input", () => choose({ length: lengths[slider.valueAsNumber] }));
    select.addEventListener("change", () => choose({ example: Number(select.value) }));

    let drawn = "";
    return {
      draw() {
        const key = JSON.stringify([state.language, state.why]); // nothing else is shown here
        if (key === drawn) return;
        drawn = key;
        const length = lengths.includes(state.why.length) ? state.why.length : lengths[lengths.length - 1];
        const examples = data.examples.filter((example) => example.length === length);
        const number = Math.max(0, Math.min(Math.trunc(state.why.example), examples.length - 1));
        const example = examples[number];
        const vocabulary = data.vocabulary[state.language];
        const vector = data.models.fixed.vector;
        label.textContent = speak("length", { length });
        slider.value = String(lengths.indexOf(length));
        slider.setAttribute("aria-valuetext", speak("length", { length }));
        selectLabel.textContent = speak("sentence");
        const options = examples.map((_, index) =>
          make("option", { value: String(index), textContent: speak("sentenceName", { number: index + 1 }) }),
        );
        select.replaceChildren(...options);
        select.value = String(number);
        for (const model of MODELS) {
          const { heading, svg, right, list } = parts[model];
          heading.textContent = speak(model);
          drawPicture(svg, example, model, speak, vector);
          right.textContent = speak("right", { right: countRight(example, model), length });
          list.setAttribute("aria-label", speak("words", { name: speak(model) }));
          const places = Math.max(example.source.length, example[model].length);
          const items = Array.from({ length: places }, (_, place) =>
            wordItem(speak, vocabulary, example.source[place], example[model][place]),
          );
          list.replaceChildren(...items);
        }
        symbols.replaceChildren(...withIndices(speak("symbols", { weight: "A_{ti}" })));
        legend.textContent = `${speak("legend")}${speak("straight")}`;
        const [fixed, attention] = MODELS.map((model) => {
          const shares = data.models[model].words_right[length];
          return speak("range", { mean: meanOf(shares), ...endsOf(shares) });
        });
        live.textContent = speak("readout", { length, fixed, attention });
        fillTable(table, speak, data, length);
        box.setAttribute("aria-label", speak("table"));
        const { settings, models } = data;
        const filled = {
          runs: settings.seeds.length,
          sentences: settings.sentences,
          guess: (100 * data.guess).toFixed(0),
          fixedParameters: grouped(models.fixed.parameters),
          attentionParameters: grouped(models.attention.parameters),
          fixedState: models.fixed.state,
          attentionState: models.attention.state,
          vector,
          steps: grouped(settings.steps),
          batch: settings.batch,
          longest: settings.longest,
        };
        for (const [name, note] of notes) note.textContent = speak(name, filled);
      },
    };
  },
};
