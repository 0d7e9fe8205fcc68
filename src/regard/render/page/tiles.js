// Tiles of the map: those in view are wanted, at most six at a time are on their way, those seen longest ago go.

import { view } from "./view.js";
import { current, layer, loadWordTile, mapInWords, mapSize, matrixSize, placeOf, poolNow, slots } from "./current.js";

const KEPT = 300; // tiles, of a quarter of a megabyte at most; always more than are in view
const AT_ONCE = 6;
const REST = 3000; // milliseconds before a tile that failed is asked for again
const FINE = 8; // positions: larger cells are not computed, but taken from the stored map, though it be coarser

const tiles = new Map();
const failures = new Map(); // until when each is left alone
let wanted = [];
let inView = 0;
let onTheWay = 0;
let arrived = () => {};
let failed = () => {};
export const listenToTiles = (then, otherwise) => {
  arrived = then;
  failed = otherwise;
};

// How many rows and columns a cell of this step spans, and how many cells a tile has a side.
export const cellSpan = (step) =>
  mapInWords() ? { down: 1, across: 1, side: 4096 } : current.source.cell(layer(), step);

// How many positions a cell spans: as few as were kept, and as many as a pixel needs.
export const stepNow = () => {
  if (mapInWords()) return 1;
  let step = current.info.a ? current.info.a.finest : layer().finest;
  while (step * view.zoom < 1) step *= 2;
  return step > FINE && step < layer().stored ? layer().stored : step;
};

// The largest cell at a step in this head, so that colours stay as one moves.
export const topOf = (step) => {
  if (mapInWords()) return Math.max(tileAt(1, 0, 0)?.top ?? 0, 1e-12);
  const { without, tops } = current.info.a;
  const found = ((view.sinks ? null : without) || tops)[poolNow()];
  const known = Object.keys(found).map(Number);
  return Math.max(found[step] ?? found[Math.max(...known.filter((one) => one <= step), Math.min(...known))], 1e-12);
};

const tileName = (step, row, column) => {
  const place = Object.values(placeOf(slots().a));
  return [...place, mapInWords(), poolNow(), view.sinks, step, row, column].join();
};

export const tileAt = (step, row, column) => {
  const name = tileName(step, row, column);
  const tile = tiles.get(name);
  if (!tile?.values) return null;
  tiles.delete(name);
  tiles.set(name, tile);
  return tile;
};

// Ask for these tiles, and forget what was asked for before and has not been sent.
export const want = (list) => {
  inView = list.length;
  wanted = list.filter(({ step, row, column }) => {
    const name = tileName(step, row, column);
    return !tiles.has(name) && !(failures.get(name) > performance.now());
  });
  send();
};
export const waiting = () => wanted.length + onTheWay;

const makeTile = (step, row, column) => {
  const { queries, keys } = mapInWords() ? mapSize() : matrixSize();
  const { down, across, side } = cellSpan(step);
  const cells = (at, span, count) => Math.ceil(Math.min(side * span, count - at * side * span) / span);
  return {
    rows: cells(row, down, queries),
    columns: cells(column, across, keys),
    values: null,
    picture: null,
    ink: "",
  };
};

const send = () => {
  while (onTheWay < AT_ONCE && wanted.length) {
    const { step, row, column } = wanted.shift();
    const name = tileName(step, row, column);
    if (tiles.has(name)) continue;
    const tile = makeTile(step, row, column);
    tiles.set(name, tile);
    onTheWay += 1;
    const place = placeOf(slots().a);
    const load = mapInWords()
      ? loadWordTile(place, view.sinks)
      : current.source.tile(place, step, row, column, poolNow(), view.sinks);
    load
      .then(
        (values) => keep(tile, values),
        (problem) => giveUp(name, problem),
      )
      .finally(() => {
        onTheWay -= 1;
        forgetOld();
        send();
        arrived();
      });
  }
};

const keep = (tile, values) => {
  Object.assign(tile, { values, top: values.reduce((most, value) => (value > most ? value : most), 0) });
  if (failures.size) {
    failures.clear();
    failed(null);
  }
};

const giveUp = (name, problem) => {
  tiles.delete(name);
  wanted = [];
  failures.set(name, performance.now() + REST);
  setTimeout(arrived, REST + 10);
  failed(problem);
};

const forgetOld = () => {
  for (const [name, tile] of tiles) {
    if (tiles.size <= Math.max(KEPT, 2 * inView)) break;
    if (tile.values) tiles.delete(name);
  }
};
