"use strict";
// The record: its description, and its layers, inflated when they are first asked for.

const byId = (id) => document.getElementById(id);
// Right-to-left names do not reorder what is beside them.
const apart = (text) => Object.assign(document.createElement("bdi"), { textContent: text });
const meta = JSON.parse(byId("meta").textContent);

const inflate = async (id) => {
  const binary = atob(byId(id).textContent);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

const joined = (bytes, start, count) => {
  const values = new Uint16Array(count);
  for (let i = 0; i < count; i++) values[i] = (bytes[start + i] << 8) | bytes[start + count + i];
  return values;
};

const loading = new Map();
const ready = new Map();

const load = (number) => {
  if (!loading.has(number)) loading.set(number, unpack(number));
  return loading.get(number);
};

const unpack = async (number) => {
  const spec = meta.layers[number];
  const [heads, queries, keys] = spec.size;
  const bytes = await inflate(`layer-${number}`);
  if (spec.exact) {
    ready.set(number, { weights: joined(bytes, 0, heads * queries * keys) });
    return;
  }
  const count = heads * queries * spec.top;
  ready.set(number, {
    topKeys: joined(bytes, 0, count),
    topWeights: joined(bytes, 2 * count, count),
    map: bytes.subarray(4 * count),
  });
};

// A unit is what the page shows as one thing: a word, or a token when words are not merged.
const unitCache = new Map();
const units = (stream, merged) => {
  const name = `${merged ? "words" : "tokens"} ${stream}`;
  if (!unitCache.has(name)) {
    const { texts, special, space, words, prompt } = meta.streams[stream];
    const list = merged
      ? words.map(([text, start, stop]) => ({ text, start, stop, special: special[start], space: space[start], piece: false }))
      : texts.map((text, at) => ({ text, start: at, stop: at + 1, special: special[at], space: space[at], piece: false }));
    for (const unit of list) unit.written = prompt !== null && unit.start >= prompt;
    const of = new Int32Array(texts.length);
    list.forEach((unit, index) => of.fill(index, unit.start, unit.stop));
    if (!merged) words.forEach(([, start, stop]) => { for (let at = start; at < stop; at++) list[at].piece = stop - start > 1; });
    unitCache.set(name, { list, of });
  }
  return unitCache.get(name);
};

// Weights of one row, by key unit: the mean over the pieces of the query, the sum over the pieces of each key.
const row = (at, query, merged) => {
  const spec = meta.layers[at.layer];
  const [, queries, keys] = spec.size;
  const seen = ready.get(at.layer);
  const { of } = units(spec.keys, merged);
  const share = 1 / (spec.unit * (query.stop - query.start));
  const sums = new Map();
  const add = (key, weight) => { if (weight) sums.set(of[key], (sums.get(of[key]) || 0) + weight * share); };
  for (let piece = query.start; piece < Math.min(query.stop, queries); piece++) {
    const line = at.head * queries + piece;
    if (spec.exact) {
      for (let key = 0; key < keys; key++) add(key, seen.weights[line * keys + key]);
    } else {
      for (let i = line * spec.top; i < (line + 1) * spec.top; i++) add(seen.topKeys[i], seen.topWeights[i]);
    }
  }
  return sums;
};

const best = (sums, count) => [...sums].sort((one, other) => other[1] - one[1]).slice(0, count);

// The heat map of one head: over units where every weight is at hand, over bins of tokens elsewhere.
const mapOf = (at, merged) => {
  const spec = meta.layers[at.layer];
  if (spec.exact) {
    const queries = units(spec.queries, merged).list.filter((unit) => unit.start < spec.size[1]);
    const keys = units(spec.keys, merged).list.filter((unit) => unit.start < spec.size[2]);
    const values = new Float32Array(queries.length * keys.length);
    queries.forEach((query, i) => row(at, query, merged).forEach((weight, j) => { values[i * keys.length + j] = weight; }));
    return { rows: queries.length, columns: keys.length, values, queries, keys, exact: true };
  }
  const [rows, columns] = spec.map;
  const bytes = ready.get(at.layer).map;
  const values = new Float32Array(rows * columns);
  const start = at.head * rows * columns;
  for (let i = 0; i < values.length; i++) values[i] = (bytes[start + i] / 255) ** 2;
  const bins = (stream, count, size, total) => Array.from({ length: count }, (_, bin) => {
    const first = bin * size;
    const last = Math.min(first + size, total) - 1;
    const texts = meta.streams[stream].texts;
    const name = last > first ? `tokens ${first}–${last} (${texts[first]} … ${texts[last]})` : texts[first];
    return { text: name, start: first, stop: last + 1 };
  });
  const queries = bins(spec.queries, rows, spec.bins[0], spec.size[1]);
  const keys = bins(spec.keys, columns, spec.bins[1], spec.size[2]);
  return { rows, columns, values, queries, keys, exact: spec.bins[0] === 1 && spec.bins[1] === 1 };
};
