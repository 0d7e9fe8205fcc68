// The formula of the whole road, softmax(Q Kᵀ · scale / T + M) V, with the score and the scale of the moment. Each step
// marks its own part of it.

import { format } from "./number_text.js";
import { state } from "./state.js";

const USUAL = { dot: " / √d", cosine: " / τ", additive: "", bilinear: "" };

// What the scale does to the scores, as it is written after them.
export const scaleText = () => {
  const { scale, score } = state;
  if (scale === "none") return "";
  if (scale === "default") return USUAL[score.kind];
  return ` · ${scale < 0 ? `(${format(scale)})` : format(scale)}`;
};

// `own` are names of the parts that are marked: output, softmax, queries, keys (or "scores" where they are no dot
// product), scale, temperature, mask, values. `index` is that of a head.
export const wholeFormula = (own, index = "") => {
  const isDot = state.score.kind === "dot";
  const scores = isDot
    ? [
        ["queries", [[`Q${index}`, "query"]]],
        ["keys", [" ", [`K${index}^⊤`, "key"]]],
      ]
    : [["scores", [[`S${index}`, "score"]]]];
  const parts = [
    ["output", [[`O${index}`, "output"]]],
    ["", [" = "]],
    ["softmax", [["softmax", "weight"], "("]],
    ...scores,
    ["scale", [scaleText()]],
    ["temperature", [" / T"]],
    ["mask", [" + ", ["M", "mask"]]],
    ["softmax", [")"]],
    ["", [" "]],
    ["values", [[`V${index}`, "value"]]],
  ];
  const marked = [...own, ...(own.includes("queries") && own.includes("keys") ? ["scores"] : [])];
  return {
    className: "whole",
    parts: parts.map(([name, inner]) => (marked.includes(name) ? { tag: "mark", parts: inner } : { parts: inner })),
  };
};
