// Step 2: words become vectors, with their positions or without.

import { editField } from "./edits.js";
import { make } from "./elements.js";
import { LIMITS } from "./limits.js";
import { makeMatrix } from "./matrix.js";
import { fitMask } from "./masks.js";
import { sinusoidal } from "./numbers.js";
import { makeWaves } from "./waves.js";
import { makeWordList } from "./word_list.js";
import { change, state } from "./state.js";

const en = {
  title: "Words become vectors",
  text: "A model computes with numbers. A sentence is cut into tokens (here each word is one), and each token becomes a row of numbers: these rows are X. Attention itself does not know which row comes first. If the order is to matter, the numbers P_i of its position are added to the numbers e_i of each token.",
  question: "Exchange two words. What happens to the output O? And with positions added?",
  answer: "Without positions and without a mask, each word takes its row of results with it and every number stays the same: “dog bites man” and “man bites dog” are one bag of words. With positions added, the same words at other places are other vectors, so the numbers change.",
  words: "Words (rows of X)",
  others: "Words of the other side (rows that are looked at)",
  output: "Output O (step 7)",
  newWord: "word {number}",
  added: "“{one}” is a new row. Its numbers ({other}) stand there only to be changed, as does its name.",
  emptyName: "A word needs a name: it stays “{one}”.",
  sameName: "There is a “{one}” already, so this one is “{other}”.",
  rowOfPosition: "i = {number}, {token}",
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
  xSum: "X with positions = words + P",
  table: "Positions P",
  keyX: "X of the other side",
  valueX: "X of the values",
  waves: "The columns of P as waves: each point is the number of one position. The first pair of columns turns fastest. As in the formula, positions i are counted from 0: the first word has i = 0. The formula counts columns from 0 too, so column 1 of the table has 2c = 0.",
  wavesName: "Waves of the columns {columns} over the positions 0 to {last}; the numbers are in the table of positions.",
  given: "Q, K and V themselves are given here: the rows below are theirs.",
  columnName: "column {number}",
};
const zh = {
  title: "词变成向量",
  text: "模型只会算数。句子先切成词元（token，这里一个词就是一个词元），每个词元变成一行数，这些行合起来就是 X。注意力本身不知道哪一行在前。如果要让顺序起作用，就给每个词元的数 e_i 加上它的位置编码 P_i。",
  question: "交换两个词，输出 O 会怎样？加上位置编码之后再交换呢？",
  answer: "不加位置编码、也没有掩码时，每个词带着自己那一行结果一起换位，数一个都不变：“狗咬人”和“人咬狗”成了同一袋词。加上位置编码以后，同样的词换个位置就是另一个向量，数就变了。",
  words: "词（X 的行）",
  others: "另一边的词（被关注的行）",
  output: "输出 O（第 7 步）",
  newWord: "词{number}",
  added: "“{one}”是新加的一行，里面的数（{other}）只是占位：名称和数都可以改。",
  emptyName: "词不能为空：仍是“{one}”。",
  sameName: "已经有“{one}”了，所以这一个叫“{other}”。",
  rowOfPosition: "i = {number}，{token}",
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
  positions: "位置编码",
  none: "不加",
  sinusoidal: "正弦和余弦",
  xWords: "X，只有词",
  x: "X",
  xSum: "带位置编码的 X = 词 + P",
  table: "位置编码 P",
  keyX: "另一边的 X",
  valueX: "值一边的 X",
  waves: "P 的各列画成波：每个点是一个位置上的数。最前面的一对列变化最快。和公式里一样，位置 i 从 0 数起：第一个词 i = 0。公式里的列也从 0 数起，所以表中第 1 列就是 2c = 0 的那一列。",
  wavesName: "第 {columns} 列的波，位置 0 到 {last}；数值见位置编码表。",
  given: "这里直接给出了 Q、K、V：下面就是它们的各行。",
  columnName: "第 {number} 列",
};

const SIDES = ["x", "keyX", "valueX"];
const GIVEN = {
  x: { title: "Q", symbol: "query" },
  keyX: { title: "K", symbol: "key" },
  valueX: { title: "V", symbol: "value" },
};
const MOST_WRITTEN = 8; // numbers of a new row
// Names and matrices that have the same rows.
const OTHER_SIDE = { names: "keyTokens", matrices: ["keyX", "valueX"] };
const OWN_SIDE = { names: "tokens", matrices: ["x"] };

// Whole numbers from 0 to 2 for a new word, others for each row.
const newRow = (row, width) => Array.from({ length: width }, (_, column) => (row + 2 * column + 1) % 3);

const placesOf = (rows) => rows.map((_, at) => at);

// Give a side other rows: `order` has the index of each among those that there are, or null for a new one, which is
// called `text`. Words that stay keep what the mask says of them.
const changeRows = (side, order, text) => {
  const fields = { [side.names]: order.map((at) => (at === null ? text : state[side.names][at])) };
  for (const name of side.matrices) {
    const rows = state[name];
    if (rows) fields[name] = order.map((at) => (at === null ? newRow(rows.length, rows[0].length) : rows[at]));
  }
  const isExchange = order.length === state[side.names].length;
  const queries = side === OWN_SIDE ? order : placesOf(state.x);
  const keys = side === OWN_SIDE && state.keyX !== null ? placesOf(state.keyX) : order;
  // Words that change places take only padding with them: all other masks are of places.
  const mask = isExchange && state.mask.kind !== "padding" ? state.mask : fitMask(state.mask, queries, keys);
  change({ ...fields, mask });
};

