// Step 11: other scores in place of the dot product.

import { identity, randomMatrix } from "./chance.js";
import { withCell } from "./edits.js";
import { make, numberField } from "./elements.js";
import { makeFormula } from "./formula.js";
import { makeHeadMatrix } from "./head_matrix.js";
import { makeMatrix } from "./matrix.js";
import { format } from "./number_text.js";
import { attend, scaleOf } from "./numbers.js";
import { change, state } from "./state.js";
import { wholeFormula } from "./whole_formula.js";

const KINDS = ["dot", "additive", "bilinear", "cosine"];
const HIDDEN = 4; // widest hidden layer of an additive score that the page begins with

const en = {
  title: "Other scores",
  text: "A score says how well a key fits a query, and it need not be a dot product. Choose another: the whole lesson is computed with it, and only the step from Q and K to the scores is different.",
  question:
    "Choose a row whose largest score has no equal (爱 in the worked example), and make its query longer with the slider below the table. Which of the four rows of weights does not change at all, and why?",
  answer:
    "The cosine’s: it depends on the angle between query and key, not on their lengths. Dot and bilinear scores grow in proportion, so the softmax closes on the largest. Additive scores change but stay bounded, since tanh lies between −1 and 1.",
  kinds: "Score",
  dot: "dot product",
  additive: "additive",
  bilinear: "bilinear",
  cosine: "cosine",
  "used-dot":
    "The Transformer’s score (Vaswani et al. 2017): no parameters of its own, and one matrix product for all pairs. The scaled score is s / √d, because the variance of s grows with d.",
  "used-additive":
    "The first score of attention in translation (Bahdanau, Cho and Bengio 2015): a small network with one hidden layer compares the decoder’s state, the query, with each word of the source, a key.",
  "used-bilinear":
    "“General” in Luong, Pham and Manning 2015, for translation by recurrent networks: W learns which parts of the query belong to which parts of the key. With W = identity it is the dot product without √d.",
  "used-cosine":
    "Swin Transformer V2 (Liu et al. 2022), for images: in large models dot products let a few pixels dominate; a cosine lies between −1 and 1. The scaled score is s / τ; τ is learned there, from 0.1 and at least 0.01.",
  isOther: "The whole lesson is now computed with the {name} score.",
  back: "Back to the dot product",
  parameters: "Its parameters, which you can change",
  tau: "τ",
  refuseTau: "A number from 0.01 to 10, please.",
  tauIsScale: "The scale of step 4 is 1/τ = {scale}.",
  between: "From queries and keys to scores",
  queries: "Q",
  keys: "K",
  "queries-additive": "Q W_a^⊤",
  "keys-additive": "K U_a^⊤",
  "queries-bilinear": "Q W",
  "queries-cosine": "Q, each row of length 1",
  "keys-cosine": "K, each row of length 1",
  scores: "scores S",
  compare: "The row {row} by all four scores",
  compareHelp:
    "Each with its own parameters and its usual scale (the chosen one with the scale of the lesson), the same mask and the same temperature. As in the steps before: the score s, times the scale, divided by T, plus the mask is the logit z, and the softmax makes the weight a of it.",
  score: "score s",
  logit: "logit z",
  weight: "weight a",
  chosen: "{name} (chosen)",
  key: "key",
  longer: "Query of this table times {factor}",
  hidden: "−∞",
};

