// Step 3: query, key and value.

import { random } from "./chance.js";
import { editField, editHead, productParts } from "./edits.js";
import { withIndices } from "./formula.js";
import { makeMatrix } from "./matrix.js";
import { make } from "./elements.js";
import { change, state } from "./state.js";

const en = {
  title: "Query, key, value",
  text: "Each row of X is multiplied by three matrices. The query is what a token looks for, the key is what it is found by, and the value is what it passes on. Training makes the three matrices; here you can.",
  question: "Make every number of W_K twice as large. What happens to the keys, and to the weights A?",
  answer: "All keys become twice as long, so each score doubles and the softmax gives more to the largest one. Where two keys share the largest score, they go on sharing the weight, and little changes: look at another row. It is the same as halving the temperature. The values do not change: what is mixed stays, only the proportions are others.",
  questionGiven: "Make every number of K twice as large. What happens to the weights A?",
  answerGiven: "Each score doubles, and the softmax gives more to the largest one. Where two keys share the largest score, they go on sharing the weight, and little changes: look at another row. It is the same as halving the temperature. The values do not change: what is mixed stays, only the proportions are others.",
  given: "Queries, keys and values are given here as they are, so there is nothing to multiply: change them directly.",
  hint: "Point at a number of Q, K or V, or tap it: the row of X and the column of W that made it light up, and a bar at the edge of the window writes out the sum.",
  same: "Here W_Q, W_K and W_V are one and the same matrix, so Q, K and V are equal too. In a model they are three different ones: make them so, and the three roles can be told apart.",
  different: "Make three different matrices",
  weights: "Weights A (step 6)",
  positions: "X has its positions added already. Its own numbers are changed in step “{step}”.",
  gap: " ",
  words: "Words become vectors",
  cross: "Queries are made of the tokens that look, keys and values of the tokens that are looked at.",
  x: "X",
  keyX: "X of the other side",
  valueX: "X of the values",
  queries: "Q = X · W_Q",
  keys: "K = X · W_K",
  values: "V = X · W_V",
  givenQueries: "Q",
  givenKeys: "K",
  givenValues: "V",
  double: "W_K × 2",
  halve: "W_K ÷ 2",
};
const zh = {
  title: "查询、键、值",
  text: "X 的每一行分别乘以三个矩阵：查询表示这个词元要找什么，键表示它凭什么被找到，值是它要传出去的内容。这三个矩阵本来由训练得到，在这里你可以自己改。",
  question: "把 W_K 的每个数都变成两倍，键会怎样？权重 A 又会怎样？",
  answer: "每个键的长度变为两倍，所以每个分数都翻倍，softmax 会把更多权重给最大的那个。如果有两个键并列最大，它们仍然平分，看起来几乎没变：换一行再看。这和把温度减半是一回事。值没有变：混合的内容不变，变的只是比例。",
  questionGiven: "把 K 的每个数都变成两倍，权重 A 会怎样？",
  answerGiven: "每个分数都翻倍，softmax 会把更多权重给最大的那个。如果有两个键并列最大，它们仍然平分，看起来几乎没变：换一行再看。这和把温度减半是一回事。值没有变：混合的内容不变，变的只是比例。",
  given: "这里直接给出了查询、键和值，不需要再乘矩阵：请直接修改它们。",
  hint: "指向（或轻点）Q、K 或 V 里的一个数：得到它的那一行 X 和那一列 W 会亮起来，算式显示在窗口边缘的横条里。",
  same: "这里 W_Q、W_K、W_V 是同一个矩阵，所以 Q、K、V 也完全相同。模型里它们是三个不同的矩阵：换成不同的，三种角色就分得开了。",
  different: "换成三个不同的矩阵",
  weights: "权重 A（第 6 步）",
  positions: "这里的 X 已经加上了位置编码。它本身的数要在“{step}”那一步里改。",
  gap: "",
  words: "词变成向量",
  cross: "查询来自发出注意力的一边，键和值来自被关注的另一边。",
  x: "X",
  keyX: "另一边的 X",
  valueX: "值一边的 X",
  queries: "Q = X · W_Q",
  keys: "K = X · W_K",
  values: "V = X · W_V",
  givenQueries: "Q",
  givenKeys: "K",
  givenValues: "V",
  double: "W_K × 2",
  halve: "W_K ÷ 2",
};

// A part of a head: its matrices' names, and whose rows it is made of.
const PARTS = [
  { part: "query", name: "queries", weight: "W_Q", from: () => "x" },
  { part: "key", name: "keys", weight: "W_K", from: () => (state.keyX ? "keyX" : "x") },
  {
    part: "value",
    name: "values",
    weight: "W_V",
    from: () => (state.valueX ? "valueX" : state.keyX ? "keyX" : "x"),
  },
];
const rowsOf = (name) => (name === "x" ? state.tokens : state.keyTokens);

