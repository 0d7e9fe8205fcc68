// Step 4: scores, and why they are divided by √d: an experiment with random vectors, and a row of scores to type.

import { make, numberField } from "./elements.js";
import { makeHeadMatrix } from "./head_matrix.js";
import { format } from "./number_text.js";
import { makeExperimentView } from "./score_experiment_view.js";
import { makeTrial } from "./score_trial.js";
import { makeSlider } from "./slider.js";
import { change, state } from "./state.js";
import { scaleText, wholeFormula } from "./whole_formula.js";

const en = {
  title: "Scores: how well a query fits a key",
  text:
    "The score of a query and a key is their dot product: the products of their numbers, added up. All scores " +
    "together are S = Q K^⊤. Then a scale makes scaled scores of them: as a rule they are divided by √d, where d is " +
    "the number of columns of Q and K.",
  textAdditive:
    "The score of a query q and a key k is the additive one that was chosen in step 11: a small network compares the " +
    "two. All scores together are S. Its scale is 1, as a rule: nothing is divided.",
  textBilinear:
    "The score of a query and a key is the bilinear one that was chosen in step 11: a matrix W stands between the " +
    "two. All scores together are S = Q W K^⊤. Its scale is 1, as a rule: nothing is divided.",
  textCosine:
    "The score of a query and a key is the cosine that was chosen in step 11: their dot product, divided by the " +
    "lengths of both. All scores together are S. As a rule the scaled scores are S / τ with τ = 0.1.",
  question: "Move the slider for d from 1 to 1024. What happens to the gradient without the division, and with it?",
  answer:
    "Without it, the variance of q·k grows like d, the softmax closes on one key, and its gradient falls to a " +
    "small part: hardly any learning gets through. Divided by √d, the variance stays near 1, and so do, from d = 2 " +
    "on, the largest weight (about 0.36 on average) and the gradient.",
  queries: "queries Q",
  keys: "keys K",
  scores: "scores {formula}",
  scaled: "scaled scores {formula}",
  pair: "q of {query} · k of {key}",
  scale: "Scale: the factor on the scores",
  divide: "1/√d = {scale}",
  usual: "as usual for these scores: {scale}",
  none: "none: 1",
  own: "my own",
  factor: "factor",
  exact: "exactly",
  refused: "A number from −1,000,000 to 1,000,000, please.",
  why: "Why divided by √d?",
  experiment:
    "For dot products: {pairs} pairs of random vectors q and k with d numbers each (mean 0, variance 1; the same each time), 8 " +
    "keys to a query. Measured on this page:",
  width: "d = {width}",
  again: "Draw other numbers",
  terms:
    "Variance: how far numbers spread around their mean. Entropy: how evenly the weights are shared out; 0 where one " +
    "key has all. Gradient: how much the weights move when the scores move a little; training needs it to know in " +
    "which direction to change the scores.",
  measured: "q·k of random vectors, d = {width}",
  what: "measured",
  plain: "q·k",
  divided: "q·k / √d",
  variance: "variance",
  theory: "variance in theory",
  largest: "largest of 8 weights, on average",
  entropy: "entropy of the weights (8 equal ones: 2.08)",
  gradient: "size of the softmax's gradient",
  oneQuery: "The weights of one of the queries (number {number}) for its 8 keys. Its largest weights are near the means:",
  barsPlain: "from q·k",
  barsDivided: "from q·k / √d",
  varianceChart: "Variance of q·k up to d = {width} (dashed line: d)",
  varianceChartLabel: "The variance of q·k at d = {widths}: {values}. The line is d itself.",
  gradientChart: "Size of the gradient up to d = {width} (● q·k, ■ q·k / √d)",
  gradientChartLabel: "The size of the gradient at d = {widths}. Not divided: {plain}. Divided by √d: {divided}.",
  axis: "d",
  trial: "A row of your own through the softmax",
  trialText: "Type scaled scores, and see the weights and what is left of the gradient. No mask and no temperature here.",
  trialScores: "scaled scores",
  trialWeights: "their softmax",
  trialJacobian: "its gradient: ∂ weight of a row / ∂ score of a column",
  trialDivided: "Divide by 10",
  add: "One score more",
  remove: "One score less",
  preset: "Take {scores}",
  sizeOf: "Size of the gradient: {size} (root of the sum of its squares).",
  exactly: "In nine digits: {weights}.",
  largestIs: "The largest weight is {shown}.",
  left: "The largest weight is 1 − {left}.",
  leftHidden:
    "The largest weight is 1 − {left}; a 64-bit number has no room for that beside the 1, so it shows {shown}.",
  leftNothing: "The others are smaller than the smallest 64-bit number: the largest weight is 1, the gradient 0.",
};