const zh = {
  title: "其他打分方式",
  text: "分数衡量一个键与一个查询有多合适，不一定非得是点积。换一种试试：整堂课都会用它重新计算，不同的只有从 Q、K 到分数的那一步。",
  question: "选一行最大的分数没有并列的（例子里的“爱”），用表格下面的滑块把查询拉长。四组权重中，哪一组完全不变？为什么？",
  answer:
    "余弦的那组：它只看查询和键之间的夹角，与长度无关。点积和双线性的分数按比例增大，softmax 便集中到最大的分数上。加性的分数会变，但有界，因为 tanh 在 −1 和 1 之间。",
  kinds: "打分方式",
  dot: "点积",
  additive: "加性",
  bilinear: "双线性",
  cosine: "余弦",
  "used-dot":
    "Transformer 用的打分方式（Vaswani 等，2017）：自己没有参数，一次矩阵乘法就得到所有的分数。缩放后的分数是 s / √d，因为 s 的方差随 d 增大。",
  "used-additive":
    "翻译中最早的注意力打分方式（Bahdanau、Cho 和 Bengio，2015）：一个只有一层隐藏层的小网络，把解码器的状态（查询）与源句的每个词（键）作比较。",
  "used-bilinear":
    "Luong、Pham 和 Manning（2015）称之为 general，用于循环网络的翻译：W 学习查询的哪些分量与键的哪些分量对应。W 取单位矩阵时，就是不除以 √d 的点积。",
  "used-cosine":
    "用于图像的 Swin Transformer V2（Liu 等，2022）：模型很大时，点积会让少数像素占尽权重；余弦总在 −1 和 1 之间。缩放后的分数是 s / τ；那里的 τ 是学出来的，从 0.1 开始，不小于 0.01。",
  isOther: "现在整堂课都用{name}打分计算。",
  back: "回到点积",
  parameters: "它的参数，可以改动",
  tau: "τ",
  refuseTau: "请输入 0.01 到 10 的数。",
  tauIsScale: "第 4 步里的缩放系数就是 1/τ = {scale}。",
  between: "从查询和键到分数",
  queries: "Q",
  keys: "K",
  "queries-additive": "Q W_a^⊤",
  "keys-additive": "K U_a^⊤",
  "queries-bilinear": "Q W",
  "queries-cosine": "Q，每行长度为 1",
  "keys-cosine": "K，每行长度为 1",
  scores: "分数 S",
  compare: "“{row}”这一行，用四种方式打分",
  compareHelp: "各用各的参数和惯用的缩放（当前所选的那种用本课的缩放），掩码和温度相同。和前面各步一样：分数 s 乘以缩放系数，除以 T，加上掩码，就是 logit z；softmax 再把它变成权重 a。",
  score: "分数 s",
  logit: "logit z",
  weight: "权重 a",
  chosen: "{name}（当前）",
  key: "键",
  longer: "表中的查询乘以 {factor}",
  hidden: "−∞",
};

const FORMULAS = {
  dot: [["s", "score"], " = ", ["q", "query"], " · ", ["k", "key"]],
  additive: [
    ["s", "score"],
    " = ",
    ["v_a", "w"],
    " · tanh(",
    ["W_a", "w"],
    " ",
    ["q", "query"],
    " + ",
    ["U_a", "w"],
    " ",
    ["k", "key"],
    ")",
  ],
  bilinear: [["s", "score"], " = ", ["q", "query"], " · ", ["W", "w"], " · ", ["k", "key"]],
  cosine: [
    ["s", "score"],
    " = ",
    ["q", "query"],
    " · ",
    ["k", "key"],
    " / (|",
    ["q", "query"],
    "| |",
    ["k", "key"],
    "|)",
  ],
};
// The parameters that a score begins with, for queries and keys of this width.
const beginning = (kind, width) => {
  if (kind === "bilinear") return { kind, weight: identity(width) };
  if (kind !== "additive") return { kind };
  const hidden = Math.min(HIDDEN, width);
  const [query, key] = [randomMatrix(hidden, width, 4, 0.5), randomMatrix(hidden, width, 5, 0.5)];
  return { kind, query, key, vector: randomMatrix(1, hidden, 6)[0] };
};
const fits = (score, width) =>
  score !== undefined &&
  (score.kind !== "additive" || score.query[0].length === width) &&
  (score.kind !== "bilinear" || score.weight.length === width);

const remembered = {}; // the parameters of scores that were chosen before, while the page is open
const scoreOf = (kind, width) => {
  if (state.score.kind === kind) return state.score;
  return fits(remembered[kind], width) ? remembered[kind] : beginning(kind, width);
};
const choose = (kind, width) => {
  remembered[state.score.kind] = state.score;
  change({ score: scoreOf(kind, width), scale: "default" }); // each score has a usual scale of its own
};