// A name of a row that no other row has: of the same words, with the number of the occurrence.
const uniqueName = (names, row, text) => {
  const others = names.filter((_, at) => at !== row);
  let name = text;
  for (let count = 2; others.includes(name); count += 1) name = `${text}#${count}`;
  return name;
};

const listOf = (side, said) => ({
  // Whether the name was taken.
  rename(row, text) {
    const old = state[side.names][row];
    if (!text.trim()) {
      said("emptyName", old);
      return false;
    }
    const name = uniqueName(state[side.names], row, text.trim());
    change({ [side.names]: state[side.names].map((token, at) => (at === row ? name : token)) });
    if (name !== text.trim()) said("sameName", text.trim(), name);
    return true;
  },
  remove: (row) => changeRows(side, placesOf(state[side.names]).filter((at) => at !== row)),
  add(text) {
    const row = newRow(state[side.names].length, state[side.matrices[0]][0].length);
    changeRows(side, [...placesOf(state[side.names]), null], text);
    said("added", text, row.length > MOST_WRITTEN ? `${row.slice(0, MOST_WRITTEN).join(" ")} …` : row.join(" "));
  },
  exchange(one, other) {
    const [first, second] = [state[side.names][one], state[side.names][other]];
    const order = state[side.names].map((_, at) => (at === one ? other : at === other ? one : at));
    changeRows(side, order);
    if (state.positions !== "none") said("exchangedPositions", first, second);
    else said(["none", "padding"].includes(state.mask.kind) ? "exchangedSame" : "exchangedMask", first, second);
  },
});

// What a sentence about a change is true of.
const shown = () => [state.tokens, state.keyTokens, state.positions, state.mask];

export const vectorsStep = {
  id: "vectors",
  formula: [["x_i", "x"], " = e_i + P_i,  P_{i,2c} = sin(i / 10000^{2c/D}),  P_{i,2c+1} = cos(i / 10000^{2c/D})"],
  words: { en, zh },
  build(body, speak) {
    let said = null;
    const outputs = []; // by head: each has a name of its own
    const tell = (name, one, other) => {
      said = { name, one, other, of: shown() };
      sentence.textContent = speak(name, { one, other });
    };
    const givenNote = make("p", { className: "hint" });
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
    body.append(givenNote, ...lists.map(({ element }) => element), sentence, positions, line, waves.element, caption, others);

    const drawSide = (numbers, side) => {
      const there = state[side] !== null;
      const isAdded = state.positions !== "none";
      const rows = side === "x" ? state.tokens : state.keyTokens;
      const chosen = side === "x" ? { chosen: state.row, onChoose: (row) => change({ row }, { undoable: false }) } : {};
      raw[side].element.hidden = !there || !isAdded;
      sums[side].element.hidden = !there;
      if (!there) return;
      const edit = editField(side);
      const symbols = state.heads === null ? GIVEN[side] : null; // then the rows are queries, keys and values
      const title = symbols?.title ?? speak(side);
      const symbol = symbols?.symbol ?? "x";
      if (!isAdded) {
        sums[side].draw(state[side], { title, rows, symbol, edit, ...chosen });
        return;
      }
      const added = side === "x" ? numbers.positions : sinusoidal(state[side].length, state[side][0].length);
      raw[side].draw(state[side], { title: side === "x" && !symbols ? speak("xWords") : title, rows, symbol, edit, ...chosen });
      sums[side].draw(numbers[side], {
        title: side === "x" && !symbols ? speak("xSum") : `${title} + P`,
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
        givenNote.textContent = state.heads === null ? speak("given") : "";
        givenNote.hidden = state.heads !== null;
        lists[0].draw(state.tokens, { title: speak("words"), most: LIMITS.tokens, speak });
        lists[1].element.hidden = state.keyTokens === null;
        if (state.keyTokens) lists[1].draw(state.keyTokens, { title: speak("others"), most: LIMITS.tokens, speak });
        if (said?.of.some((value, at) => value !== shown()[at])) said = null;
        sentence.textContent = said ? speak(said.name, said) : "";
        outputs[state.head] ??= makeMatrix(`output-${state.head}`);
        if (!outputs[state.head].element.isConnected) body.append(outputs[state.head].element);
        outputs.forEach(({ element }, head) => {
          element.hidden = head !== state.head;
        });
        outputs[state.head].draw(numbers.heads[state.head].output, {
          title: speak("output"),
          rows: state.tokens,
          symbol: "output",
          chosen: state.row,
          onChoose: (row) => change({ row }, { undoable: false }),
        });
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
          rows: state.tokens.map((token, number) => speak("rowOfPosition", { number, token })),
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
