// Step 8: several heads look at the same X, and W_O mixes what they bring.

import { identity, randomMatrix } from "./chance.js";
import { editField, editHead, productParts } from "./edits.js";
import { make } from "./elements.js";
import { indexed } from "./formula.js";
import { LIMITS } from "./limits.js";
import { makeMatrix } from "./matrix.js";
import { change, state } from "./state.js";
import { onTheme } from "./theme.js";
import { wholeFormula } from "./whole_formula.js";

const MARKS = ["●", "▲", "■", "◆", "★", "▼", "✚", "⬟"]; // of the heads, beside their colours

const en = {
  title: "Several heads",
  text: "With one set of weights, a row can follow one relation only. So the same X goes through several heads, each with its own W_Q, W_K and W_V; their outputs are written side by side, and W_O mixes them.",
  question:
    "Press “W_O = random numbers” at the end of this step, then “Add a head”, then remove it again. Which columns come and go in Concat, which rows in W_O, and do the other heads’ numbers move?",
  answer:
    "The head’s own columns in Concat, and the rows of W_O that multiply them. The numbers of the other heads do not move: the heads do not see each other. Only in W_O do they meet.",
  source:
    "Each head i has its own Q_i = X W_{Q,i}, K_i = X W_{K,i} and V_i = X W_{V,i}, and so its own output O_i. The paper calls it head_i, and writes Q, K, V for what is X here (Vaswani et al. 2017, section 3.2.2). Heads are counted from 0, as in models.",
  sourceOther:
    "Each head i has its own Q_i = X W_{Q,i}; K_i and V_i come from the other side, each by the head’s own W_{K,i} and W_{V,i}; and so it has its own output O_i. The paper calls it head_i (Vaswani et al. 2017, section 3.2.2). Heads are counted from 0, as in models.",
  add: "Add a head",
  addHelp: "A new head is a copy of head {head} with some random changes.",
  most: "{most} heads are the most that this page shows.",
  given: "Q, K and V were given here without the matrices that made them. More heads need those matrices.",
  remove: "Remove head {head}",
  removed: "Head {head} was removed. Heads now: {count}.",
  added: "Head {head} was added. Heads now: {count}.",
  head: "Head {head}",
  look: "Look at head {head} in the other steps",
  shapes:
    "X is n × D = {x}: n tokens of D numbers. d is the width of queries and keys, d_v that of values, m the number of keys, H the number of heads.",
  outputShape:
    "W_O is H·d_v × D′ = {shape}: a row for each column of Concat. D′, the width of the result, is free; in a Transformer it is D, so that the result can be added to X.",
  weights: "weights A_{head}",
  output: "output O_{head}",
  joinTitle: "Side by side: Concat",
  join: "n × H·d_v = {rows} × {heads}·{value} = {shape}",
  joinName: "Concat of {count} heads: {blocks}",
  block: "head {head}: {shape}",
  joined: "Concat",
  outputTitle: "Mixed by W_O",
  noOutput: "Without W_O, Concat is the result.",
  useIdentity: "W_O = identity",
  useRandom: "W_O = random numbers",
  useNone: "Without W_O",
  result: "MultiHead",
  shape: " ({shape})",
  copied: "is copied from head {head}, column {column}",
};

