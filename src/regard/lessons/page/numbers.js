// All numbers of a lesson from its state, in float64: no DOM, no library. A matrix is an array of rows.

import { visibleOf } from "./masks.js";

export const multiply = (a, b) =>
  a.map((row) => {
    const sums = new Array(b[0].length).fill(0);
    for (let at = 0; at < row.length; at += 1) {
      const [factor, other] = [row[at], b[at]];
      for (let column = 0; column < sums.length; column += 1) sums[column] += factor * other[column];
    }
    return sums;
  });
export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
export const transpose = (a) => a[0].map((_, column) => a.map((row) => row[column]));
const add = (a, b) => a.map((row, at) => row.map((value, column) => value + b[at][column]));
const map = (a, change) => a.map((row, at) => row.map((value, column) => change(value, at, column)));
const sum = (values) => values.reduce((total, value) => total + value, 0);

// Sines and cosines of the positions 0 … length − 1, in turn, each pair slower (Vaswani et al. 2017, 3.5).
export const sinusoidal = (length, width) =>
  Array.from({ length }, (_, position) =>
    Array.from({ length: width }, (_, column) => {
      const angle = position * 10000 ** (-(column - (column % 2)) / width);
      return column % 2 ? Math.cos(angle) : Math.sin(angle);
    }),
  );

// How a row becomes weights: the largest logit is taken off before the powers, so that none of them overflows. A row
// that sees nothing has no largest logit, and weights of 0. A sink is one more logit, whose weight goes to no value.
export const softmaxParts = (row, visible, sink = -Infinity) => {
  const largest = row.reduce((most, value, key) => (visible[key] && value > most ? value : most), sink);
  if (largest === -Infinity) return { largest, powers: row.map(() => 0), total: 0, weights: row.map(() => 0) };
  const powers = row.map((value, key) => (visible[key] ? Math.exp(value - largest) : 0));
  const total = sum(powers) + Math.exp(sink - largest);
  return { largest, powers, total, weights: powers.map((power) => power / total) };
};
// The softmax of each row over the keys that are visible.
export const softmax = (rows, visible, sink) =>
  rows.map((row, query) => softmaxParts(row, visible[query], sink).weights);

// x / |x| of each row, 0 where x is 0; divided by its largest number first, so that no square overflows or vanishes.
const unit = (rows) =>
  rows.map((row) => {
    const peak = row.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    if (peak === 0) return row.map(() => 0);
    const near = row.map((value) => value / peak);
    const length = Math.sqrt(near.reduce((total, value) => total + value * value, 0));
    return near.map((value) => value / length);
  });

const dot = (queries, keys) => multiply(queries, transpose(keys));

// Scores of all pairs; where queries and keys are changed first, these too.
const SCORES = {
  dot: (_, queries, keys) => ({ scores: dot(queries, keys) }),
  // v · tanh(W q + U k)
  additive: ({ query, key, vector }, queries, keys) => {
    const [projectedQueries, projectedKeys] = [dot(queries, query), dot(keys, key)];
    const score = (a, b) => vector.reduce((total, factor, at) => total + factor * Math.tanh(a[at] + b[at]), 0);
    const scores = projectedQueries.map((a) => projectedKeys.map((b) => score(a, b)));
    return { projectedQueries, projectedKeys, scores };
  },
  // q · W · k
  bilinear: ({ weight }, queries, keys) => {
    const projectedQueries = multiply(queries, weight);
    return { projectedQueries, scores: dot(projectedQueries, keys) };
  },
  cosine: (_, queries, keys) => {
    const [projectedQueries, projectedKeys] = [unit(queries), unit(keys)];
    return { projectedQueries, projectedKeys, scores: dot(projectedQueries, projectedKeys) };
  },
};

// The factor on the scores. By default 1/√d for the dot product, 1/0.1 for cosines, and 1 for learned scores.
export const scaleOf = (scale, score, width) => {
  if (typeof scale === "number") return scale;
  if (scale === "none") return 1;
  return { dot: 1 / Math.sqrt(width), cosine: 1 / 0.1, additive: 1, bilinear: 1 }[score.kind];
};

// Attention from queries (n × d), keys (m × d) and values (m × dv, or null: then there is no output) on. `scale` is a
// number here, or one for each query; `visible` is n × m. A head of a real model may have a soft cap on its scaled
// scores (`capped`, else null), a bias (n × m) and a sink.
export const attend = (queries, keys, values, options) => {
  const { score, scale, temperature, visible, softcap = null, bias = null, sink = -Infinity } = options;
  const scored = SCORES[score.kind](score, queries, keys);
  const scaleAt = (query) => (Array.isArray(scale) ? scale[query] : scale);
  const scaled = map(scored.scores, (value, query) => value * scaleAt(query));
  const capped = softcap === null ? null : map(scaled, (value) => softcap * Math.tanh(value / softcap));
  const biased = bias === null ? (capped ?? scaled) : add(capped ?? scaled, bias);
  const logits = map(biased, (value) => value / temperature);
  const weights = softmax(logits, visible, sink / temperature);
  const output = values && multiply(weights, values);
  return { queries, keys, values, ...scored, scaled, capped, logits, visible, weights, output };
};

// The first matrix with a number that float64 does not have, as the page names it, or null.
const overflowing = ({ x, keyX, valueX, heads, joined, result }) => {
  const parts = ["queries", "keys", "values", "scores", "scaled", "logits", "weights", "output"];
  const named = [["x", x], ["keyX", keyX], ["valueX", valueX]];
  heads.forEach((head, at) => named.push(...parts.map((part) => [`${part}-${at}`, head[part]])));
  named.push(["joined", joined], ["result", result ?? []]);
  return named.find(([, matrix]) => !matrix.every((row) => row.every(Number.isFinite)))?.[0] ?? null;
};

// Everything that the page shows. `x`, `keyX` and `valueX` have positions added, where they are; `scale` is the factor
// as a number; `overflow` names the first matrix whose numbers are too large for float64, or is null.
export const compute = (state) => {
  const placed = (rows) => (state.positions === "none" ? rows : add(rows, sinusoidal(rows.length, rows[0].length)));
  const x = placed(state.x);
  const keyX = state.keyX === null ? x : placed(state.keyX);
  const valueX = state.valueX === null ? keyX : placed(state.valueX);
  const projections = state.heads ?? [null];
  const width = projections[0] === null ? x[0].length : projections[0].query[0].length;
  const options = {
    score: state.score,
    scale: scaleOf(state.scale, state.score, width),
    temperature: state.temperature,
    visible: visibleOf(state.mask, x.length, keyX.length),
  };
  const heads = projections.map((head) =>
    head === null
      ? attend(x, keyX, valueX, options)
      : attend(multiply(x, head.query), multiply(keyX, head.key), multiply(valueX, head.value), options),
  );
  const joined = x.map((_, row) => heads.flatMap(({ output }) => output[row]));
  const numbers = {
    positions: state.positions === "none" ? null : sinusoidal(x.length, x[0].length),
    x,
    keyX,
    valueX,
    scale: options.scale,
    heads,
    joined,
    result: state.output === null ? null : multiply(joined, state.output),
  };
  return { ...numbers, overflow: overflowing(numbers) };
};
