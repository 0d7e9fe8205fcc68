// The map itself: tiles drawn where the view looks, the cell under the cursor, and what moves the view.

import { view, writeAddress } from "./view.js";
import { head, layer, size, tileAt, tileSide, want, waiting } from "./data.js";
import { css, picture } from "./colour.js";
import { drawAxes, drawStrips } from "./axes.js";

const FINE = 8; // positions: larger cells are not computed, but taken from the stored map, though it be coarser
const CLOSEST = 64; // pixels a position
const canvas = document.getElementById("map");
const pen = canvas.getContext("2d");

export const frame = { left: 0, top: 0, width: 1, height: 1, strip: 0 };
let pointer = null; // where the mouse is, in pixels of the canvas; without it the centre is read
let read = () => {};

export const acrossAt = (column) => frame.left + frame.width / 2 + (column - view.x) * view.zoom;
export const downAt = (row) => frame.top + frame.height / 2 + (row - view.y) * view.zoom;
// The part of the frame that the matrix fills.
export const seen = () => {
  const { queries, keys } = size();
  return {
    left: Math.max(frame.left, acrossAt(0)), right: Math.min(frame.left + frame.width, acrossAt(keys)),
    top: Math.max(frame.top, downAt(0)), bottom: Math.min(frame.top + frame.height, downAt(queries)),
  };
};
const columnAt = (x) => view.x + (x - frame.left - frame.width / 2) / view.zoom;
const rowAt = (y) => view.y + (y - frame.top - frame.height / 2) / view.zoom;

// How many positions a cell spans: as few as were kept, and as many as a pixel needs.
export const stepNow = () => {
  let step = head.info ? head.info.finest : layer().finest;
  while (step * view.zoom < 1) step *= 2;
  return step > FINE && step < layer().stored ? layer().stored : step;
};

const measure = () => {
  const box = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const narrow = box.width < 520;
  const strip = narrow ? 30 : 54;
  const [left, top] = narrow ? [64, 64] : [104, 84];
  Object.assign(frame, { left, top, strip, width: Math.max(box.width - left - strip - 10, 40), height: Math.max(box.height - top - strip - 10, 40) });
};

const wholeZoom = () => Math.min(frame.width / size().keys, frame.height / size().queries, CLOSEST);

const settle = () => {
  const { queries, keys } = size();
  const within = (value, low, high) => Math.max(low, Math.min(high, value));
  const least = Math.min(wholeZoom() * 0.7, CLOSEST);
  view.zoom = within(view.zoom ?? wholeZoom(), least, CLOSEST);
  view.x = within(view.x ?? keys / 2, 0, keys);
  view.y = within(view.y ?? queries / 2, 0, queries);
};

// The cell that is read: that under the mouse, else that in the middle.
export const cell = () => {
  const { queries, keys } = size();
  const [x, y] = pointer || [frame.left + frame.width / 2, frame.top + frame.height / 2];
  const inside = x >= frame.left && x < frame.left + frame.width && y >= frame.top && y < frame.top + frame.height;
  let [row, column] = [Math.floor(rowAt(y)), Math.floor(columnAt(x))];
  if (!pointer) [row, column] = [Math.min(row, queries - 1), Math.min(column, keys - 1)];
  if (!inside || row < 0 || column < 0 || row >= queries || column >= keys) return null;
  const step = stepNow();
  const [down, across] = [Math.floor(row / step), Math.floor(column / step)];
  const side = tileSide(step);
  const tile = tileAt(step, Math.floor(down / side), Math.floor(across / side));
  const value = tile ? tile.values[(down % side) * tile.columns + (across % side)] : null;
  return { query: down * step, key: across * step, queryEnd: Math.min((down + 1) * step, queries), keyEnd: Math.min((across + 1) * step, keys), step, value };
};

const span = (step) => {
  const { queries, keys } = size();
  const range = (first, last, count) => {
    const side = tileSide(step) * step;
    const [low, high] = [Math.max(0, Math.floor(first / side)), Math.min(Math.ceil(count / side) - 1, Math.floor(last / side))];
    return Array.from({ length: Math.max(0, high - low + 1) }, (_, i) => low + i);
  };
  const rows = range(rowAt(frame.top), rowAt(frame.top + frame.height), queries);
  const columns = range(columnAt(frame.left), columnAt(frame.left + frame.width), keys);
  return rows.flatMap((row) => columns.map((column) => ({ step, row, column })));
};

const drawTile = (tile, step, row, column) => {
  const side = tileSide(step) * step;
  pen.drawImage(picture(tile, step), acrossAt(column * side), downAt(row * side), tile.columns * step * view.zoom, tile.rows * step * view.zoom);
};

// Until a tile is here, the coarser one that covers it is shown in its place.
const drawStandIns = (step) => {
  for (let coarser = 16 * step; coarser > step; coarser /= 2) {
    for (const { row, column } of span(coarser)) {
      const tile = tileAt(coarser, row, column);
      if (tile) drawTile(tile, coarser, row, column);
    }
  }
};

