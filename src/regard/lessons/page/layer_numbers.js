// Numbers around attention in a layer: the residual, and LayerNorm; and means of heads. No DOM.

const EPSILON = 1e-5; // added to the variance, as in PyTorch

export const addResidual = (x, change) => x.map((row, at) => row.map((value, column) => value + change[at][column]));

// Each row with mean 0 and variance 1 (Ba et al. 2016, arXiv:1607.06450), without a learned gain and bias.
export const layerNorm = (rows) =>
  rows.map((row) => {
    const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
    const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length;
    return row.map((value) => (value - mean) / Math.sqrt(variance + EPSILON));
  });

// The row of one head of all layers, by its number over all of them (from 0), or of their mean: head −1.
export const rowOfHead = (weights, head) => {
  const rows = weights.flat();
  if (head >= 0) return rows[head];
  return rows[0].map((_, key) => rows.reduce((sum, row) => sum + row[key], 0) / rows.length);
};
