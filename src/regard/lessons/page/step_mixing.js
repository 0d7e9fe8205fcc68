// Step 7: the weighted sum of the values.

import { make } from "./elements.js";
import { makeMatrix } from "./matrix.js";
import { makeMixture } from "./mixture.js";
import { format } from "./number_text.js";
import { change, state } from "./state.js";
import { wholeFormula } from "./whole_formula.js";

const en = {
  title: "Weighted sum: the values are mixed",
  text: "The weights of a row say how much of each value goes into the output of that row. Each value is multiplied by its weight, and all are added up.",
  question: "Choose a row whose largest weight is near 1. Which value does the output look like?",
  answer: "Like the value of the token that has this weight: almost nothing of the others is mixed in. With equal weights the output is the plain mean of all values, and it is the same for every row that has them.",
  row: "Output of “{token}”, row {number}: together its weights are 1.",
  none: "Row “{token}” sees nothing: all its weights are 0, so nothing is mixed and its output is 0.",
  shares: "What each key adds: weight × value",
  weights: "weights A",
  values: "values V",
  output: "output O = A V",
  sum: "sum",
  parts: "Its parts: {parts}.",
  bars: "Number {column} of the output: the parts add up to {value}.",
  more: "The first {count} of {all} numbers are drawn as bars; all are in the matrices.",
  between: " ",
  legend: "Bars to the right are positive, to the left negative; the line marks their sum.",
  choose: "Choose another row by its name in O, or at the top.",
};
const zh = {
  title: "加权求和：把值混合起来",
  text: "一行权重说明：这一行的输出里，每个值各混入多少。每个值乘以自己的权重，再全部加起来。",
  question: "选一行最大权重接近 1 的。它的输出像哪个值？",
  answer: "像得到这个权重的词元的值：其余的几乎没有混进来。如果权重都相等，输出就是所有值的平均，凡是权重如此的行，输出都一样。",
  row: "“{token}”（第 {number} 行）的输出。这一行的权重合起来是 1。",
  none: "“{token}”这一行什么也看不见：权重全是 0，没有可以混合的，输出也是 0。",
  shares: "每个键贡献的部分：权重 × 值",
  weights: "权重 A",
  values: "值 V",
  output: "输出 O = A V",
  sum: "合计",
  parts: "各份：{parts}。",
  bars: "输出的第 {column} 个数：各部分加起来是 {value}。",
  more: "条形图只画前 {count} 个数（共 {all} 个），全部的数都在矩阵里。",
  between: "",
  legend: "向右的条是正数，向左的是负数；竖线标出它们的和。",
  choose: "点 O 的行名，或者用页面顶部的下拉菜单，可以换一行。",
};

// The matrices of one head, each with its own name.
const buildHead = (body, speak, head) => {
  const matrices = Object.fromEntries(["weights", "values", "output"].map((name) => [name, makeMatrix(`${name}-${head}`)]));
  const shares = makeMatrix(`shares-${head}`);
  const operators = ["·", "="].map((textContent) => make("span", { className: "operator", textContent, "aria-hidden": "true" }));
  const line = make("div", { className: "matrices" });
  // a sign stays beside the matrix that follows it
  const factor = (sign, matrix) => make("div", { className: "factor" }, sign, matrix);
  line.append(
    matrices.weights.element,
    factor(operators[0], matrices.values.element),
    factor(operators[1], matrices.output.element),
  );
  const element = make("div", {}, line, shares.element);
  body.append(element);
  const choose = (row) => change({ row }, { undoable: false });
  return {
    element,
    draw(numbers) {
      const { weights, values, output, visible } = numbers.heads[head];
      const { row, tokens } = state;
      const keys = state.keyTokens ?? tokens;
      const chosen = { chosen: row, onChoose: choose };
      const hidden = (query, key) => !visible[query][key];
      matrices.weights.draw(weights, { title: speak("weights"), rows: tokens, columns: keys, symbol: "weight", paint: "weight", hidden, ...chosen });
      matrices.values.draw(values, { title: speak("values"), rows: keys, symbol: "value" });
      matrices.output.draw(output, {
        title: speak("output"),
        rows: tokens,
        symbol: "output",
        ...chosen,
        parts: (query, column) => ({
          terms: weights[query].map((weight, key) => [keys[key], weight, values[key][column]]),
          from: [
            [`weights-${head}`, "row", query],
            [`values-${head}`, "column", column],
            [`shares-${head}`, "column", column],
          ],
        }),
      });
      const parts = values.map((value, key) => value.map((number) => weights[row][key] * number));
      shares.draw([...parts, output[row]], {
        title: speak("shares"),
        rows: [...keys, speak("sum")],
        symbol: "value",
        paint: "signed",
        parts: (key, column) =>
          key < keys.length
            ? {
                terms: [["", weights[row][key], values[key][column]]],
                from: [
                  [`weights-${head}`, "cell", row, key],
                  [`values-${head}`, "row", key],
                ],
              }
            : {
                terms: parts.map((part, at) => [keys[at], part[column]]),
                from: [[`output-${head}`, "row", row]],
              },
      });
    },
  };
};

export const mixingStep = {
  id: "mixing",
  formula: () => [
    ["O", "output"],
    " = ",
    ["A", "weight"],
    " ",
    ["V", "value"],
    ",  ",
    ["o_i", "output"],
    " = Σ_j ",
    ["a_{ij}", "weight"],
    " ",
    ["v_j", "value"],
    wholeFormula(["output", "values"]),
  ],
  words: { en, zh },
  build(body, speak) {
    const about = make("p", { className: "about" });
    const mixture = makeMixture();
    const note = make("p", { className: "hint" });
    body.append(about, mixture.element, note);
    const heads = [];
    return {
      draw(numbers) {
        const { row, head, tokens } = state;
        const { weights, values, output } = numbers.heads[head];
        const isEmpty = weights[row].every((weight) => weight === 0);
        const keys = state.keyTokens ?? tokens;
        const parts = weights[row].map((weight, key) => `${keys[key]} ${format(weight)}`).join(" + ");
        about.textContent = [
          speak(isEmpty ? "none" : "row", { token: tokens[row], number: row + 1 }),
          ...(isEmpty ? [] : [speak("parts", { parts })]), // narrow parts of the bar have no room for it
        ].join(speak("between"));
        const { shown } = mixture.draw(
          { weights: weights[row], values, output: output[row], keys },
          speak,
        );
        const all = output[row].length;
        const more = shown < all ? [speak("more", { count: shown, all })] : [];
        note.textContent = [speak("legend"), ...more, speak("choose")].join(speak("between"));
        heads[head] ??= buildHead(body, speak, head);
        heads.forEach((built, at) => {
          built.element.hidden = at !== head;
        });
        heads[head].draw(numbers);
      },
    };
  },
};