const zh = {
  title: "多个头",
  text: "每一行只有一组权重，就只能顾到一种关系。所以同一个 X 要经过好几个头，每个头有自己的 W_Q、W_K、W_V；它们的输出并排拼起来，再由 W_O 混合。",
  question: "先按本步末尾的“W_O = 随机数”，再加一个头，然后把它去掉。Concat 里哪些列、W_O 里哪些行跟着增减？其他头的数变了吗？",
  answer:
    "增减的是这个头自己在 Concat 里的几列，以及 W_O 中与这几列相乘的几行。其他头的数都不动：各个头互相看不见，直到 W_O 才汇合。",
  source:
    "头 i 有自己的 Q_i = X W_{Q,i}、K_i = X W_{K,i} 和 V_i = X W_{V,i}，因而有自己的输出 O_i。论文里把它叫作 head_i，并用 Q、K、V 表示这里的 X（Vaswani 等，2017，3.2.2 节）。头从 0 数起，和模型里一样。",
  sourceOther:
    "头 i 有自己的 Q_i = X W_{Q,i}；K_i 和 V_i 来自另一侧，也各用自己的 W_{K,i}、W_{V,i}；因而有自己的输出 O_i。论文里把它叫作 head_i（Vaswani 等，2017，3.2.2 节）。头从 0 数起，和模型里一样。",
  add: "加一个头",
  addHelp: "新的头是头 {head} 的副本，再随机改动一些数。",
  most: "这一页最多显示 {most} 个头。",
  given: "这里直接给出了 Q、K、V，没有算出它们的矩阵。要有更多的头，就需要那些矩阵。",
  remove: "去掉头 {head}",
  removed: "去掉了头 {head}，现在有 {count} 个。",
  added: "加上了头 {head}，现在有 {count} 个。",
  head: "头 {head}",
  look: "在其他步骤里看头 {head}",
  shapes: "X 是 n × D = {x}：n 个词元，每个 D 个数。d 是查询和键的宽度，d_v 是值的宽度，m 是键的个数，H 是头的个数。",
  outputShape:
    "W_O 是 H·d_v × D′ = {shape}：Concat 的每一列对应它的一行。D′ 是结果的宽度，可以任选；Transformer 里取 D，结果才能与 X 相加。",
  weights: "权重 A_{head}",
  output: "输出 O_{head}",
  joinTitle: "并排拼接：Concat",
  join: "n × H·d_v = {rows} × {heads}·{value} = {shape}",
  joinName: "{count} 个头的拼接：{blocks}",
  block: "头 {head}：{shape}",
  joined: "Concat",
  outputTitle: "由 W_O 混合",
  noOutput: "没有 W_O 时，Concat 就是结果。",
  useIdentity: "W_O = 单位矩阵",
  useRandom: "W_O = 随机数",
  useNone: "不用 W_O",
  result: "MultiHead",
  shape: "（{shape}）",
  copied: "抄自头 {head} 的第 {column} 列",
};

const shapeOf = (matrix) => `${matrix.length} × ${matrix[0].length}`;
const numbered = (count, name) => Array.from({ length: count }, (_, at) => name(at));
const isIdentity = (matrix) =>
  matrix.length === matrix[0].length &&
  matrix.every((line, row) => line.every((value, column) => value === Number(row === column)));

// A head like another, with changes by chance: no entry stays far from where it was.
const varied = (head, seed) =>
  Object.fromEntries(
    Object.entries(head).map(([part, matrix], at) => {
      const changes = randomMatrix(matrix.length, matrix[0].length, 10 * seed + at, 0.5);
      const moved = (value, row, column) => Number((value + changes[row][column]).toPrecision(12));
      return [part, matrix.map((line, row) => line.map((value, column) => moved(value, row, column)))];
    }),
  );

// The heads with one more; W_O gets rows for its columns.
const withHead = ({ heads, output, head }) => {
  const width = heads[0].value[0].length;
  const next = [...heads, varied(heads[head], heads.length)];
  if (output === null) return { heads: next };
  const rows = isIdentity(output)
    ? identity(next.length * width)
    : [...output, ...randomMatrix(width, output[0].length, 100 + heads.length, 0.5)];
  return { heads: next, output: rows };
};

// The heads without one of them, and W_O without the rows of its columns.
const withoutHead = ({ heads, output, head }, gone) => {
  const width = heads[0].value[0].length;
  const next = heads.filter((_, at) => at !== gone);
  const fields = { heads: next, head: Math.min(head > gone ? head - 1 : head, next.length - 1) };
  if (output === null) return fields;
  const rows = output.filter((_, row) => Math.floor(row / width) !== gone);
  return { ...fields, output: isIdentity(output) ? identity(next.length * width) : rows };
};

let themes = 0; // how often the colours have changed
onTheme(() => {
  themes += 1;
});
const isEqual = (a, b) =>
  a === b ||
  (a.length === b.length && a.every((value, at) => (Array.isArray(value) ? isEqual(value, b[at]) : value === b[at])));

// A matrix that is drawn again only where it differs: an edit changes one of eight heads. `sources` are the matrices
// that its options look into.
const makeKeptMatrix = (name) => {
  const { element, draw } = makeMatrix(name);
  let drawn = [];
  return {
    element,
    draw(values, options, ...sources) {
      const { title, rows = [], columns = [], chosen = null } = options;
      const next = [values, ...sources, [themes, state.language, title, chosen], rows, columns];
      if (isEqual(next, drawn)) return;
      drawn = next;
      draw(values, options);
    },
  };
};

