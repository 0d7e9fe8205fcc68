// Where the rows and columns of the map stand on its canvas, and the cell that is read.

import { view } from "./view.js";
import { mapSize, mapUnits } from "./current.js";
import { cellSpan, stepNow, tileAt } from "./tiles.js";

export const CLOSEST = 64; // pixels a row
export const frame = { left: 0, top: 0, width: 1, height: 1, strip: 0 };
// What is read: the cell under the mouse, else that which the arrow keys have reached, else the chosen one.
export const reader = { pointer: null, cursor: null };

export const within = (value, low, high) => Math.max(low, Math.min(high, value));
export const acrossAt = (column) => frame.left + frame.width / 2 + (column - view.x) * view.zoom;
export const downAt = (row) => frame.top + frame.height / 2 + (row - view.y) * view.zoom;
export const columnAt = (x) => view.x + (x - frame.left - frame.width / 2) / view.zoom;
export const rowAt = (y) => view.y + (y - frame.top - frame.height / 2) / view.zoom;
export const inFrame = (x, y) =>
  x >= frame.left && x < frame.left + frame.width && y >= frame.top && y < frame.top + frame.height;

// The part of the frame that the matrix fills.
export const seen = () => {
  const { queries, keys } = mapSize();
  return {
    left: Math.max(frame.left, acrossAt(0)),
    right: Math.min(frame.left + frame.width, acrossAt(keys)),
    top: Math.max(frame.top, downAt(0)),
    bottom: Math.min(frame.top + frame.height, downAt(queries)),
  };
};

export const measure = (canvas, pen) => {
  const box = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const narrow = box.width < 520;
  const strip = narrow ? 30 : 54;
  const [left, top] = narrow ? [64, 64] : [104, 84];
  const room = (side, before) => Math.max(side - before - strip - 10, 40);
  Object.assign(frame, { left, top, strip, width: room(box.width, left), height: room(box.height, top) });
};

export const wholeZoom = () => Math.min(frame.width / mapSize().keys, frame.height / mapSize().queries, CLOSEST);

export const settle = () => {
  const { queries, keys } = mapSize();
  view.zoom = within(view.zoom ?? wholeZoom(), Math.min(wholeZoom() * 0.7, CLOSEST), CLOSEST);
  view.x = within(view.x ?? keys / 2, 0, keys);
  view.y = within(view.y ?? queries / 2, 0, queries);
};

const readPlace = () => {
  const { queries, keys } = mapSize();
  const centre = [frame.left + frame.width / 2, frame.top + frame.height / 2];
  const [x, y] = reader.pointer || centre;
  if (reader.pointer) return inFrame(x, y) ? [Math.floor(rowAt(y)), Math.floor(columnAt(x))] : null;
  if (reader.cursor) return reader.cursor;
  if (view.query !== null && view.key !== null) return [mapUnits("query").of[view.query], mapUnits("key").of[view.key]];
  return [Math.min(Math.floor(rowAt(y)), queries - 1), Math.min(Math.floor(columnAt(x)), keys - 1)];
};

// The cell that is read, in rows and columns of the map, with its value where that is known.
export const cell = () => {
  const { queries, keys } = mapSize();
  const [row, column] = readPlace() ?? [-1, -1];
  if (row < 0 || column < 0 || row >= queries || column >= keys) return null;
  const step = stepNow();
  const { down, across, side } = cellSpan(step);
  const [i, j] = [Math.floor(row / down), Math.floor(column / across)];
  const tile = tileAt(step, Math.floor(i / side), Math.floor(j / side));
  const value = tile ? tile.values[(i % side) * tile.columns + (j % side)] : null;
  return {
    query: i * down,
    queryEnd: Math.min((i + 1) * down, queries),
    key: j * across,
    keyEnd: Math.min((j + 1) * across, keys),
    down,
    across,
    value,
  };
};

// The tiles of a step that the frame shows.
export const tilesInView = (step) => {
  const { queries, keys } = mapSize();
  const { down, across, side } = cellSpan(step);
  const range = (first, last, count, tall) => {
    const [low, high] = [
      Math.max(0, Math.floor(first / tall)),
      Math.min(Math.ceil(count / tall) - 1, Math.floor(last / tall)),
    ];
    return Array.from({ length: Math.max(0, high - low + 1) }, (_, i) => low + i);
  };
  const rows = range(rowAt(frame.top), rowAt(frame.top + frame.height), queries, side * down);
  const columns = range(columnAt(frame.left), columnAt(frame.left + frame.width), keys, side * across);
  return rows.flatMap((row) => columns.map((column) => ({ step, row, column })));
};
