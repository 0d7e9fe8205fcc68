// Step 2: words become vectors, with their positions or without.

import { editField } from "./edits.js";
import { make } from "./elements.js";
import { makeMatrix } from "./matrix.js";
import { fitMask } from "./masks.js";
import { sinusoidal } from "./numbers.js";
import { makeWaves } from "./waves.js";
import { makeWordList } from "./word_list.js";
import { change, state } from "./state.js";

const en = {
  title: "Words become vectors",
  text: "A model computes with numbers, so each token becomes a row of numbers: X has a row a token. Attention itself does not know which row comes first. If the order is to matter, a position p is added to the numbers e of each word.",
  question: "Exchange two words. What happens to the results further down? And with positions added?",
  answer: "Without positions and without a mask, each word takes its row of results with it and every number stays the same: “dog bites man” and “man bites dog” are one bag of words. With positions added, the same words at other places are other vectors, so the numbers change.",
  words: "Words (rows of X)",
  others: "Words of the other side (rows that are looked at)",
  add: "Add a word",
  remove: "Remove “{token}”",
  rename: "Word {number}",
  most: "{count} words are the most.",
  exchange: "Exchange",
  and: "and",
  doExchange: "Exchange them",
  exchangedSame: "“{one}” and “{other}” have changed places. Only the order of the rows is different: each word has the same query, key, value and output as before.",
  exchangedMask: "“{one}” and “{other}” have changed places. The mask goes by places, so which words they see may be different now.",
  exchangedPositions: "“{one}” and “{other}” have changed places, and each now has the position of the other: their vectors, and all that is computed from them, are different.",
  positions: "Positions",
  none: "none",
  sinusoidal: "sines and cosines",
  xWords: "X, the words alone",
  x: "X",
  xSum: "X with positions = words + positions",
  table: "Positions P",
  keyX: "X of the other side",
  valueX: "X of the values",
  waves: "The columns of P as waves: each point is the number of one position. The first pair of columns turns fastest.",
  wavesName: "Waves of the columns {columns} over the positions 0 to {last}; the numbers are in the table of positions.",
  given: "Q, K and V themselves are given here: the rows below are theirs.",
  columnName: "column {number}",
};
const zh = {
  title: "词变成向量",
  text: "模型只会算数，所以每个词元先变成一行数：X 的一行就是一个词元。注意力本身不知道哪一行在前。如果要让顺序起作用，就给每个词的数 e 加上它的位置编码 p。",
  question: "交换两个词，后面的结果会怎样？加上位置之后再交换呢？",
  answer: "没有位置也没有掩码时，每个词带着自己那一行结果一起换位，数一个都不变：“狗咬人”和“人咬狗”成了同一袋词。加上位置以后，同样的词在别的位置就是别的向量，数就变了。",
  words: "词（X 的行）",
  others: "另一边的词（被关注的行）",
  add: "加一个词",
  remove: "去掉“{token}”",
  rename: "第 {number} 个词",
  most: "最多 {count} 个词。",
  exchange: "交换",
  and: "和",
  doExchange: "交换",
  exchangedSame: "“{one}”和“{other}”换了位置。变的只是行的次序：每个词的查询、键、值和输出都和原来一样。",
  exchangedMask: "“{one}”和“{other}”换了位置。掩码是按位置定的，所以它们看得见的词可能变了。",
  exchangedPositions: "“{one}”和“{other}”换了位置，也就互换了位置编码：它们的向量，以及由此算出的一切，都变了。",
  positions: "位置",
  none: "不加",
  sinusoidal: "正弦和余弦",
  xWords: "X，只有词",
  x: "X",
  xSum: "带位置的 X = 词 + 位置",
  table: "位置 P",
  keyX: "另一边的 X",
  valueX: "值一边的 X",
  waves: "P 的各列画成波：每个点是一个位置上的数。最前面的一对列变化最快。",
  wavesName: "第 {columns} 列的波，位置 0 到 {last}；数值见位置表。",
  given: "这里直接给出了 Q、K、V：下面就是它们的各行。",
  columnName: "第 {number} 列",
};

const SIDES = ["x", "keyX", "valueX"];
const GIVEN = {
  x: { title: "Q", symbol: "query" },
  keyX: { title: "K", symbol: "key" },
  valueX: { title: "V", symbol: "value" },
};
const MOST_ROWS = 32;
// Names and matrices that have the same rows.
const OTHER_SIDE = { names: "keyTokens", matrices: ["keyX", "valueX"] };
const OWN_SIDE = { names: "tokens", matrices: ["x"] };

// Whole numbers from 0 to 2 for a new word, others for each row.
const newRow = (row, width) => Array.from({ length: width }, (_, column) => (row + 2 * column + 1) % 3);

// Change the rows of a side by a function of lists; the mask follows.
const changeRows = ({ names, matrices }, edit) => {
  const fields = { [names]: edit(state[names], "name") };
  for (const name of matrices) if (state[name]) fields[name] = edit(state[name], name);
  const next = { ...state, ...fields };
  change({ ...fields, mask: fitMask(state.mask, next.x.length, (next.keyX ?? next.x).length) });
};

