// What the server knows: asked for once, kept as long as it is used. Tiles are float32 numbers, never pictures.

import { view } from "./view.js";

const TILE = 256; // cells a side of a tile
const COMPUTED = 512; // positions a side of a tile that the server has to compute; as in sheet.py
const KEPT = 300; // tiles, of a quarter of a megabyte at most; always more than are in view
const AT_ONCE = 6;
const REST = 3000; // milliseconds before a tile that failed is asked for again

export const book = { model: null, records: [], name: "" };
export const head = { info: null, tokens: null };

const query = (asked) => new URLSearchParams(asked).toString();

const answer = async (path, options) => {
  let response;
  try {
    response = await fetch(path, options);
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Error("unreachable");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({ error: `${response.status}` }));
  throw new Error(said.error);
};

const json = async (path, asked = {}) => (await answer(`${path}?${query(asked)}`)).json();
const floats = async (path, asked, signal) => new Float32Array(await (await answer(`${path}?${query(asked)}`, { signal })).arrayBuffer());

const place = () => ({ record: view.record, layer: view.layer, head: view.head, batch_index: view.sequence });

export const record = () => book.records.find((one) => one.number === view.record);
// A layer's own number, with its stream where there are several.
export const layerName = (one) => (one.stream ? `${one.number} (${one.stream})` : one.number);
export const layer = () => record().layers[view.layer];
export const tileSide = (step) => (step >= layer().stored ? TILE : Math.min(TILE, Math.max(1, Math.floor(COMPUTED / step))));
export const size = () => ({ queries: layer().size[2], keys: layer().size[3] });

export const loadRecords = async () => Object.assign(book, await json("records"));

const once = new Map(); // answers by what was asked, the latest last
const remembered = (name, load, most = 64) => {
  if (!once.has(name)) {
    once.set(name, load().catch((problem) => { once.delete(name); throw problem; }));
    if (once.size > most) once.delete(once.keys().next().value);
  }
  return once.get(name);
};

export const loadTokens = () => {
  const { record: number, layer: at, batch_index: sequence } = place();
  const streams = layer().streams.concat(layer().size).join();
  return remembered(`tokens ${number} ${sequence} ${streams}`, () => json("tokens", { record: number, layer: at, batch_index: sequence }));
};
export const loadHead = () => remembered(`head ${query(place())}`, () => json("head", place()));
export const loadWeight = (row, column) => json("weight", { ...place(), query: row, key: column });
export const loadLine = (axis, at) => {
  const asked = { ...place(), axis, at, sinks: view.sinks ? 1 : 0 };
  return remembered(`line ${query(asked)}`, () => floats("line", asked));
};
export const loadThumbs = async (at) => {
  const asked = { record: view.record, layer: at, batch_index: view.sequence };
  return new Uint8Array(await (await answer(`thumbs?${query(asked)}`)).arrayBuffer());
};
export const sendText = async (text) => {
  const headers = { "Content-Type": "application/json" };
  return (await answer("read", { method: "POST", headers, body: JSON.stringify({ text }) })).json();
};

// A token's name; one of thousands of characters would push all else off the page.
export const nameOf = (side, at) => {
  const known = head.tokens && (side === "key" && !head.tokens.same ? head.tokens.keys : head.tokens.queries);
  const name = known && at < known.texts.length ? known.texts[at] : String(at);
  return name.length > 80 ? `${Array.from(name.slice(0, 160)).slice(0, 79).join("")}…` : name;
};

// Tiles: those in view are wanted, at most six at a time are on their way, those seen longest ago are forgotten.
const tiles = new Map();
let wanted = [];
let inView = 0;
let onTheWay = 0;
const failures = new Map(); // until when each is left alone
let arrived = () => {};
let failed = () => {};
export const listenToTiles = (then, otherwise) => { arrived = then; failed = otherwise; };

export const tileName = (step, row, column) => `${query(place())} ${view.pool} ${view.sinks ? 1 : 0} ${step} ${row} ${column}`;

export const tileAt = (step, row, column) => {
  const name = tileName(step, row, column);
  const tile = tiles.get(name);
  if (tile && tile.values) {
    tiles.delete(name);
    tiles.set(name, tile);
  }
  return tile && tile.values ? tile : null;
};

// Ask for these tiles, and forget what was asked for before and has not been sent.
export const want = (list) => {
  inView = list.length;
  wanted = list.filter(({ step, row, column }) => {
    const name = tileName(step, row, column);
    return !tiles.has(name) && !(failures.get(name) > performance.now());
  });
  next();
};
export const waiting = () => wanted.length + onTheWay;

const next = () => {
  while (onTheWay < AT_ONCE && wanted.length) {
    const { step, row, column } = wanted.shift();
    const name = tileName(step, row, column);
    if (tiles.has(name)) continue;
    const { queries, keys } = size();
    const cells = (at, count) => Math.ceil(Math.min(tileSide(step) * step, count - at * tileSide(step) * step) / step);
    const tile = { rows: cells(row, queries), columns: cells(column, keys), values: null, picture: null, ink: "" };
    tiles.set(name, tile);
    onTheWay += 1;
    const asked = { ...place(), step, row, column, pool: view.pool, sinks: view.sinks ? 1 : 0 };
    const keep = (values) => {
      tile.values = values;
      if (failures.size) { failures.clear(); failed(null); }
    };
    const giveUp = (problem) => {
      tiles.delete(name);
      wanted = [];
      failures.set(name, performance.now() + REST);
      setTimeout(arrived, REST + 10);
      failed(problem);
    };
    floats("tile", asked).then(keep, giveUp)
      .finally(() => { onTheWay -= 1; forget(); next(); arrived(); });
  }
};

const forget = () => {
  for (const [name, tile] of tiles) {
    if (tiles.size <= Math.max(KEPT, 2 * inView)) break;
    if (tile.values) tiles.delete(name);
  }
};