// A head on its own: what it has of its own, its weights and its output.
const makeCard = (at, speak) => {
  const heading = make("h3", { className: "head-name" });
  const remove = make("button", { type: "button" });
  const look = make("button", { type: "button" });
  const parts = { query: "w-query", key: "w-key", value: "w-value" };
  const projections = Object.entries(parts).map(([part, name]) => [part, makeKeptMatrix(`${name}-${at}`)]);
  const weights = makeKeptMatrix(`weights-${at}`);
  const output = makeKeptMatrix(`output-${at}`);
  const own = make("div", { className: "matrices" }, ...projections.map(([, { element }]) => element));
  const element = make(
    "article",
    { className: `head-card head-${at}` },
    heading,
    own,
    make("div", { className: "matrices" }, weights.element, output.element),
    make("div", { className: "buttons" }, look, remove),
  );
  look.addEventListener("click", () => change({ head: at }, { undoable: false }));
  const drawOwn = () => {
    own.hidden = state.heads === null;
    if (own.hidden) return;
    for (const [part, { draw }] of projections) {
      const title = { query: "W_Q", key: "W_K", value: "W_V" }[part];
      const shape = speak("shape", { shape: part === "value" ? "D × d_v" : "D × d" });
      draw(state.heads[at][part], { title: `${title}${shape}`, edit: editHead(at, part), paint: "signed", symbol: part });
    }
  };
  return {
    element,
    remove,
    draw(numbers) {
      const head = numbers.heads[at];
      const keys = state.keyTokens ?? state.tokens;
      const count = numbers.heads.length;
      heading.textContent = `${MARKS[at]} ${speak("head", { head: at })}`;
      drawOwn();
      const row = { rows: state.tokens, chosen: state.row, onChoose: (row) => change({ row }, { undoable: false }) };
      const hidden = (query, key) => !head.visible[query][key];
      weights.draw(
        head.weights,
        {
          ...row,
          columns: keys,
          title: `${speak("weights", { head: at })}${speak("shape", { shape: "n × m" })}`,
          paint: "weight",
          symbol: "weight",
          hidden,
        },
        head.visible,
      );
      output.draw(
        head.output,
        {
          ...row,
          title: `${speak("output", { head: at })}${speak("shape", { shape: "n × d_v" })}`,
          paint: "signed",
          symbol: "output",
          parts: productParts([`weights-${at}`, head.weights], [`values-${at}`, head.values]),
        },
        head.weights,
        head.values,
      );
      remove.textContent = speak("remove", { head: at });
      remove.hidden = count === 1;
      look.textContent = `${at === state.head ? "✓ " : ""}${speak("look", { head: at })}`;
      look.setAttribute("aria-pressed", String(at === state.head));
      look.hidden = count === 1;
    },
  };
};

// The outputs of the heads as blocks of one row, as wide as they are.
const makeBlocks = (speak) => {
  const element = make("div", { className: "concat", role: "img" });
  return {
    element,
    draw({ heads, joined }) {
      const blocks = heads.map(({ output }, at) => ({ at, width: output[0].length, shape: shapeOf(output) }));
      const texts = blocks.map(({ at, shape }) => speak("block", { head: at, shape }));
      element.setAttribute("aria-label", speak("joinName", { count: heads.length, blocks: texts.join("; ") }));
      element.replaceChildren(
        ...blocks.map(({ at, width, shape }) => {
          const block = make("span", { className: `head-${at}`, textContent: `${MARKS[at]} ${shape}` });
          block.style.flexGrow = String(width / joined[0].length);
          return block;
        }),
      );
    },
  };
};