const listOf = (side, said) => ({
  rename: (row, text) =>
    change({ [side.names]: state[side.names].map((old, at) => (at === row ? text : old)) }),
  remove: (row) => changeRows(side, (list) => list.filter((_, at) => at !== row)),
  add: (text) =>
    changeRows(side, (list, name) => [...list, name === "name" ? text : newRow(list.length, list[0].length)]),
  exchange(one, other) {
    const [first, second] = [state[side.names][one], state[side.names][other]];
    const order = state[side.names].map((_, at) => (at === one ? other : at === other ? one : at));
    changeRows(side, (list) => order.map((at) => list[at]));
    if (state.positions !== "none") said("exchangedPositions", first, second);
    else said(state.mask.kind === "none" ? "exchangedSame" : "exchangedMask", first, second);
  },
});

export const vectorsStep = {
  id: "vectors",
  formula: [["x_i", "x"], " = e_i + p_i,  p_{i,2c} = sin(i / 10000^{2c/D}),  p_{i,2c+1} = cos(i / 10000^{2c/D})"],
  words: { en, zh },
  build(body, speak) {
    let said = null;
    const tell = (name, one, other) => {
      said = { name, one, other };
      sentence.textContent = speak(name, { one, other });
    };
    const given = make("p", { className: "hint" });
    const lists = [OWN_SIDE, OTHER_SIDE].map((side) => makeWordList(listOf(side, tell)));
    const sentence = make("p", { className: "exchanged", role: "status" });
    const legend = make("span", {});
    const radios = ["none", "sinusoidal"].map((value) => {
      const input = make("input", { type: "radio", name: "positions", value });
      const text = make("span", {});
      input.addEventListener("change", () => change({ positions: value }));
      return { value, input, text, label: make("label", {}, input, " ", text) };
    });
    const positions = make("div", { className: "field-row", role: "radiogroup" }, legend, ...radios.map(({ label }) => label));
    const raw = Object.fromEntries(SIDES.map((side) => [side, makeMatrix(`${side}-words`)]));
    const sums = Object.fromEntries(SIDES.map((side) => [side, makeMatrix(side)]));
    const table = makeMatrix("positions");
    const plus = make("span", { className: "operator", textContent: "+", "aria-hidden": "true" });
    const equals = make("span", { className: "operator", textContent: "=", "aria-hidden": "true" });
    const line = make("div", { className: "matrices" }, raw.x.element, plus, table.element, equals, sums.x.element);
    const others = make("div", { className: "matrices" });
    for (const side of ["keyX", "valueX"]) others.append(raw[side].element, sums[side].element);
    const waves = makeWaves();
    const caption = make("p", { className: "hint" });
    body.append(given, ...lists.map(({ element }) => element), sentence, positions, line, waves.element, caption, others);

    const drawSide = (numbers, side) => {
      const there = state[side] !== null;
      const isAdded = state.positions !== "none";
      const rows = side === "x" ? state.tokens : state.keyTokens;
      const chosen = side === "x" ? { chosen: state.row, onChoose: (row) => change({ row }, { undoable: false }) } : {};
      raw[side].element.hidden = !there || !isAdded;
      sums[side].element.hidden = !there;
      if (!there) return;
      const edit = editField(side);
      const given = state.heads === null ? GIVEN[side] : null; // then the rows are queries, keys and values
      const title = given?.title ?? speak(side);
      const symbol = given?.symbol ?? "x";
      if (!isAdded) {
        sums[side].draw(state[side], { title, rows, symbol, edit, ...chosen });
        return;
      }
      const added = side === "x" ? numbers.positions : sinusoidal(state[side].length, state[side][0].length);
      raw[side].draw(state[side], { title: side === "x" && !given ? speak("xWords") : title, rows, symbol, edit, ...chosen });
      sums[side].draw(numbers[side], {
        title: side === "x" && !given ? speak("xSum") : `${title} + P`,
        rows,
        symbol,
        parts: (row, column) => ({
          terms: [["", state[side][row][column]], ["", added[row][column]]],
          from: [
            [`${side}-words`, "cell", row, column],
            ["positions", "cell", row, column],
          ],
        }),
      });
    };

    return {
      draw(numbers) {
        given.textContent = state.heads === null ? speak("given") : "";
        given.hidden = state.heads !== null;
        lists[0].draw(state.tokens, { title: speak("words"), most: MOST_ROWS, speak });
        lists[1].element.hidden = state.keyTokens === null;
        if (state.keyTokens) lists[1].draw(state.keyTokens, { title: speak("others"), most: MOST_ROWS, speak });
        sentence.textContent = said ? speak(said.name, said) : "";
        legend.textContent = speak("positions");
        positions.setAttribute("aria-label", speak("positions"));
        for (const { value, input, text } of radios) {
          text.textContent = speak(value);
          input.checked = state.positions === value;
        }
        const isAdded = state.positions !== "none";
        for (const element of [table.element, plus, equals, waves.element, caption]) element.hidden = !isAdded;
        for (const side of SIDES) drawSide(numbers, side);
        if (!isAdded) return;
        table.draw(numbers.positions, {
          title: speak("table"),
          rows: state.tokens,
          symbol: "w",
          paint: "signed",
          parts: (row, column) => {
            const pair = column - (column % 2);
            const angle = `${column % 2 ? "cos" : "sin"}(${row} / 10000^(${pair}/${state.x[0].length}))`;
            return { text: `= ${angle} ≈ ${Number(numbers.positions[row][column].toPrecision(4))}`.replaceAll("-", "−") };
          },
        });
        caption.textContent = speak("waves");
        waves.draw(state.x.length, state.x[0].length, speak);
      },
    };
  },
};