const zh = {
  title: "分数：查询与键有多匹配",
  text: "查询和键的分数是它们的点积：对应的数相乘，再加起来。所有分数合在一起就是 S = Q K^⊤。分数乘以一个缩放系数，得到缩放后的分数；通常是除以 √d，d 是 Q 和 K 的列数。",
  textAdditive:
    "现在用的是第 11 步里选的加性打分：一个小网络把查询 q 和键 k 作比较。所有分数合在一起是 S。它的缩放系数通常是 1，也就是不缩放。",
  textBilinear:
    "现在用的是第 11 步里选的双线性打分：查询和键之间多了一个矩阵 W。所有分数合在一起是 S = Q W K^⊤。它的缩放系数通常是 1，也就是不缩放。",
  textCosine:
    "现在用的是第 11 步里选的余弦打分：点积再除以查询和键各自的长度。所有分数合在一起是 S。缩放后的分数通常是 S / τ，τ = 0.1。",
  question: "把 d 的滑块从 1 拉到 1024。不除以 √d 时梯度怎么变？除了以后呢？",
  answer: "不除的话，q·k 的方差随 d 增长，softmax 集中到一个键上，梯度只剩一小部分，几乎学不动。除以 √d 以后，方差保持在 1 左右；从 d = 2 起，最大的权重（平均约 0.36）和梯度也大致不变。",
  queries: "查询 Q",
  keys: "键 K",
  scores: "分数 {formula}",
  scaled: "缩放后的分数 {formula}",
  pair: "“{query}”的 q ·“{key}”的 k",
  scale: "缩放：分数乘以",
  divide: "1/√d = {scale}",
  usual: "这种分数通常的系数：{scale}",
  none: "不缩放：1",
  own: "自己定",
  factor: "系数",
  exact: "精确值",
  refused: "请输入 −1,000,000 到 1,000,000 之间的数。",
  why: "为什么要除以 √d？",
  experiment: "以点积为例：{pairs} 对随机向量 q 和 k，每个有 d 个数（均值 0，方差 1；每次打开都一样），每个查询配 8 个键。下面的数是在这一页上测出来的：",
  width: "d = {width}",
  again: "换一批随机数",
  terms:
    "方差：数围绕均值散开的程度。熵：权重分得有多均匀，全给一个键时为 0。梯度：分数稍微一变，权重跟着变多少；训练要靠它才知道分数该往哪个方向改。",
  measured: "随机向量的 q·k，d = {width}",
  what: "测得",
  plain: "q·k",
  divided: "q·k / √d",
  variance: "方差",
  theory: "方差的理论值",
  largest: "8 个权重中最大的（平均）",
  entropy: "权重的熵（8 个相等时为 2.08）",
  gradient: "softmax 梯度的大小",
  oneQuery: "其中一个查询（第 {number} 个）对它的 8 个键的权重，它最大的权重接近平均值：",
  barsPlain: "由 q·k 得到",
  barsDivided: "由 q·k / √d 得到",
  varianceChart: "q·k 的方差，到 d = {width} 为止（虚线：d）",
  varianceChartLabel: "d = {widths} 时 q·k 的方差：{values}。虚线是 d 本身。",
  gradientChart: "梯度的大小，到 d = {width} 为止（● q·k，■ q·k / √d）",
  gradientChartLabel: "d = {widths} 时梯度的大小。不除：{plain}。除以 √d：{divided}。",
  axis: "d",
  trial: "自己写一行，送进 softmax",
  trialText: "输入几个缩放后的分数，看看权重是多少，梯度还剩多少。这里没有掩码，也没有温度。",
  trialScores: "缩放后的分数",
  trialWeights: "它们的 softmax",
  trialJacobian: "它的梯度：∂ 某行的权重 / ∂ 某列的分数",
  trialDivided: "都除以 10",
  add: "加一个分数",
  remove: "删去一个分数",
  preset: "改为 {scores}",
  sizeOf: "梯度的大小：{size}（各项平方和的平方根）。",
  exactly: "写到九位：{weights}。",
  largestIs: "最大的权重是 {shown}。",
  left: "最大的权重是 1 − {left}。",
  leftHidden: "最大的权重是 1 − {left}；64 位浮点数在 1 旁边放不下这么小的差，所以显示为 {shown}。",
  leftNothing: "其余的权重比最小的 64 位浮点数还小：最大的权重就是 1，梯度是 0。",
};

