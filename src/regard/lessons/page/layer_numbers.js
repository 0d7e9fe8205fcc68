// Numbers around attention in a layer: the residual, and LayerNorm; and means of heads. No DOM.

import { mean } from "./numbers.js";

const EPSILON = 1e-5; // added to the variance, as in PyTorch

export const addResidual = (x, change) => x.map((row, at) => row.map((value, column) => value + change[at][column]));

// Mean and variance of a row.
export const momentsOf = (row) => {
  const centre = mean(row);
  return { centre, variance: mean(row.map((value) => (value - centre) ** 2)) };
};

// Each row with mean 0 and variance 1 (Ba et al. 2016, arXiv:1607.06450), without a learned gain and bias.
export const layerNorm = (rows) =>
  rows.map((row) => {
    const { centre, variance } = momentsOf(row);
    return row.map((value) => (value - centre) / Math.sqrt(variance + EPSILON));
  });

// The row of one head of all layers, by its number over all of them (from 0), or of their mean: head −1.
export const rowOfHead = (weights, head) => {
  const rows = weights.flat();
  if (head >= 0) return rows[head];
  return rows[0].map((_, key) => mean(rows.map((row) => row[key])));
};
