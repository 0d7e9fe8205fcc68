// The numbers of a recorded head, from what the page holds of its layer (lessons/recorded_heads.py), in float64: no DOM.

import { attend } from "./numbers.js";

const TYPES = { f4: Float32Array, f8: Float64Array, u1: Uint8Array };

// The arrays of a layer by name, from its bytes: of each the first bytes of all numbers, then the second ones, …
export const unpack = (bytes, arrays) => {
  const unpacked = {};
  let from = 0;
  for (const [name, type, count] of arrays) {
    const size = TYPES[type].BYTES_PER_ELEMENT;
    const whole = new Uint8Array(count * size);
    for (let plane = 0; plane < size; plane++) {
      for (let at = 0; at < count; at++) whole[at * size + plane] = bytes[from + plane * count + at];
    }
    unpacked[name] = new TYPES[type](whole.buffer);
    from += count * size;
  }
  return unpacked;
};

// The matrix of a head, as rows; of arrays that heads share, that of its group. Null where there is no such array.
export const matrixOf = (unpacked, sizes, heads, name, head) => {
  if (!unpacked[name]) return null;
  const [count, rows, columns] = sizes[name];
  const first = Math.floor((head * count) / heads) * rows * columns;
  return Array.from({ length: rows }, (_, row) =>
    Array.from(unpacked[name].subarray(first + row * columns, first + (row + 1) * columns)),
  );
};

// All steps of one head, as `attend` has them; `bias` and `sink` are null and −Infinity where it has none, `recorded` are
// the record's own weights, `difference` the largest between both.
export const workHead = (layer, unpacked, head) => {
  const heads = layer.sizes.q[0];
  const of = (name) => matrixOf(unpacked, layer.sizes, heads, name, head);
  const [queries, keys, values, bias, recorded] = ["q", "k", "v", "bias", "weights"].map(of);
  const visible = of("visible") ?? queries.map(() => keys.map(() => 1));
  const sink = layer.sinks === null ? -Infinity : layer.sinks[head];
  const { scale, softcap } = layer;
  const options = { score: { kind: "dot" }, scale, temperature: 1, visible, softcap, bias, sink };
  const steps = attend(queries, keys, values, options);
  const differences = steps.weights.flatMap((row, at) => row.map((weight, key) => Math.abs(weight - recorded[at][key])));
  const difference = differences.reduce((most, value) => Math.max(most, value), 0);
  return { ...steps, bias, sink, recorded, difference };
};

// The products of a pair's numbers that make its score: the largest few, by size, and the sum of the others.
export const largestProducts = (query, key, count) => {
  const products = query.map((value, at) => ({ at, query: value, key: key[at], product: value * key[at] }));
  const sorted = [...products].sort((one, other) => Math.abs(other.product) - Math.abs(one.product));
  const others = sorted.slice(count);
  return {
    largest: sorted.slice(0, count),
    others: others.length,
    rest: others.reduce((sum, { product }) => sum + product, 0),
    total: products.reduce((sum, { product }) => sum + product, 0),
  };
};

// The indices of the largest numbers of a row, at most `count` of them, and `chosen`, in their own order.
export const strongest = (row, count, chosen) => {
  if (row.length <= count) return row.map((_, at) => at);
  const sorted = row.map((_, at) => at).sort((one, other) => row[other] - row[one]);
  return [...new Set([...sorted.slice(0, count), chosen])].sort((one, other) => one - other);
};
