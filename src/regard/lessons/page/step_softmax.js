// Step 6: softmax, with a temperature, worked out for one row; rows that sum to 1, and a row that sees nothing.

import { make, numberField } from "./elements.js";
import { makeHeadMatrix } from "./head_matrix.js";
import { visibleOf } from "./masks.js";
import { format } from "./number_text.js";
import { softmaxParts } from "./numbers.js";
import { makeSlider } from "./slider.js";
import { change, state } from "./state.js";
import { scaleText, wholeFormula } from "./whole_formula.js";

const en = {
  title: "Softmax: logits become weights",
  text:
    "Each logit becomes a power of e, exp(z) = e^z, which is always positive; then each row is divided by its sum, so " +
    "that it adds up to 1. The temperature T divides the scaled scores before that.",
  question: "Lower the temperature to 0.1, then raise it to 10. What happens to the weights?",
  answer:
    "At a low temperature the row closes on its largest logit; at a high one all weights come near to each " +
    "other. The order of the weights never changes, and each row adds up to 1 all the way.",
  temperature: "Temperature T",
  exact: "T, exactly",
  refused: "A number from 0.000001 to 1,000,000, please.",
  one: "T = 1",
  logits: "logits Z = S{scale} / T + M",
  weights: "weights A",
  sums: "sum of the row",
  working: "Row “{row}”, worked out",
  number: "number",
  logit: "logit z",
  shifted: "z − largest",
  power: "e to the power of it",
  weight: "divided by the sum",
  sum: "sum",
  hidden: "hidden",
  reset: "0 (set)",
  shift:
    "The largest logit of the row is taken off first. That changes no weight, because numerator and sum are " +
    "divided by the same number; but without it e to the power of 1,000 would be too large for a 64-bit number.",
  hide: "Hide all keys from “{row}”",
  show: "Show “{row}” all keys",
  why:
    "A row that sees nothing: all logits of “{row}” are −∞. The largest of them is −∞ too, and −∞ − (−∞) is " +
    "{bare}: from the formula alone, the whole row and all that follows from it would be {bare}. So such a row " +
    "is given weights 0 and the output ({output}): nothing is mixed in.",
  printed:
    "Some pages print other weights for this example: 0.43, 0.14, 0.43 for 我, and 0.05, 0.26, 0.69 for 你. They are not " +
    "the softmax of these scores, whatever the scores are divided by. The scores of 我 for 我 and 爱, 4 and 0, differ by " +
    "4, and so do those of 你 for 你 and 我, 8 and 4; the two weights of a pair are then in one ratio. Here it is {own} " +
    "both times. Printed are 0.43 / 0.14 = {first} and 0.69 / 0.05 = {third}.",
  divided: "= {score} / {temperature}",
  made: "= e^({shifted}) / {total} = {power} / {total}",
  masked: "= 0: hidden, so it has no part in the sum",
  blind: "= 0: this row sees nothing",
};

const zh = {
  title: "Softmax：logits 变成权重",
  text: "每个 logit 变成 e 的幂，exp(z) = e^z，总是正数；每一行再除以这一行的和，加起来就等于 1。在这之前，缩放后的分数要先除以温度 T。",
  question: "把温度降到 0.1，再升到 10，权重会怎样变化？",
  answer: "温度低，这一行的权重集中到最大的 logit 上；温度高，各个权重越来越接近。权重的大小次序始终不变，每一行的和也始终是 1。",
  temperature: "温度 T",
  exact: "T 的精确值",
  refused: "请输入 0.000001 到 1,000,000 之间的数。",
  one: "T = 1",
  logits: "logits Z = S{scale} / T + M",
  weights: "权重 A",
  sums: "每行的和",
  working: "逐步计算“{row}”这一行",
  number: "数",
  logit: "logit z",
  shifted: "z − 最大值",
  power: "以它为指数的 e 的幂",
  weight: "除以这一行的和",
  sum: "和",
  hidden: "被遮住",
  reset: "0（规定）",
  shift: "先减去这一行里最大的 logit。分子和分母同除以一个数，所以权重不变；如果不减，e 的 1000 次方 64 位浮点数存不下。",
  hide: "对“{row}”遮住所有的键",
  show: "让“{row}”看见所有的键",
  why:
    "什么也看不见的一行：“{row}”的 logits 全是 −∞，其中最大的也是 −∞，而 −∞ − (−∞) 得到 {bare}。只按公式算，这一行以及由它算出的一切都会变成 {bare}。因此规定这样的一行权重为 0，" +
    "输出为（{output}）：什么也没有混进来。",
  printed:
    "有些网页给这个例子印的权重是：“我”0.43、0.14、0.43，“你”0.05、0.26、0.69。无论分数除以几，它们都不是这些分数的 softmax：" +
    "“我”对“我”和“爱”的分数是 4 和 0，相差 4；“你”对“你”和“我”的分数是 8 和 4，也相差 4，所以这两对权重的比应当相等。" +
    "这里两次都是 {own}，而印出来的是 0.43 / 0.14 = {first} 和 0.69 / 0.05 = {third}。",
  divided: "= {score} / {temperature}",
  made: "= e^({shifted}) / {total} = {power} / {total}",
  masked: "= 0：被遮住，不计入和",
  blind: "= 0：这一行什么也看不见",
};

