// What happens to q·k, and to the softmax of 8 of them, as vectors of random numbers become wider. No DOM.

import { random } from "./chance.js";
import { mean, softmaxParts } from "./numbers.js";

export const WIDTHS = Array.from({ length: 11 }, (_, power) => 2 ** power);
export const KEYS = 8; // of each query
const QUERIES = 512;
export const PAIRS = QUERIES * KEYS;
const VISIBLE = Array(KEYS).fill(1);

export const entropy = (weights) => -weights.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);

// 1 − p of each weight as the sum of the others, which keeps what 1 − p itself would round away.
export const complements = (weights) =>
  weights.map((_, at) => weights.reduce((sum, p, other) => (other === at ? sum : sum + p), 0));

// The softmax's Jacobian, diag(p) − p pᵀ: how much each weight moves with each score.
export const jacobian = (weights) => {
  const rest = complements(weights);
  return weights.map((p, row) => weights.map((other, column) => (row === column ? p * rest[row] : -p * other)));
};

// Its Frobenius norm. Entries are divided by the largest of them first, so that none of their squares vanishes.
export const gradientSize = (weights) => {
  const rows = jacobian(weights);
  let largest = 0;
  for (const row of rows) for (const entry of row) largest = Math.max(largest, Math.abs(entry));
  if (largest === 0) return 0;
  let squares = 0;
  for (const row of rows) for (const entry of row) squares += (entry / largest) ** 2;
  return largest * Math.sqrt(squares);
};


// Of the softmax of each query's scores times `factor`: means over the queries, and the weights of each.
const closing = (products, factor) => {
  const rows = Array.from({ length: QUERIES }, (_, query) =>
    softmaxParts(Array.from(products.subarray(query * KEYS, (query + 1) * KEYS), (value) => value * factor), VISIBLE),
  ).map(({ weights }) => weights);
  return {
    largest: mean(rows.map((row) => Math.max(...row))),
    entropy: mean(rows.map(entropy)),
    gradient: mean(rows.map(gradientSize)),
    rows,
  };
};

// The query whose largest weights, not divided and divided, are nearest to their means: its weights show what is usual.
const usualQuery = (kinds) => {
  const distances = kinds[0].rows.map((_, query) =>
    kinds.reduce((sum, { rows, largest }) => sum + Math.abs(Math.max(...rows[query]) - largest), 0),
  );
  return distances.indexOf(Math.min(...distances));
};

// The variance of all products, which have mean 0; and the softmax of them as they are and divided by √d.
const measure = (products, width) => {
  const kinds = [closing(products, 1), closing(products, 1 / Math.sqrt(width))];
  const query = usualQuery(kinds);
  const [plain, divided] = kinds.map(({ rows, ...means }) => ({ ...means, weights: rows[query] }));
  return { width, variance: mean(Array.from(products, (product) => product * product)), query, plain, divided };
};

// Measurements for the widths up to one. The numbers are uniform between −√3 and √3: mean 0 and variance 1. Wider
// vectors begin with the numbers of narrower ones, so that only what is new is drawn.
const makeExperiment = (seed) => {
  const chance = random(seed);
  const draw = () => (2 * chance() - 1) * Math.sqrt(3);
  const products = new Float64Array(PAIRS);
  const results = [];
  let width = 0;
  const widen = () => {
    for (let query = 0; query < QUERIES; query += 1) {
      const entry = draw();
      for (let key = 0; key < KEYS; key += 1) products[query * KEYS + key] += entry * draw();
    }
    width += 1;
  };
  return (upTo) => {
    while (results.length < WIDTHS.length && WIDTHS[results.length] <= upTo) {
      while (width < WIDTHS[results.length]) widen();
      results.push(measure(products, width));
    }
    return results.filter((result) => result.width <= upTo);
  };
};

const experiments = new Map();
// [{ width, variance, query, plain, divided }] of the widths up to one, the same for each seed.
export const experiment = (seed, upTo) => {
  if (!experiments.has(seed)) {
    experiments.clear(); // one at a time is looked at
    experiments.set(seed, makeExperiment(seed));
  }
  return experiments.get(seed)(upTo);
};