export const headsStep = {
  id: "heads",
  formula: () => [
    "MultiHead = Concat(",
    ["O_0", "output"],
    ", …, ",
    ["O_{H−1}", "output"],
    ") ",
    ["W_O", "w"],
    wholeFormula(["output"], "_i"),
  ],
  words: { en, zh },
  build(body, speak) {
    const source = make("p", { className: "hint" });
    const shapes = make("p", { className: "hint" });
    const add = make("button", { type: "button", name: "add-head" });
    const addHelp = make("span", { className: "hint" });
    const news = make("p", { className: "hint", "aria-live": "polite" });
    const grid = make("div", { className: "head-cards" });
    const joinTitle = make("h3");
    const joinShape = make("p");
    const blocks = makeBlocks(speak);
    const joined = makeMatrix("joined");
    const outputTitle = make("h3");
    const noOutput = make("p");
    const outputShape = make("p", { className: "hint" });
    const choices = ["useIdentity", "useRandom", "useNone"].map((name) => ({
      name,
      button: make("button", { type: "button", name }),
    }));
    const matrix = makeMatrix("w-output");
    const result = makeMatrix("result");
    body.append(
      source,
      shapes,
      make("div", { className: "controls" }, add, addHelp),
      news,
      grid,
      joinTitle,
      joinShape,
      blocks.element,
      joined.element,
      outputTitle,
      noOutput,
      make("div", { className: "controls" }, ...choices.map(({ button }) => button)),
      outputShape,
      make("div", { className: "matrices" }, matrix.element, result.element),
    );
    let last = null; // what was done to the heads, for the sentence about it
    add.addEventListener("click", () => {
      const head = state.heads.length;
      last = { name: "added", filled: { head, count: head + 1 } };
      change(withHead(state));
    });
    const removeHead = (at) => {
      last = { name: "removed", filled: { head: at, count: state.heads.length - 1 } };
      change(withoutHead(state, at));
      add.focus(); // the button that was pressed may be gone
    };
    const rowsOfOutput = () => (state.heads === null ? null : state.heads.length * state.heads[0].value[0].length);
    let width = 0; // of Concat, also where there are no matrices
    const outputs = {
      useIdentity: () => identity(rowsOfOutput() ?? width),
      useRandom: () => randomMatrix(rowsOfOutput() ?? width, state.x[0].length, 40 + (state.heads?.length ?? 1), 0.5),
      useNone: () => null,
    };
    for (const { name, button } of choices) button.addEventListener("click", () => change({ output: outputs[name]() }));

    const cards = [];
    const cardOf = (at) => {
      if (!cards[at]) {
        cards[at] = makeCard(at, speak);
        cards[at].remove.addEventListener("click", () => removeHead(at));
        grid.append(cards[at].element);
      }
      return cards[at];
    };
    const drawJoined = ({ heads, joined: values }) => {
      const dv = heads[0].output[0].length;
      const placeOf = (column) => [Math.floor(column / dv), column % dv];
      const names = numbered(values[0].length, (column) => {
        const [head, own] = placeOf(column);
        return `${MARKS[head]}${head}:${own + 1}`;
      });
      joinTitle.textContent = speak("joinTitle");
      const sizes = { rows: values.length, heads: heads.length, value: dv, shape: shapeOf(values) };
      joinShape.replaceChildren(...indexed(speak("join", sizes)));
      joined.draw(values, {
        rows: state.tokens,
        columns: names,
        title: `${speak("joined")}${speak("shape", { shape: "n × H·d_v" })}`,
        paint: "signed",
        symbol: "output",
        chosen: state.row,
        onChoose: (row) => change({ row }, { undoable: false }),
        parts: (row, column) => {
          const [head, own] = placeOf(column);
          return {
            text: speak("copied", { head, column: own + 1 }),
            from: [
              [`output-${head}`, "row", row],
              [`output-${head}`, "column", own],
            ],
          };
        },
      });
      return names;
    };
    const drawOutput = ({ joined: values, result: product }, names) => {
      const hasOutput = state.output !== null;
      outputTitle.replaceChildren(...indexed(speak("outputTitle")));
      noOutput.replaceChildren(...indexed(speak("noOutput")));
      noOutput.hidden = hasOutput;
      for (const { name, button } of choices) button.replaceChildren(...indexed(speak(name)));
      choices[2].button.disabled = !hasOutput;
      for (const { element } of [matrix, result]) element.hidden = !hasOutput;
      outputShape.hidden = !hasOutput;
      if (!hasOutput) return;
      outputShape.replaceChildren(...indexed(speak("outputShape", { shape: shapeOf(state.output) })));
      matrix.draw(state.output, {
        rows: names,
        title: `W_O${speak("shape", { shape: "H·d_v × D′" })}`,
        paint: "signed",
        symbol: "w",
        edit: editField("output"),
      });
      result.draw(product, {
        rows: state.tokens,
        title: `${speak("result")}${speak("shape", { shape: "n × D′" })}`,
        paint: "signed",
        symbol: "output",
        chosen: state.row,
        onChoose: (row) => change({ row }, { undoable: false }),
        parts: productParts(["joined", values], ["w-output", state.output]),
      });
    };
    return {
      draw(numbers) {
        const count = numbers.heads.length;
        width = numbers.joined[0].length;
        source.replaceChildren(...indexed(speak(state.keyX === null ? "source" : "sourceOther")));
        source.hidden = state.heads === null;
        shapes.replaceChildren(...indexed(speak("shapes", { x: shapeOf(numbers.x) })));
        add.textContent = speak("add");
        add.disabled = state.heads === null || count === LIMITS.heads;
        if (state.heads === null) addHelp.textContent = speak("given");
        else
          addHelp.textContent = speak(count === LIMITS.heads ? "most" : "addHelp", {
            most: LIMITS.heads,
            head: state.head,
          });
        if (last && last.filled.count !== count) last = null; // undone since
        news.textContent = last ? speak(last.name, last.filled) : "";
        for (let at = 0; at < count; at += 1) cardOf(at).draw(numbers);
        cards.forEach(({ element }, at) => {
          if (at >= count) element.remove();
          else if (!element.isConnected) grid.append(element);
        });
        blocks.draw(numbers);
        drawOutput(numbers, drawJoined(numbers));
      },
    };
  },
};