const PRINTED_FOR = "[[4,0,4],[0,9,6],[4,6,8]]"; // scores of the example 我 爱 你

const LEAST = 1e-6;
const DECADES = 2; // on either side of T = 1 on the slider

// The temperature: a slider of its logarithm, a field for any other, and the way back to 1.
const makeTemperature = (speak) => {
  const set = (temperature) => change({ temperature });
  const name = document.createTextNode("");
  const range = { min: -DECADES, max: DECADES, step: 0.05 };
  const slider = makeSlider("temperature", range, (decades) => set(Number((10 ** decades).toPrecision(3))));
  const exact = numberField({
    name: "temperature-exact",
    least: LEAST,
    most: () => 1 / LEAST,
    step: "any",
    accept: set,
  });
  const one = make("button", { type: "button" });
  one.addEventListener("click", () => set(1));
  const label = make("label", { className: "field" }, name, slider);
  return {
    element: make("div", { className: "controls" }, label, exact.element, one),
    draw() {
      const { temperature } = state;
      name.data = speak("temperature");
      slider.value = String(Math.log10(temperature));
      slider.setAttribute("aria-valuetext", `T = ${format(temperature)}`);
      exact.show(temperature, { label: speak("exact"), refusal: speak("refused") });
      one.textContent = speak("one");
      one.disabled = temperature === 1;
    },
  };
};

// The chosen row, line by line: logit, less the largest, power, weight, with the sums.
const makeWorking = (speak) => {
  const table = make("table", { className: "working" });
  const caption = table.createCaption();
  const body = table.createTBody();
  const head = table.createTHead().insertRow();
  const box = make("div", { className: "wide", tabIndex: 0, role: "group" }, table);
  const cell = (text, isHidden) => make("td", { textContent: text, className: isHidden ? "hidden-cell" : "" });
  const line = (name, cells, total) =>
    make("tr", {}, make("th", { scope: "row", textContent: name }), ...cells, cell(total, false));
  return {
    element: box,
    draw(logits, visible, row, keys) {
      const { largest, powers, total, weights } = softmaxParts(logits, visible);
      caption.textContent = speak("working", { row });
      box.setAttribute("aria-label", caption.textContent);
      head.replaceChildren(
        make("th", { scope: "col", textContent: speak("number") }),
        ...[...keys, speak("sum")].map((textContent) => make("th", { scope: "col", textContent })),
      );
      const cells = (values, other) =>
        values.map((value, key) => cell(visible[key] ? format(value) : other, !visible[key]));
      const isBlind = !visible.some(Boolean);
      // what the formula gives for a row that sees nothing, before its weights are set to 0
      const bare = String(-Infinity - -Infinity);
      const [shifted, power, weight, sum] = isBlind ? [bare, bare, speak("reset"), bare] : ["−∞", "0", "0", format(total)];
      body.replaceChildren(
        line(speak("logit"), cells(logits, "−∞"), ""),
        line(speak("shifted"), cells(logits.map((value) => value - largest), shifted), ""),
        line(speak("power"), cells(powers, power), sum),
        line(speak("weight"), cells(weights, weight), format(weights.reduce((sum, value) => sum + value, 0))),
      );
    },
  };
};

