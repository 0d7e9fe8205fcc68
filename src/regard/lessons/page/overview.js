// The road on a small scale: a picture of each stage, which follows every edit and leads to its step.

import { drawCells, lineColours } from "./cell_colours.js";
import { addressOfStep, state } from "./state.js";

const SIDE = 30; // pixels of a picture

// A stage: its symbol, its step, whose matrix it shows, and how it is painted.
const STAGES = [
  { name: "X", symbol: "x", step: "vectors", of: ({ x }) => x, paint: "signed" },
  { name: "Q", symbol: "query", step: "projections", of: (_, head) => head.queries, paint: "signed", arrow: "→" },
  { name: "K", symbol: "key", step: "projections", of: (_, head) => head.keys, paint: "signed" },
  { name: "V", symbol: "value", step: "projections", of: (_, head) => head.values, paint: "signed" },
  { name: "S", symbol: "score", step: "scores", of: (_, head) => head.scores, paint: "signed", arrow: "→" },
  { name: "A", symbol: "weight", step: "softmax", of: (_, head) => head.weights, paint: "weight", arrow: "→" },
  { name: "O", symbol: "output", step: "mixing", of: (_, head) => head.output, paint: "signed", arrow: "→" },
];

const paintStage = (canvas, values, paint) => {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  const side = SIDE * ratio;
  if (canvas.width !== side) Object.assign(canvas, { width: side, height: side });
  const pen = canvas.getContext("2d");
  drawCells(pen, values, { paint }, [0, 0, side, side]);
  // the row that is looked at
  const height = side / values.length;
  pen.strokeStyle = lineColours().edge;
  pen.lineWidth = ratio * 1.5;
  if (state.row < values.length) pen.strokeRect(1, state.row * height + 1, side - 2, Math.max(1, height - 2));
};

// `titleOf(step)` names a step in the language of the moment, or is null for one that this page lacks.
export const makeOverview = (element, titleOf, goTo) => {
  const stages = STAGES.map((stage) => {
    const link = Object.assign(document.createElement("a"), { className: "stage", href: `#step-${stage.step}` });
    link.dataset.stage = stage.name;
    link.classList.add(`symbol-${stage.symbol}`);
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    link.append(canvas, Object.assign(document.createElement("span"), { textContent: stage.name }));
    // the address of the moment, for a new tab or a copy of the link
    for (const act of ["pointerenter", "focus"]) {
      link.addEventListener(act, () => (link.href = addressOfStep(stage.step)));
    }
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      goTo(stage.step);
    });
    const arrow = Object.assign(document.createElement("span"), { className: "arrow", textContent: stage.arrow ?? "" });
    arrow.setAttribute("aria-hidden", "true");
    element.append(arrow, link);
    return { ...stage, link, canvas, arrow };
  });
  return {
    draw(numbers) {
      const head = numbers.heads[state.head];
      for (const { of, paint, canvas, link, arrow, name, step } of stages) {
        paintStage(canvas, of(numbers, head), paint);
        const title = titleOf(step);
        link.hidden = arrow.hidden = title === null;
        if (title !== null) link.setAttribute("aria-label", `${name}: ${title}`);
      }
    },
    mark(step) {
      for (const stage of stages) {
        if (stage.step === step) stage.link.setAttribute("aria-current", "step");
        else stage.link.removeAttribute("aria-current");
      }
    },
  };
};
