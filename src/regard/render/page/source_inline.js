// The source of a page that is a file: its numbers are in the page, one blob a layer, inflated when first needed.

import { start } from "./main.js";

const WHOLE = 65536; // cells a side: a matrix is one tile
const meta = JSON.parse(document.getElementById("meta").textContent);

const inflate = async (id) => {
  const binary = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

// Two planes of bytes, the high ones first, as integers.
const joined = (bytes, start, count) => {
  const values = new Uint16Array(count);
  for (let i = 0; i < count; i++) values[i] = (bytes[start + i] << 8) | bytes[start + count + i];
  return values;
};

const blobs = new Map();
const blobOf = (number) => {
  if (!blobs.has(number)) blobs.set(number, unpackLayer(meta.layers[number], `layer-${number}`));
  return blobs.get(number);
};

const unpackLayer = async (spec, id) => {
  const [, heads, queries, keys] = spec.size;
  const bytes = await inflate(id);
  if (spec.exact) return { weights: joined(bytes, 0, heads * queries * keys) };
  const count = heads * queries * spec.top;
  const [topKeys, topWeights] = [joined(bytes, 0, count), joined(bytes, 2 * count, count)];
  return { topKeys, topWeights, map: bytes.subarray(4 * count) };
};

// One weight; NaN where only stronger ones of its row are in the page.
const weightAt = (spec, blob, head, query, key) => {
  const [, , queries, keys] = spec.size;
  const at = head * queries + query;
  if (spec.exact) return blob.weights[at * keys + key] / spec.unit;
  for (let i = at * spec.top; i < (at + 1) * spec.top; i++) {
    if (blob.topKeys[i] === key && blob.topWeights[i]) return blob.topWeights[i] / spec.unit;
  }
  return NaN;
};

const rowOf = (spec, blob, head, query) => {
  const keys = spec.size[3];
  const at = head * spec.size[2] + query;
  if (spec.exact) return Float32Array.from(blob.weights.subarray(at * keys, (at + 1) * keys), (one) => one / spec.unit);
  const row = new Float32Array(keys).fill(NaN);
  for (let i = at * spec.top; i < (at + 1) * spec.top; i++) {
    if (blob.topWeights[i]) row[blob.topKeys[i]] = blob.topWeights[i] / spec.unit;
  }
  return row;
};

// What remains of a row without the sinks, and infinity where nothing does, so that the row becomes 0.
const remaining = (spec, blob, head, query) => {
  const rest = spec.sinks.reduce((left, { key }) => left - (weightAt(spec, blob, head, query, key) || 0), 1);
  return rest > 1e-6 ? rest : Infinity;
};

const withoutSinks = (spec, blob, head, query) => {
  const rest = remaining(spec, blob, head, query);
  const row = rowOf(spec, blob, head, query).map((weight) => weight / rest);
  for (const { key } of spec.sinks) row[key] = 0;
  return row;
};

// The finest cells: single weights, or the stored map, whose rows are then divided together.
const finestCells = (spec, blob, head, sinks) => {
  const [, , queries, keys] = spec.size;
  if (spec.exact) {
    const values = new Float32Array(queries * keys);
    const rowWith = sinks ? rowOf : withoutSinks;
    for (let query = 0; query < queries; query++) values.set(rowWith(spec, blob, head, query), query * keys);
    return { rows: queries, columns: keys, values };
  }
  const [rows, columns] = spec.map;
  const bytes = blob.map.subarray(head * rows * columns, (head + 1) * rows * columns);
  const values = Float32Array.from(bytes, (byte) => (byte / 255) ** 2);
  if (!sinks) divideBins(spec, (query) => remaining(spec, blob, head, query), { rows, columns, values });
  return { rows, columns, values };
};

const divideBins = (spec, rest, { rows, columns, values }) => {
  const [down, across] = spec.bins;
  for (let row = 0; row < rows; row++) {
    const [from, to] = [row * down, Math.min((row + 1) * down, spec.size[2])];
    let sum = 0;
    for (let query = from; query < to; query++) sum += rest(query) === Infinity ? 0 : rest(query);
    const mean = sum / (to - from) || Infinity;
    for (let column = 0; column < columns; column++) values[row * columns + column] /= mean;
    for (const { key } of spec.sinks) values[row * columns + Math.floor(key / across)] = NaN;
  }
};

// Cells merged two by two along the axes given: the largest, or the mean.
const merged = ({ rows, columns, values }, down, across, pool) => {
  const [fewer, narrower] = [Math.ceil(rows / down), Math.ceil(columns / across)];
  const [sums, counts] = [new Float32Array(fewer * narrower), new Float32Array(fewer * narrower)];
  values.forEach((value, i) => {
    const cell = Math.floor(Math.floor(i / columns) / down) * narrower + Math.floor((i % columns) / across);
    sums[cell] = pool === "max" ? Math.max(sums[cell], value) : sums[cell] + value;
    counts[cell] += 1;
  });
  return { rows: fewer, columns: narrower, values: pool === "max" ? sums : sums.map((sum, i) => sum / counts[i]) };
};

const cellOf = (layer, step) => ({ down: Math.max(step, layer.bins[0]), across: Math.max(step, layer.bins[1]) });

const cellsAt = async ({ layer, head }, step, pool, sinks) => {
  const spec = meta.layers[layer];
  const finest = finestCells(spec, await blobOf(layer), head, sinks);
  const { down, across } = cellOf(spec, step);
  return merged(finest, down / spec.bins[0], across / spec.bins[1], pool);
};

const topsOf = async (place, sinks) => {
  const spec = meta.layers[place.layer];
  const tops = { max: {}, mean: {} };
  for (const pool of inlineSource.pools(spec)) {
    for (let step = spec.finest; step === spec.finest || step < Math.max(...spec.size.slice(2)); step *= 2) {
      tops[pool][step] = (await cellsAt(place, step, pool, sinks)).values.reduce(
        (most, one) => (one > most ? one : most),
        0,
      );
    }
  }
  return tops;
};

// The tokens of a stream, or numbers for a layer of more or fewer positions, which may be pooled or chosen ones.
const named = (stream, count) => {
  if (stream.texts.length === count) return stream;
  const texts = Array.from({ length: count }, (_, position) => String(position));
  return { texts, marks: "1".repeat(count), words: [], prompt: null };
};

const heads = new Map();
let thumbs = null;

const inlineSource = {
  digits: 4,
  cellDigits: 2, // of pooled maps, whose roots are in bytes
  finest: "finestPage",
  pause: 0,
  initial: { ...meta.focus, words: true },
  pools: (layer) => (layer.exact ? ["max", "mean"] : ["max"]),
  records: async () => {
    if (typeof DecompressionStream === "undefined") throw new Error("noInflate");
    return { name: "", model: null, records: [meta] };
  },
  tokens: async ({ layer }) => {
    const { streams, size } = meta.layers[layer];
    const same = streams[0] === streams[1] && size[2] === size[3];
    return {
      same,
      queries: named(meta.streams[streams[0]], size[2]),
      keys: same ? null : named(meta.streams[streams[1]], size[3]),
    };
  },
  head: async (place) => {
    const { finest, sinks, patterns, statistics } = meta.layers[place.layer];
    const name = `${place.layer} ${place.head}`;
    if (!heads.has(name)) {
      const [tops, without] = [await topsOf(place, true), sinks.length ? await topsOf(place, false) : null];
      const ofHead = { pattern: patterns[place.head], statistics: statistics[place.head] };
      heads.set(name, { finest, sinks, ...ofHead, tops, without });
    }
    return heads.get(name);
  },
  weight: async ({ layer, head }, query, key) => {
    const [spec, blob] = [meta.layers[layer], await blobOf(layer)];
    const weight = weightAt(spec, blob, head, query, key);
    if (!Number.isNaN(weight)) {
      const without = spec.sinks.length ? withoutSinks(spec, blob, head, query)[key] : null;
      return { weight, without, below: null };
    }
    const end = (head * spec.size[2] + query + 1) * spec.top;
    return {
      weight: null,
      without: null,
      below: Math.min(...blob.topWeights.subarray(end - spec.top, end)) / spec.unit,
    };
  },
  line: async ({ layer, head }, axis, at, sinks) => {
    const [spec, blob] = [meta.layers[layer], await blobOf(layer)];
    if (axis === "row") return (sinks ? rowOf : withoutSinks)(spec, blob, head, at);
    const sunk = !sinks && spec.sinks.some(({ key }) => key === at);
    const one = (query) => weightAt(spec, blob, head, query, at) / (sinks ? 1 : remaining(spec, blob, head, query));
    return Float32Array.from({ length: spec.size[2] }, (_, query) => (sunk ? 0 : one(query)));
  },
  tile: async (place, step, row, column, pool, sinks) => (await cellsAt(place, step, pool, sinks)).values,
  cell: (layer, step) => ({ ...cellOf(layer, step), side: WHOLE }),
  thumbs: async ({ layer }) => {
    thumbs ??= await inflate("thumbs");
    let from = 0;
    for (const { size } of meta.layers.slice(0, layer)) from += 2 + size[1] * thumbs[from] * thumbs[from + 1];
    return thumbs.subarray(from);
  },
};

start(inlineSource);