// The parameters of the chosen score as matrices to change.
const makeParameters = (speak) => {
  const title = make("h3");
  const matrices = ["query", "key", "vector", "weight"].map((part) => ({ part, matrix: makeMatrix(`score-${part}`) }));
  const titles = { query: "W_a", key: "U_a", vector: "v_a", weight: "W" };
  const tau = numberField({
    name: "tau",
    least: 0.01,
    most: () => 10,
    step: "any",
    accept: (value) => change({ scale: 1 / value }),
  });
  const tauText = make("span", { className: "hint" });
  const tauLine = make("div", { className: "controls" }, tau.element, tauText);
  const edit = (part) => (row, column, value) => {
    const { score } = state;
    const next =
      part === "vector" ? withCell([score.vector], 0, column, value)[0] : withCell(score[part], row, column, value);
    change({ score: { ...score, [part]: next } });
  };
  return {
    element: make(
      "div",
      {},
      title,
      tauLine,
      make("div", { className: "matrices" }, ...matrices.map(({ matrix }) => matrix.element)),
    ),
    draw({ scale }) {
      const { score } = state;
      title.textContent = speak("parameters");
      title.hidden = score.kind === "dot";
      tauLine.hidden = score.kind !== "cosine";
      if (score.kind === "cosine") {
        tau.show(Number((1 / scale).toPrecision(12)), { label: speak("tau"), refusal: speak("refuseTau") });
        tauText.textContent = speak("tauIsScale", { scale: format(scale) });
      }
      for (const { part, matrix } of matrices) {
        matrix.element.hidden = !(part in score);
        if (matrix.element.hidden) continue;
        const values = part === "vector" ? [score.vector] : score[part];
        matrix.draw(values, { title: titles[part], edit: edit(part), paint: "signed", symbol: "w" });
      }
    },
  };
};

// Queries and keys as the score compares them, and the scores.
const makeBetween = (speak) => {
  const title = make("h3");
  const box = make("div", { className: "matrices" });
  const sides = ["queries", "score-queries", "keys", "score-keys"].map((name) => [name, makeHeadMatrix(name)]);
  const matrixOf = Object.fromEntries(sides);
  const scores = makeHeadMatrix("scores");
  box.append(...sides.map(([, { element }]) => element), scores.element);
  const products = (a, b) => a.map((value, at) => [String(at + 1), value, b[at]]);
  const termsOf = ({ kind, vector }, a, b) =>
    kind === "additive"
      ? vector.map((factor, at) => [String(at + 1), factor, Math.tanh(a[at] + b[at])])
      : products(a, b);
  return {
    element: make("div", {}, title, box),
    draw(numbers) {
      const [at, { score }] = [state.head, state];
      const head = numbers.heads[at];
      const [rows, columns] = [state.tokens, state.keyTokens ?? state.tokens];
      const left = head.projectedQueries ?? head.queries;
      const right = head.projectedKeys ?? head.keys;
      const leftName = head.projectedQueries ? "score-queries" : "queries";
      const rightName = head.projectedKeys ? "score-keys" : "keys";
      for (const [name, { element }] of sides) element.hidden = name !== leftName && name !== rightName;
      title.textContent = speak("between");
      const row = { chosen: state.row, onChoose: (row) => change({ row }, { undoable: false }) };
      matrixOf[leftName].draw(at, left, {
        ...row,
        rows,
        title: speak(head.projectedQueries ? `queries-${score.kind}` : "queries"),
        paint: "signed",
        symbol: "query",
      });
      matrixOf[rightName].draw(at, right, {
        rows: columns,
        title: speak(head.projectedKeys ? `keys-${score.kind}` : "keys"),
        paint: "signed",
        symbol: "key",
      });
      scores.draw(at, head.scores, {
        ...row,
        rows,
        columns,
        title: speak("scores"),
        paint: "signed",
        symbol: "score",
        parts: (query, key) => ({
          terms: termsOf(score, left[query], right[key]),
          from: [
            [`${leftName}-${at}`, "row", query],
            [`${rightName}-${at}`, "row", key],
          ],
        }),
      });
    },
  };
};

