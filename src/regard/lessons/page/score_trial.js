// A row of scaled scores that the reader types, its softmax, and what is left of the gradient.

import { make } from "./elements.js";
import { makeMatrix } from "./matrix.js";
import { format, formatExactly } from "./number_text.js";
import { softmaxParts } from "./numbers.js";
import { MOST_SCORES } from "./own_ranges.js";
import { complements, gradientSize, jacobian } from "./score_experiment.js";
import { change, state } from "./state.js";

const own = () => state.scoresStep;

const PRESETS = [
  [100, 1, 1],
  [10, 1, 1],
  [1, 1, 1],
];

// What is said of the largest weight: what is missing from 1 where it is near 1, else the weight.
const NEAR = 0.1;
const sentenceOf = (left, shown, count) => {
  if (left === 0 && count > 1) return "leftNothing";
  if (shown === 1 && left > 0) return "leftHidden";
  return left < NEAR && left > 0 ? "left" : "largestIs";
};

// A row of scaled scores that the reader types, with its weights and its gradient.
export const makeTrial = (speak) => {
  const heading = make("h3");
  const text = make("p");
  const set = (scores) => change({ scoresStep: { ...own(), scores } });
  const [scores, weights, gradient] = ["trial-scores", "trial-weights", "trial-gradient"].map(makeMatrix);
  const add = make("button", { type: "button", name: "add-score" });
  const remove = make("button", { type: "button", name: "remove-score" });
  const tenth = make("button", { type: "button", name: "divide-scores" });
  add.addEventListener("click", () => set([...own().scores, 1]));
  remove.addEventListener("click", () => set(own().scores.slice(0, -1)));
  tenth.addEventListener("click", () => set(own().scores.map((score) => score / 10)));
  const presets = PRESETS.map((values) => {
    const button = make("button", { type: "button" });
    button.addEventListener("click", () => set(values));
    return { values, button };
  });
  const result = make("p", { className: "trial-result", "aria-live": "polite" });
  return {
    element: make(
      "div",
      { className: "trial" },
      heading,
      text,
      make("div", { className: "controls" }, ...presets.map(({ button }) => button), tenth, add, remove),
      make("div", { className: "matrices" }, scores.element, weights.element, gradient.element),
      result,
    ),
    draw() {
      const row = own().scores;
      const parts = softmaxParts(row, row.map(() => 1));
      const size = gradientSize(parts.weights);
      heading.textContent = speak("trial");
      text.textContent = speak("trialText");
      scores.draw([row], {
        title: speak("trialScores"),
        rows: [" "],
        symbol: "score",
        edit: (_, column, value) => set(row.map((score, at) => (at === column ? value : score))),
      });
      weights.draw([parts.weights], {
        title: speak("trialWeights"),
        rows: [" "],
        paint: "weight",
        symbol: "weight",
        parts: (_, column) => {
          const shifted = format(row[column] - parts.largest);
          const made = `${format(parts.powers[column])} / ${format(parts.total)}`;
          return { text: `= e^(${shifted}) / Σ = ${made} = ${formatExactly(parts.weights[column])}`, from: [] };
        },
      });
      gradient.draw(jacobian(parts.weights), { title: speak("trialJacobian"), paint: "signed", symbol: "weight" });
      for (const { values, button } of presets) button.textContent = speak("preset", { scores: values.join(", ") });
      tenth.textContent = speak("trialDivided");
      add.textContent = speak("add");
      add.disabled = row.length >= MOST_SCORES;
      remove.textContent = speak("remove");
      remove.disabled = row.length <= 1;
      const at = parts.weights.indexOf(Math.max(...parts.weights));
      const left = complements(parts.weights)[at];
      const shown = parts.weights[at];
      const sentence = speak(sentenceOf(left, shown, row.length), { left: format(left), shown: format(shown) });
      const sizeText = speak("sizeOf", { size: formatExactly(size) });
      const digits = speak("exactly", { weights: parts.weights.map(formatExactly).join(", ") });
      result.textContent = [digits, sentence, sizeText].join(state.language === "zh" ? "" : " ");
      result.values = { left, size };
    },
  };
};