const drawTiles = () => {
  const { queries, keys } = size();
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, frame.top, frame.width, frame.height);
  pen.clip();
  pen.beginPath();
  pen.rect(acrossAt(0), downAt(0), keys * view.zoom, queries * view.zoom);
  pen.clip();
  pen.fillStyle = css("--panel");
  pen.fillRect(frame.left, frame.top, frame.width, frame.height);
  pen.imageSmoothingEnabled = false;
  const step = stepNow();
  const list = span(step);
  const side = tileSide(step) * step;
  const middle = [view.y / side - 0.5, view.x / side - 0.5];
  const far = ({ row, column }) => Math.hypot(row - middle[0], column - middle[1]);
  list.sort((one, other) => far(one) - far(other));
  if (!list.every(({ row, column }) => tileAt(step, row, column))) drawStandIns(step);
  for (const { row, column } of list) {
    const tile = tileAt(step, row, column);
    if (tile) drawTile(tile, step, row, column);
  }
  pen.restore();
  want(list);
};

const drawMarks = () => {
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, frame.top, frame.width, frame.height);
  pen.clip();
  const box = (x, y, width, height, colour, thick) => {
    Object.assign(pen, { strokeStyle: colour, lineWidth: thick });
    pen.strokeRect(x, y, width, height);
  };
  const { queries, keys } = size();
  if (view.query !== null) box(acrossAt(0), downAt(view.query), keys * view.zoom, view.zoom, css("--chosen-edge"), view.zoom < 6 ? 1 : 2);
  if (view.key !== null) box(acrossAt(view.key), downAt(0), view.zoom, queries * view.zoom, css("--chosen-edge"), view.zoom < 6 ? 1 : 2);
  const at = cell();
  if (at) {
    const [width, height] = [(at.keyEnd - at.key) * view.zoom, (at.queryEnd - at.query) * view.zoom];
    box(acrossAt(at.key) - 1, downAt(at.query) - 1, Math.max(width, 5) + 2, Math.max(height, 5) + 2, css("--b"), 2);
  }
  pen.restore();
  const { left, top, right, bottom } = seen();
  box(left - 0.5, top - 0.5, right - left + 1, bottom - top + 1, css("--rule"), 1);
};

let drawn = 0;
const paint = () => {
  drawn = 0;
  if (!head.info || !head.tokens) return;
  measure();
  settle();
  pen.fillStyle = css("--page");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  drawTiles();
  drawAxes(pen);
  drawStrips(pen);
  drawMarks();
  read();
  writeAddress();
  canvas.dataset.frame = [frame.left, frame.top, frame.width, frame.height].join(); // for tests, as are those below
  document.documentElement.dataset.step = stepNow();
  document.documentElement.dataset.waiting = waiting();
};
export const draw = () => { drawn ||= requestAnimationFrame(paint); };

export const zoomBy = (factor, x = frame.left + frame.width / 2, y = frame.top + frame.height / 2) => {
  const [column, row] = [columnAt(x), rowAt(y)];
  view.zoom = Math.max(Math.min(wholeZoom() * 0.7, CLOSEST), Math.min(CLOSEST, view.zoom * factor));
  view.x = column - (x - frame.left - frame.width / 2) / view.zoom;
  view.y = row - (y - frame.top - frame.height / 2) / view.zoom;
  draw();
};
export const lookAt = (row, column, zoom = view.zoom) => { Object.assign(view, { y: row, x: column, zoom }); pointer = null; draw(); };
export const showWhole = () => lookAt(null, null, null);
export const showSingle = () => {
  const at = cell();
  if (at) lookAt((at.query + at.queryEnd) / 2, (at.key + at.keyEnd) / 2, Math.max(view.zoom, 28));
};

// Arrows move by a cell where cells are large, by an eighth of the map where they are small; `far` by a whole map.
export const pan = (down, across, far) => {
  const near = view.zoom * stepNow() >= 12 ? stepNow() : Math.max(frame.width / view.zoom / 8, 1);
  const by = far ? frame.width / view.zoom : near;
  const aligned = (value) => (near === stepNow() && !far ? (Math.floor(value / near) + 0.5) * near : value);
  view.y = aligned(view.y) + down * by;
  view.x = aligned(view.x) + across * by;
  pointer = null;
  draw();
};

export const listenToMap = (readCell, choose) => {
  read = readCell;
  let held = null;
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => { held = { at: place(event), x: view.x, y: view.y, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    pointer = place(event);
    if (held && (held.moved ||= Math.hypot(pointer[0] - held.at[0], pointer[1] - held.at[1]) > 4)) {
      view.x = held.x - (pointer[0] - held.at[0]) / view.zoom;
      view.y = held.y - (pointer[1] - held.at[1]) / view.zoom;
    }
    draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    pointer = place(event);
    if (held && !held.moved) choose();
    held = null;
  });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("pointerleave", () => { pointer = null; draw(); });
  canvas.addEventListener("dblclick", (event) => zoomBy(2, ...place(event)));
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoomBy(2 ** (-Math.max(-200, Math.min(200, event.deltaY)) / 200), ...place(event)); }, { passive: false });
  new ResizeObserver(draw).observe(canvas);
};
