// Beside the map: the tokens or positions of both axes, and the chosen row and column as strips along it.

import { view } from "./view.js";
import { nameOf, size } from "./data.js";
import { css } from "./colour.js";
import { acrossAt, downAt, frame, seen } from "./map.js";

const NAMED = 13; // pixels that a token's name needs
const FAMILY = 'system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif';
export const lines = { row: null, column: null }; // the weights of the chosen row and column

const cut = (pen, text, room) => {
  if (pen.measureText(text).width <= room) return text;
  let shown = Array.from(text).slice(0, 40);
  while (shown.length > 1 && pen.measureText(`${shown.join("")}…`).width > room) shown = shown.slice(0, -1);
  return `${shown.join("")}…`;
};

const visible = (first, room, count) => [Math.max(0, Math.floor(first)), Math.min(count - 1, Math.ceil(first + room / view.zoom))];

// Round distances between the numbers of an axis, so that they do not touch.
const tickStep = (pixels) => {
  let step = 1;
  for (let at = 0; step * view.zoom < pixels; at++) step = [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3);
  return step;
};

export const drawAxes = (pen) => {
  const { queries, keys } = size();
  const named = view.zoom >= NAMED;
  const type = named ? Math.min(14, view.zoom) : 12;
  Object.assign(pen, { font: `${type}px ${FAMILY}`, fillStyle: css("--ink"), textBaseline: "middle", lineWidth: 1 });
  const [firstRow, lastRow] = visible(view.y - frame.height / 2 / view.zoom, frame.height, queries);
  const [firstKey, lastKey] = visible(view.x - frame.width / 2 / view.zoom, frame.width, keys);
  const [down, across] = [named ? 1 : tickStep(34), named ? 1 : tickStep(40)];
  pen.textAlign = "right";
  for (let row = Math.ceil(firstRow / down) * down; row <= lastRow; row += down) {
    const y = downAt(named ? row + 0.5 : row);
    if (y < frame.top || y > frame.top + frame.height) continue;
    const text = named ? nameOf("query", row) : `${row}`;
    pen.fillStyle = css(view.query === row ? "--b" : "--ink");
    pen.fillText(cut(pen, text, frame.left - 10), seen().left - 6, y);
  }
  pen.textAlign = "left";
  for (let key = Math.ceil(firstKey / across) * across; key <= lastKey; key += across) {
    const x = acrossAt(named ? key + 0.5 : key);
    if (x < frame.left || x > frame.left + frame.width) continue;
    pen.fillStyle = css(view.key === key ? "--b" : "--ink");
    pen.save();
    pen.translate(x, seen().top - 6);
    pen.rotate(-Math.PI / 2);
    pen.fillText(cut(pen, named ? nameOf("key", key) : `${key}`, frame.top - 10), 0, 0);
    pen.restore();
  }
  if (named) drawGrid(pen, firstRow, lastRow, firstKey, lastKey);
};

const drawGrid = (pen, firstRow, lastRow, firstKey, lastKey) => {
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, frame.top, frame.width, frame.height);
  pen.clip();
  pen.strokeStyle = css("--rule");
  pen.beginPath();
  for (let row = firstRow; row <= lastRow + 1; row++) { pen.moveTo(acrossAt(firstKey), downAt(row)); pen.lineTo(acrossAt(lastKey + 1), downAt(row)); }
  for (let key = firstKey; key <= lastKey + 1; key++) { pen.moveTo(acrossAt(key), downAt(firstRow)); pen.lineTo(acrossAt(key), downAt(lastRow + 1)); }
  pen.stroke();
  pen.restore();
};

// The largest weight of the positions that one pixel shows, or NaN where none of them is known.
const largest = (line, from, to) => {
  let found = NaN;
  for (let at = Math.max(0, Math.floor(from)); at < Math.min(line.length, Math.max(to, Math.floor(from) + 1)); at++) {
    if (!(line[at] <= found) && !Number.isNaN(line[at])) found = line[at];
  }
  return found;
};

export const drawStrips = (pen) => {
  pen.fillStyle = css("--b");
  const draw = (line, first, length, bar) => {
    if (!line) return;
    const top = line.reduce((most, value) => (value > most ? value : most), 1e-9);
    for (let pixel = 0; pixel < length; pixel++) {
      const from = first + pixel / view.zoom;
      if (from < 0 || from >= line.length) continue;
      const weight = largest(line, from, from + 1 / view.zoom);
      if (weight > 0) bar(pixel, Math.max(1, (frame.strip - 4) * (weight / top)));
    }
  };
  const [bottom, right] = [seen().bottom + 5, seen().right + 5];
  draw(lines.row, view.x - frame.width / 2 / view.zoom, frame.width, (pixel, tall) => pen.fillRect(frame.left + pixel, bottom, 1, tall));
  draw(lines.column, view.y - frame.height / 2 / view.zoom, frame.height, (pixel, wide) => pen.fillRect(right, frame.top + pixel, wide, 1));
};