const MOST_FACTOR = 2; // of the slider
const MOST_TYPED = 1e6;

// Which factor: the usual one, none, or one's own by a slider or a field.
const makeScale = (speak) => {
  const legend = make("legend");
  const choices = ["default", "none", "own"].map((kind) => {
    const text = document.createTextNode("");
    const input = make("input", { type: "radio", name: "scale", value: kind });
    return { kind, text, input, element: make("label", {}, input, text) };
  });
  let shown = 1; // the factor of the moment, from which one's own starts
  for (const { kind, input } of choices) {
    input.addEventListener("change", () => change({ scale: kind === "own" ? shown : kind }));
  }
  const name = document.createTextNode("");
  const range = { min: -MOST_FACTOR, max: MOST_FACTOR, step: 0.01 };
  const slider = makeSlider("scale-slider", range, (scale) => change({ scale }));
  const exact = numberField({
    name: "scale-exact",
    least: -MOST_TYPED,
    most: () => MOST_TYPED,
    step: "any",
    accept: (scale) => change({ scale }),
  });
  const label = make("label", { className: "field" }, name, slider);
  const fields = make("div", { className: "controls" }, label, exact.element);
  const choice = make("fieldset", { className: "choices" }, legend, ...choices.map(({ element }) => element));
  return {
    element: make("div", {}, choice, fields),
    draw(scale, width) {
      shown = scale;
      legend.textContent = speak("scale");
      const usual = state.score.kind === "dot" ? ["divide", 1 / Math.sqrt(width)] : ["usual", usualScale()];
      const texts = {
        default: speak(usual[0], { scale: format(usual[1]) }),
        none: speak("none"),
        own: speak("own"),
      };
      const chosen = typeof state.scale === "number" ? "own" : state.scale;
      for (const { kind, text, input } of choices) {
        text.data = texts[kind];
        input.checked = kind === chosen;
      }
      fields.hidden = chosen !== "own";
      name.data = speak("factor");
      slider.value = String(scale);
      exact.show(scale, { label: speak("exact"), refusal: speak("refused") });
    },
  };
};
const usualScale = () => (state.score.kind === "cosine" ? 10 : 1);

