// The map of head 1: its tiles and marks are drawn here, and the mouse and the arrow keys move over it.

import { view, writeAddress } from "./view.js";
import { current, mapSize, mapUnits, promptRow } from "./current.js";
import { css, tilePicture } from "./colours.js";
import { cellSpan, stepNow, tileAt, topOf, waiting, want } from "./tiles.js";
import {
  acrossAt,
  cell,
  CLOSEST,
  columnAt,
  downAt,
  frame,
  inFrame,
  measure,
  reader,
  rowAt,
  seen,
  settle,
  tilesInView,
  wholeZoom,
  within,
} from "./frame.js";
import { drawAxes, drawStrips } from "./axes.js";

const CLEAR = 28; // pixels a row at which single weights are shown
const canvas = document.getElementById("map");
const pen = canvas.getContext("2d");
let afterDrawing = () => {};

const drawTile = (tile, step, row, column) => {
  const { down, across, side } = cellSpan(step);
  const size = [tile.columns * across * view.zoom, tile.rows * down * view.zoom];
  pen.drawImage(
    tilePicture(tile, topOf(step), view),
    acrossAt(column * side * across),
    downAt(row * side * down),
    ...size,
  );
};

// Until a tile is here, the coarser one that covers it is shown in its place.
const drawStandIns = (step) => {
  for (let coarser = 16 * step; coarser > step; coarser /= 2) {
    for (const { row, column } of tilesInView(coarser)) {
      const tile = tileAt(coarser, row, column);
      if (tile) drawTile(tile, coarser, row, column);
    }
  }
};

const clipTo = (left, top, width, height) => {
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
};