// The matrices of one head: what is drawn belongs to that head, so each has its own names.
const buildHead = (body, speak, head) => {
  const element = make("div", { className: "projections" });
  const inputs = Object.fromEntries(["x", "keyX", "valueX"].map((name) => [name, makeMatrix(name)]));
  const rows = PARTS.map(({ part, name }) => ({
    line: make("div", { className: "matrices" }),
    weight: makeMatrix(`w-${part}-${head}`),
    product: makeMatrix(`${name}-${head}`),
    times: make("span", { className: "operator", textContent: "·", "aria-hidden": "true" }),
    equals: make("span", { className: "operator", textContent: "=", "aria-hidden": "true" }),
  }));
  const inputLine = make("div", { className: "matrices" }, ...Object.values(inputs).map((input) => input.element));
  element.append(inputLine);
  for (const { line, weight, product, equals } of rows) {
    line.append(weight.element, equals, product.element);
    element.append(line);
  }
  const choose = (row) => change({ row }, { undoable: false });

  const drawInputs = (numbers) => {
    for (const [name, input] of Object.entries(inputs)) {
      input.element.hidden = state.heads === null || (name !== "x" && state[name] === null);
      if (input.element.hidden) continue;
      input.draw(numbers[name], {
        title: speak(name),
        rows: rowsOf(name),
        symbol: "x",
        edit: state.positions === "none" ? editField(name) : null,
        chosen: name === "x" ? state.row : null,
        onChoose: name === "x" ? choose : null,
      });
    }
  };
  const draw = (numbers) => {
    drawInputs(numbers);
    PARTS.forEach(({ part, name, weight, from }, at) => {
      const line = rows[at];
      const isGiven = state.heads === null;
      line.weight.element.hidden = line.equals.hidden = isGiven;
      const matrix = isGiven ? null : state.heads[head][part];
      if (!isGiven) line.weight.draw(matrix, { title: weight, symbol: part, edit: editHead(head, part) });
      const title = speak(isGiven ? `given${name[0].toUpperCase()}${name.slice(1)}` : name);
      line.product.draw(numbers.heads[head][name], {
        title,
        rows: rowsOf(part === "query" ? "x" : from()),
        symbol: part,
        parts: isGiven ? null : productParts([from(), numbers[from()]], [`w-${part}-${head}`, matrix]),
        edit: isGiven && state.positions === "none" ? editField(from()) : null,
        chosen: part === "query" ? state.row : null,
        onChoose: part === "query" ? choose : null,
      });
    });
  };
  body.append(element);
  return { element, draw };
};

const areSame = ({ query, key, value }) =>
  JSON.stringify(query) === JSON.stringify(key) && JSON.stringify(key) === JSON.stringify(value);

// Whole numbers from −1 to 2, others for each of the three: sums that can be checked by hand.
const SEEDS = { query: 1, key: 2, value: 3 };
const makeDifferent = () =>
  change({
    heads: state.heads.map((matrices, at) => {
      if (at !== state.head) return matrices;
      return Object.fromEntries(
        Object.entries(SEEDS).map(([part, seed]) => {
          const chance = random(seed);
          return [part, matrices[part].map((row) => row.map(() => Math.floor(chance() * 4) - 1))];
        }),
      );
    }),
  });

export const projectionsStep = {
  id: "projections",
  formula: [
    ["Q", "query"], " = ", ["X", "x"], " ", ["W_Q", "query"], ",  ", ["K", "key"], " = ", ["X", "x"], " ", ["W_K", "key"],
    ",  ", ["V", "value"], " = ", ["X", "x"], " ", ["W_V", "value"],
  ],
  words: { en, zh },
  variant: () => (state.heads === null ? "Given" : ""), // of the question
  build(body, speak) {
    const note = make("p", { className: "hint" });
    const scaled = (factor) => () =>
      change({
        heads: state.heads.map((matrices, at) =>
          at === state.head
            ? { ...matrices, key: matrices.key.map((row) => row.map((value) => value * factor)) }
            : matrices,
        ),
      });
    const double = make("button", { type: "button" });
    const halve = make("button", { type: "button" });
    double.addEventListener("click", scaled(2));
    halve.addEventListener("click", scaled(0.5));
    const different = make("button", { type: "button", className: "different" });
    different.addEventListener("click", makeDifferent);
    const same = make("p", { className: "hint" });
    const buttons = make("p", { className: "field-row no-print" }, different, double, halve);
    const [products, results] = [make("div", {}), make("div", {})];
    body.append(note, same, buttons, products, results);
    const heads = [];
    const weights = []; // by head
    return {
      draw(numbers) {
        const isGiven = state.heads === null;
        const sentences = [isGiven ? speak("given") : speak("hint")];
        if (state.keyX && !isGiven) sentences.unshift(speak("cross"));
        if (state.positions !== "none") sentences.push(speak("positions", { step: speak("words") }));
        note.textContent = sentences.join(speak("gap"));
        buttons.hidden = isGiven;
        double.replaceChildren(...withIndices(speak("double")));
        halve.replaceChildren(...withIndices(speak("halve")));
        different.textContent = speak("different");
        different.hidden = same.hidden = isGiven || !areSame(state.heads[state.head]);
        same.replaceChildren(...withIndices(speak("same")));
        heads[state.head] ??= buildHead(products, speak, state.head);
        weights[state.head] ??= makeMatrix(`weights-${state.head}`);
        results.replaceChildren(weights[state.head].element);
        heads.forEach((head, at) => {
          head.element.hidden = at !== state.head;
        });
        heads[state.head].draw(numbers);
        const { weights: values, visible } = numbers.heads[state.head];
        weights[state.head].draw(values, {
          title: speak("weights"),
          rows: state.tokens,
          columns: state.keyTokens ?? state.tokens,
          paint: "weight",
          symbol: "weight",
          hidden: (row, column) => !visible[row][column],
          chosen: state.row,
          onChoose: (row) => change({ row }, { undoable: false }),
        });
      },
    };
  },
};
