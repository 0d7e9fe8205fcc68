// Beside the map: the tokens or positions of both axes, and the chosen row and column as strips along it.

import { view } from "./view.js";
import { chosenLines, mapSize, mapUnits, nameOf } from "./current.js";
import { css } from "./colours.js";
import { acrossAt, downAt, frame, seen } from "./frame.js";

const NAMED = 13; // pixels that a token's name needs
const FAMILY = 'system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif';

const shortened = (pen, text, room) => {
  if (pen.measureText(text).width <= room) return text;
  let part = Array.from(text).slice(0, 40);
  while (part.length > 1 && pen.measureText(`${part.join("")}…`).width > room) part = part.slice(0, -1);
  return `${part.join("")}…`;
};

// Round distances between the numbers of an axis, so that they do not touch.
const tickStep = (pixels) => {
  let step = 1;
  for (let at = 0; step * view.zoom < pixels; at++) step = [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3);
  return step;
};

const ticks = (side, first, room, count, pixels) => {
  const named = view.zoom >= NAMED;
  const [low, high] = [Math.max(0, Math.floor(first)), Math.min(count - 1, Math.ceil(first + room / view.zoom))];
  const step = named ? 1 : tickStep(pixels);
  const chosen = view[side] === null ? -1 : mapUnits(side).of[view[side]];
  const list = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
    list.push({
      at: named ? at + 0.5 : at,
      text: named ? nameOf(side, at) : `${at}`,
      colour: at === chosen ? "--b" : "--ink",
    });
  }
  return list;
};

export const drawAxes = (pen) => {
  const { queries, keys } = mapSize();
  const type = view.zoom >= NAMED ? Math.min(14, view.zoom) : 12;
  Object.assign(pen, { font: `${type}px ${FAMILY}`, textBaseline: "middle", lineWidth: 1, textAlign: "right" });
  for (const { at, text, colour } of ticks("query", view.y - frame.height / 2 / view.zoom, frame.height, queries, 34)) {
    const y = downAt(at);
    if (y < frame.top || y > frame.top + frame.height) continue;
    pen.fillStyle = css(colour);
    pen.fillText(shortened(pen, text, frame.left - 10), seen().left - 6, y);
  }
  pen.textAlign = "left";
  for (const { at, text, colour } of ticks("key", view.x - frame.width / 2 / view.zoom, frame.width, keys, 40)) {
    const x = acrossAt(at);
    if (x < frame.left || x > frame.left + frame.width) continue;
    pen.fillStyle = css(colour);
    pen.save();
    pen.translate(x, seen().top - 6);
    pen.rotate(-Math.PI / 2);
    pen.fillText(shortened(pen, text, frame.top - 10), 0, 0);
    pen.restore();
  }
  if (view.zoom >= NAMED) drawGrid(pen);
};

const drawGrid = (pen) => {
  const { left, right, top, bottom } = seen();
  pen.strokeStyle = css("--rule");
  pen.beginPath();
  const lines = (first, last, place, draw) => {
    for (let at = first; place(at) <= last; at++) draw(place(at));
  };
  const row = Math.max(0, Math.ceil(view.y - frame.height / 2 / view.zoom));
  const column = Math.max(0, Math.ceil(view.x - frame.width / 2 / view.zoom));
  lines(row, bottom, downAt, (y) => {
    pen.moveTo(left, y);
    pen.lineTo(right, y);
  });
  lines(column, right, acrossAt, (x) => {
    pen.moveTo(x, top);
    pen.lineTo(x, bottom);
  });
  pen.stroke();
};

// The largest weight of the rows or columns that one pixel shows, or NaN where none of them is known.
const largest = (line, from, to) => {
  let found = NaN;
  for (let at = Math.max(0, Math.floor(from)); at < Math.min(line.length, Math.max(to, Math.floor(from) + 1)); at++) {
    if (!(line[at] <= found) && !Number.isNaN(line[at])) found = line[at];
  }
  return found;
};

const drawStrip = (line, first, length, bar) => {
  if (!line) return;
  const top = line.reduce((most, value) => (value > most ? value : most), 1e-9);
  for (let pixel = 0; pixel < length; pixel++) {
    const from = first + pixel / view.zoom;
    if (from < 0 || from >= line.length) continue;
    const weight = largest(line, from, from + 1 / view.zoom);
    if (weight > 0) bar(pixel, Math.max(1, (frame.strip - 4) * (weight / top)));
  }
};

export const drawStrips = (pen) => {
  const { left, top, width, height } = frame;
  const [bottom, right] = [seen().bottom + 5, seen().right + 5];
  pen.fillStyle = css("--b");
  const below = (pixel, tall) => pen.fillRect(left + pixel, bottom, 1, tall);
  const beside = (pixel, wide) => pen.fillRect(right, top + pixel, wide, 1);
  drawStrip(chosenLines.row, view.x - width / 2 / view.zoom, width, below);
  drawStrip(chosenLines.column, view.y - height / 2 / view.zoom, height, beside);
};