// The chosen row by all four scores, with its query made longer or shorter.
const makeComparison = (speak) => {
  const title = make("h3");
  const help = make("p", { className: "hint" });
  const caption = make("caption");
  const head = make("thead");
  const table = make("table", { className: "numbers scores" }, caption, head);
  const box = make("div", { className: "scroll comparison", tabIndex: 0, role: "region" }, table);
  const text = document.createTextNode("");
  const slider = make("input", { type: "range", name: "query-factor", min: "1", max: "10", step: "0.5" });
  slider.addEventListener("input", () =>
    change({ otherScores: { factor: Number(slider.value) } }, { undoable: false }),
  );
  const rowsOf = (numbers) => {
    const { queries, keys, values, visible } = numbers.heads[state.head];
    const factor = state.otherScores.factor;
    const query = [queries[state.row].map((value) => value * factor)];
    return KINDS.map((kind) => {
      const score = scoreOf(kind, queries[0].length);
      const scale = kind === state.score.kind ? numbers.scale : scaleOf("default", score, query[0].length);
      const options = { score, scale, temperature: state.temperature, visible: [visible[state.row]] };
      const { scores, logits, weights } = attend(query, keys, values, options);
      return { kind, scores: scores[0], logits: logits[0], weights: weights[0], visible: visible[state.row] };
    });
  };
  const linesOf = ({ scores, logits, weights, visible }) => [
    ["score", scores.map(format)],
    ["logit", logits.map((value, key) => (visible[key] ? format(value) : speak("hidden")))],
    ["weight", weights.map(format)],
  ];
  // The lines of a score, under its name.
  const groupOf = (row, columns) => {
    const { kind } = row;
    const name = kind === state.score.kind ? speak("chosen", { name: speak(kind) }) : speak(kind);
    return make(
      "tbody",
      { className: kind === state.score.kind ? "chosen" : "" },
      make("tr", {}, make("th", { scope: "rowgroup", colSpan: columns + 1, textContent: name })),
      ...linesOf(row).map(([part, texts]) =>
        make(
          "tr",
          { className: part },
          make("th", { scope: "row", textContent: speak(part) }),
          ...texts.map((textContent) => make("td", { textContent })),
        ),
      ),
    );
  };
  return {
    element: make("div", {}, title, help, box, make("label", { className: "field" }, text, slider)),
    draw(numbers) {
      const names = state.keyTokens ?? state.tokens;
      const { factor } = state.otherScores;
      const rows = rowsOf(numbers);
      box.values = rows;
      title.textContent = speak("compare", { row: state.tokens[state.row] });
      help.textContent = speak("compareHelp");
      caption.textContent = title.textContent;
      box.setAttribute("aria-label", title.textContent);
      const header = (textContent) => make("th", { scope: "col", textContent });
      head.replaceChildren(make("tr", {}, ...[speak("key"), ...names].map(header)));
      table.replaceChildren(caption, head, ...rows.map((row) => groupOf(row, names.length)));
      text.data = speak("longer", { factor });
      slider.value = String(factor);
      slider.setAttribute("aria-valuetext", text.data);
    },
  };
};

export const otherScoresStep = {
  id: "other_scores",
  formula: () => [
    ["s_{ij}", "score"],
    " = f(",
    ["q_i", "query"],
    ", ",
    ["k_j", "key"],
    ")",
    wholeFormula(["queries", "keys"]),
  ],
  words: { en, zh },
  build(body, speak) {
    const legend = make("legend");
    const width = () => (state.heads === null ? state.x[0].length : state.heads[0].query[0].length);
    const radios = KINDS.map((kind) => {
      const input = make("input", { type: "radio", name: "score-kind", value: kind });
      const text = document.createTextNode("");
      input.addEventListener("change", () => choose(kind, width()));
      return { kind, input, text, element: make("label", {}, input, text) };
    });
    const kinds = make("fieldset", { className: "choices" }, legend, ...radios.map(({ element }) => element));
    const formula = make("div");
    const used = make("p", { className: "score-used" });
    const notice = make("span");
    const back = make("button", { type: "button", name: "back-to-dot" });
    back.addEventListener("click", () => {
      choose("dot", width());
      radios[0].input.focus(); // the button that was pressed is gone
    });
    const warning = make("p", { className: "warning" }, notice, " ", back);
    const parameters = makeParameters(speak);
    const between = makeBetween(speak);
    const comparison = makeComparison(speak);
    body.append(kinds, formula, used, warning, parameters.element, between.element, comparison.element);
    return {
      draw(numbers) {
        const { kind } = state.score;
        legend.textContent = speak("kinds");
        for (const { kind: name, input, text } of radios) {
          text.data = speak(name);
          input.checked = name === kind;
        }
        formula.replaceChildren(makeFormula(FORMULAS[kind]));
        used.textContent = speak(`used-${kind}`);
        warning.hidden = kind === "dot";
        notice.textContent = speak("isOther", { name: speak(kind) });
        back.textContent = speak("back");
        parameters.draw(numbers);
        between.draw(numbers);
        comparison.draw(numbers);
      },
    };
  },
};