const drawTiles = () => {
  const { queries, keys } = mapSize();
  pen.save();
  clipTo(frame.left, frame.top, frame.width, frame.height);
  clipTo(acrossAt(0), downAt(0), keys * view.zoom, queries * view.zoom);
  pen.fillStyle = css("--panel");
  pen.fillRect(frame.left, frame.top, frame.width, frame.height);
  pen.imageSmoothingEnabled = false;
  const step = stepNow();
  const list = tilesInView(step);
  const { down, across, side } = cellSpan(step);
  const middle = [view.y / side / down - 0.5, view.x / side / across - 0.5];
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

const outline = (x, y, width, height, colour, thick) => {
  Object.assign(pen, { strokeStyle: css(colour), lineWidth: thick });
  pen.strokeRect(x, y, width, height);
};

const drawMarks = () => {
  const { queries, keys } = mapSize();
  const thick = view.zoom < 6 ? 1 : 2;
  pen.save();
  clipTo(frame.left, frame.top, frame.width, frame.height);
  const begins = promptRow(); // an orange line where the model begins to generate
  if (begins) outline(acrossAt(0), downAt(begins), keys * view.zoom, 0, "--b", 2);
  const [query, key] = ["query", "key"].map((side) => (view[side] === null ? null : mapUnits(side).of[view[side]]));
  if (query !== null) outline(acrossAt(0), downAt(query), keys * view.zoom, view.zoom, "--chosen-edge", thick);
  if (key !== null) outline(acrossAt(key), downAt(0), view.zoom, queries * view.zoom, "--chosen-edge", thick);
  const at = cell();
  if (at) {
    const [width, height] = [(at.keyEnd - at.key) * view.zoom, (at.queryEnd - at.query) * view.zoom];
    outline(acrossAt(at.key) - 1, downAt(at.query) - 1, Math.max(width, 5) + 2, Math.max(height, 5) + 2, "--b", 2);
  }
  pen.restore();
  const { left, top, right, bottom } = seen();
  outline(left - 0.5, top - 0.5, right - left + 1, bottom - top + 1, "--rule", 1);
};

let frameRequest = 0;
const paintMap = () => {
  frameRequest = 0;
  if (!current.info.a || !current.tokens) return;
  measure(canvas, pen);
  settle();
  pen.fillStyle = css("--page");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  drawTiles();
  drawAxes(pen);
  drawStrips(pen);
  drawMarks();
  afterDrawing();
  writeAddress();
  canvas.dataset.frame = [frame.left, frame.top, frame.width, frame.height].join(); // for tests, as are those below
  document.documentElement.dataset.step = stepNow();
  document.documentElement.dataset.waiting = waiting();
};
export const drawMap = () => {
  frameRequest ||= requestAnimationFrame(paintMap);
};

export const zoomBy = (factor, x, y) => {
  x ??= reader.cursor ? acrossAt(reader.cursor[1] + 0.5) : frame.left + frame.width / 2;
  y ??= reader.cursor ? downAt(reader.cursor[0] + 0.5) : frame.top + frame.height / 2;
  const [column, row] = [columnAt(x), rowAt(y)];
  view.zoom = within(view.zoom * factor, Math.min(wholeZoom() * 0.7, CLOSEST), CLOSEST);
  view.x = column - (x - frame.left - frame.width / 2) / view.zoom;
  view.y = row - (y - frame.top - frame.height / 2) / view.zoom;
  drawMap();
};

const lookAt = (row, column, zoom = view.zoom) => {
  Object.assign(view, { y: row, x: column, zoom });
  Object.assign(reader, { pointer: null, cursor: null });
  drawMap();
};
export const showWhole = () => lookAt(null, null, null);
export const showSingle = () => {
  const at = cell();
  if (at) lookAt((at.query + at.queryEnd) / 2, (at.key + at.keyEnd) / 2, Math.max(view.zoom, CLEAR));
};
// Bring the chosen row and column into sight.
export const revealChosen = (closer = false) => {
  const [row, column] = ["query", "key"].map((side) =>
    view[side] === null ? null : mapUnits(side).of[view[side]] + 0.5,
  );
  Object.assign(reader, { pointer: null, cursor: null });
  if (view.zoom === null) return;
  const [y, x] = [row ?? view.y, column ?? view.x];
  if (closer) lookAt(y, x, Math.max(view.zoom, CLEAR));
  else if (!inFrame(acrossAt(x), downAt(y))) lookAt(y, x);
};

// Arrows move the cell that is read where cells are large, else the map by an eighth; `far` by a whole map.
export const moveBy = (down, across, far) => {
  const { queries, keys } = mapSize();
  const at = cell();
  reader.pointer = null;
  if (far || !at || view.zoom * at.across < 12) {
    const by = far ? frame.width / view.zoom : Math.max(frame.width / view.zoom / 8, 1);
    Object.assign(view, { y: view.y + down * by, x: view.x + across * by });
    reader.cursor = null;
  } else {
    const row = within(at.query + down * at.down, 0, queries - 1);
    const column = within(at.key + across * at.across, 0, keys - 1);
    reader.cursor = [row, column];
    if (!inFrame(acrossAt(column + 0.5), downAt(row + 0.5))) Object.assign(view, { y: row + 0.5, x: column + 0.5 });
  }
  drawMap();
};

const placeOfEvent = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};

// A page that is read by scrolling keeps the wheel, until its map is clicked or Ctrl is held.
const takesWheel = (event) =>
  document.body.classList.contains("atlas") || event.ctrlKey || document.activeElement === canvas;

export const listenToMap = (afterward, choose) => {
  afterDrawing = afterward;
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = { at: placeOfEvent(event), x: view.x, y: view.y, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    reader.pointer = placeOfEvent(event);
    const [x, y] = reader.pointer;
    if (held && (held.moved ||= Math.hypot(x - held.at[0], y - held.at[1]) > 4)) {
      view.x = held.x - (x - held.at[0]) / view.zoom;
      view.y = held.y - (y - held.at[1]) / view.zoom;
    }
    drawMap();
  });
  canvas.addEventListener("pointerup", (event) => {
    reader.pointer = placeOfEvent(event);
    if (held && !held.moved) choose();
    held = null;
  });
  canvas.addEventListener("pointercancel", () => {
    held = null;
  });
  canvas.addEventListener("pointerleave", () => {
    reader.pointer = null;
    drawMap();
  });
  canvas.addEventListener("dblclick", (event) => zoomBy(2, ...placeOfEvent(event)));
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!takesWheel(event)) return;
      event.preventDefault();
      zoomBy(2 ** (-within(event.deltaY, -200, 200) / 200), ...placeOfEvent(event));
    },
    { passive: false },
  );
  new ResizeObserver(drawMap).observe(canvas);
};