// The scores of the moment by their formula, and the scaled ones.
const S = ["S", "score"];
const SCORES = {
  dot: [S, " = ", ["Q", "query"], " ", ["K^⊤", "key"]],
  additive: [
    ["S_{ij}", "score"], " = ", ["v_a", "w"], " · tanh(", ["W_a", "w"], " ", ["q_i", "query"], " + ", ["U_a", "w"], " ",
    ["k_j", "key"], ")",
  ],
  bilinear: [S, " = ", ["Q", "query"], " ", ["W", "w"], " ", ["K^⊤", "key"]],
  cosine: [
    ["S_{ij}", "score"], " = ", ["q_i", "query"], " · ", ["k_j", "key"], " / (|", ["q_i", "query"], "| |",
    ["k_j", "key"], "|)",
  ],
};
const formula = () => {
  const scale = scaleText();
  return [
    ...SCORES[state.score.kind],
    ...(scale ? [" → ", S, scale] : []),
    wholeFormula(["queries", "keys", ...(scale ? ["scale"] : [])]),
  ];
};
// The same for the titles of the two matrices.
const scoresTitle = () => ({ dot: "S = Q K^⊤", bilinear: "S = Q W K^⊤" })[state.score.kind] ?? "S";
const scaledTitle = (scale) => {
  const [letters, number] = [scaleText(), ` · ${scale < 0 ? `(${format(scale)})` : format(scale)}`];
  if (!letters) return "= S";
  return letters === number ? `S${number}` : `S${letters} = S${number}`;
};
const TEXTS = { dot: "text", additive: "textAdditive", bilinear: "textBilinear", cosine: "textCosine" };

export const scoresStep = {
  id: "scores",
  formula,
  textName: () => TEXTS[state.score.kind],
  words: { en, zh },
  build(body, speak) {
    const names = ["queries", "keys", "scores", "scaled"];
    const [queryMatrix, keyMatrix, scoreMatrix, scaledMatrix] = names.map(makeHeadMatrix);
    const scale = makeScale(speak);
    const view = makeExperimentView(speak);
    const trial = makeTrial(speak);
    let drawn = "";
    body.append(
      make("div", { className: "matrices" }, queryMatrix.element, keyMatrix.element, scoreMatrix.element),
      scale.element,
      make("div", { className: "matrices" }, scaledMatrix.element),
      view.element,
      trial.element,
    );
    return {
      draw(numbers) {
        const { head, row, tokens } = state;
        const { queries, keys, scores, scaled } = numbers.heads[head];
        const keyNames = state.keyTokens ?? tokens;
        const choice = { chosen: row, onChoose: (query) => change({ row: query }, { undoable: false }) };
        const isDot = state.score.kind === "dot";
        const signed = { paint: "signed" };
        queryMatrix.draw(head, queries, {
          title: speak("queries"), rows: tokens, symbol: "query", ...signed, ...choice,
        });
        keyMatrix.draw(head, keys, { title: speak("keys"), rows: keyNames, symbol: "key", ...signed });
        const pairs = { rows: tokens, columns: keyNames, symbol: "score", paint: "signed", ...choice };
        scoreMatrix.draw(head, scores, {
          ...pairs,
          title: speak("scores", { formula: scoresTitle() }),
          parts: (query, key) =>
            isDot
              ? {
                  label: speak("pair", { query: tokens[query], key: keyNames[key] }),
                  terms: queries[query].map((value, at) => [String(at + 1), value, keys[key][at]]),
                  result: scores[query][key],
                  from: [[`queries-${head}`, "row", query], [`keys-${head}`, "row", key]],
                }
              : null,
        });
        scale.draw(numbers.scale, queries[0].length);
        scaledMatrix.draw(head, scaled, {
          ...pairs,
          title: speak("scaled", { formula: scaledTitle(numbers.scale) }),
          parts: (query, key) => ({
            terms: [["", scores[query][key], numbers.scale]],
            result: scaled[query][key],
            from: [[`scores-${head}`, "cell", query, key]],
          }),
        });
        const now = JSON.stringify([state.scoresStep, state.language]);
        if (drawn === now) return; // what follows depends on nothing else
        drawn = now;
        view.draw();
        trial.draw();
      },
    };
  },
};
