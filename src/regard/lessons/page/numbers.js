// All numbers of a lesson from its state, in float64: no DOM, no library. A matrix is an array of rows.

export const multiply = (a, b) =>
  a.map((row) => b[0].map((_, column) => row.reduce((sum, value, at) => sum + value * b[at][column], 0)));
export const transpose = (a) => a[0].map((_, column) => a.map((row) => row[column]));

// The softmax of each row over the keys that are visible; a row that sees nothing has weights of 0.
export const softmax = (rows, visible) =>
  rows.map((row, query) => {
    const seen = row.map((value, key) => (visible[query][key] ? value : -Infinity));
    const largest = Math.max(...seen);
    if (largest === -Infinity) return row.map(() => 0);
    const powers = seen.map((value) => Math.exp(value - largest));
    const total = powers.reduce((sum, value) => sum + value, 0);
    return powers.map((value) => value / total);
  });

const scaleOf = (state, dim) => (state.scale === "default" ? 1 / Math.sqrt(dim) : state.scale);

const visibleOf = (mask, queries, keys) =>
  Array.from({ length: queries }, (_, query) =>
    Array.from({ length: keys }, (_, key) => mask.kind !== "causal" || key <= query),
  );

const head = (state, x, { query, key, value }) => {
  const [queries, keys, values] = [multiply(x, query), multiply(x, key), multiply(x, value)];
  const scores = multiply(queries, transpose(keys));
  const scale = scaleOf(state, queries[0].length);
  const scaled = scores.map((row) => row.map((score) => score * scale));
  const logits = scaled.map((row) => row.map((score) => score / state.temperature));
  const visible = visibleOf(state.mask, x.length, x.length);
  const weights = softmax(logits, visible);
  return { queries, keys, values, scores, scaled, logits, visible, weights, output: multiply(weights, values) };
};

// Everything that the page shows. `x` is X with positions added, where they are.
export const compute = (state) => {
  const { x } = state;
  const heads = state.heads.map((projections) => head(state, x, projections));
  const joined = x.map((_, row) => heads.flatMap(({ output }) => output[row]));
  return { positions: null, x, heads, joined, result: state.output ? multiply(joined, state.output) : null };
};