export const softmaxStep = {
  id: "softmax",
  formula: () => [
    ["A", "weight"],
    " = softmax(",
    ["Z", "score"],
    "),  ",
    {
      className: "unbroken",
      parts: [
        ["a_{ij}", "weight"],
        " = exp(",
        ["z_{ij}", "score"],
        ") / Σ_{j′} exp(",
        ["z_{ij′}", "score"],
        ")",
      ],
    },
    wholeFormula(["softmax", "temperature"]),
  ],
  words: { en, zh },
  build(body, speak) {
    const temperature = makeTemperature(speak);
    const [logitMatrix, weightMatrix, sumMatrix] = ["logits", "weights", "sums"].map(makeHeadMatrix);
    const working = makeWorking(speak);
    const shift = make("p", { className: "hint" });
    const printed = make("p", { className: "hint", id: "printed-weights" });
    const toggle = make("button", { type: "button", name: "hide-row" });
    const why = make("p", { className: "warning", "aria-live": "polite" });
    const rowNames = () => state.tokens;
    const keyNames = () => state.keyTokens ?? state.tokens;
    const visibleNow = () => visibleOf(state.mask, state.tokens.length, keyNames().length);
    toggle.addEventListener("click", () => {
      const visible = visibleNow();
      const flag = visible[state.row].some(Boolean) ? 0 : 1;
      const rows = visible.map((row, at) => row.map((value) => (at === state.row ? flag : value)).join(""));
      change({ mask: { kind: "drawn", rows } });
    });
    body.append(
      temperature.element,
      make("div", { className: "matrices" }, logitMatrix.element, weightMatrix.element, sumMatrix.element),
      working.element,
      shift,
      printed,
      make("div", { className: "controls" }, toggle),
      why,
    );
    return {
      draw(numbers) {
        const { head, row } = state;
        const { scores, scaled, logits, weights, visible, output } = numbers.heads[head];
        const [rows, columns] = [rowNames(), keyNames()];
        temperature.draw();
        const options = {
          rows,
          columns,
          hidden: (query, key) => !visible[query][key],
          chosen: row,
          onChoose: (query) => change({ row: query }, { undoable: false }),
        };
        const temperatureText = format(state.temperature);
        logitMatrix.draw(head, logits, {
          ...options,
          title: speak("logits", { scale: scaleText() }),
          paint: "signed",
          symbol: "score",
          parts: (query, key) => ({
            text: speak("divided", { score: format(scaled[query][key]), temperature: temperatureText }),
            from: [],
          }),
        });
        weightMatrix.draw(head, weights, {
          ...options,
          title: speak("weights"),
          paint: "weight",
          symbol: "weight",
          parts: (query, key) => {
            const { largest, powers, total } = softmaxParts(logits[query], visible[query]);
            const from = [[`logits-${head}`, "row", query]];
            if (total === 0) return { text: speak("blind"), from };
            if (!visible[query][key]) return { text: speak("masked"), from };
            const shifted = format(logits[query][key] - largest);
            return { text: speak("made", { shifted, total: format(total), power: format(powers[key]) }), from };
          },
        });
        sumMatrix.draw(head, weights.map((line) => [line.reduce((sum, value) => sum + value, 0)]), {
          rows,
          columns: ["Σ"],
          title: speak("sums"),
          symbol: "weight",
          chosen: row,
        });
        working.draw(logits[row], visible[row], rows[row], columns);
        shift.textContent = speak("shift");
        printed.hidden = JSON.stringify(scores) !== PRINTED_FOR || !visible.flat().every(Boolean);
        const ratio = format(weights[0][0] / weights[0][1]);
        printed.textContent = printed.hidden
          ? ""
          : speak("printed", { own: ratio, first: format(0.43 / 0.14), third: format(0.69 / 0.05) });
        const isBlind = !visible[row].some(Boolean);
        toggle.textContent = speak(isBlind ? "show" : "hide", { row: rows[row] });
        why.hidden = !isBlind;
        const bare = String(-Infinity - -Infinity);
        const zeros = output[row].map(format).join(", ");
        why.textContent = isBlind ? speak("why", { row: rows[row], bare, output: zeros }) : "";
      },
    };
  },
};
