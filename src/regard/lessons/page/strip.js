// A wide matrix as strips of colour: a line a row, a small rectangle a number. Each is read in the readout.

import { css } from "../../render/page/colours.js";

const LOWEST = 12; // pixels of a row
const HIGHEST = 22;

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

// Blue for positive, orange for negative numbers, paper for 0: they differ in lightness from the paper alike, so the
// sign is in the readout and in the hatching of negative cells too.
const palette = () => {
  const [paper, plus, minus, weight] = ["--page", "--a", "--b", "--weight"].map((name) => channels(css(name)));
  const mix = (colour, share) =>
    `rgb(${paper.map((part, at) => Math.round(part + (colour[at] - part) * share)).join()})`;
  return (value, largest, paint) => {
    if (!largest || !Number.isFinite(Number(value))) return mix(plus, 0);
    return mix(paint === "weight" ? weight : value < 0 ? minus : plus, Math.min(1, Math.abs(value) / largest));
  };
};

export const makeStrip = (matrix) => {
  const box = Object.assign(document.createElement("div"), { className: "strip" });
  const title = Object.assign(document.createElement("div"), { className: "strip-title" });
  const name = document.createElement("span");
  const size = Object.assign(document.createElement("span"), { className: "size" });
  title.append(name, " ", size);
  const labels = Object.assign(document.createElement("div"), { className: "strip-labels" });
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  box.append(title, labels, canvas);
  let marks = [];
  let drawn = { rows: 0, columns: 0, width: 0, height: 0 };

  const rowHeight = (rows) => Math.max(LOWEST, Math.min(HIGHEST, Math.floor(420 / rows)));

  const outline = (pen, row, column, down, across) => {
    const [width, height] = [drawn.width / drawn.columns, drawn.height / drawn.rows];
    pen.strokeRect(column * width + 0.5, row * height + 0.5, across * width - 1, down * height - 1);
  };

  const paint = () => {
    const { values, options } = matrix;
    const [rows, columns] = [values.length, values[0].length];
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const width = box.clientWidth ? canvas.clientWidth : drawn.width || 480;
    const height = rowHeight(rows) * rows;
    drawn = { rows, columns, width, height };
    canvas.style.height = `${height}px`;
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const [across, down] = [width / columns, height / rows];
    const colour = palette();
    let largest = 0;
    for (const row of values) for (const value of row) largest = Math.max(largest, Number.isFinite(value) ? Math.abs(value) : 0);
    pen.clearRect(0, 0, width, height);
    pen.strokeStyle = css("--page");
    pen.lineWidth = 1;
    values.forEach((row, y) =>
      row.forEach((value, x) => {
        pen.fillStyle = colour(value, largest, options.paint);
        pen.fillRect(x * across, y * down, across + 0.5, down - 1);
        if (value < 0) {
          // a stroke through a negative number
          pen.fillStyle = css("--page");
          pen.fillRect(x * across + across * 0.2, y * down + down / 2 - 1, across * 0.6, 1.5);
        }
      }),
    );
    pen.lineWidth = 2;
    if (options.chosen !== null) {
      pen.strokeStyle = css("--chosen-edge");
      outline(pen, options.chosen, 0, 1, columns);
    }
    pen.strokeStyle = css("--ink");
    for (const [kind, index, column] of marks) {
      if (kind === "cell") outline(pen, index, column, 1, 1);
      else if (kind === "row") outline(pen, index, 0, 1, columns);
      else outline(pen, 0, index, rows, 1);
    }
  };

  // `target` of an event of the canvas, and where it is on it
  const at = ({ target, clientX, clientY }) => {
    if (target !== canvas || clientX === undefined) return null;
    const rect = canvas.getBoundingClientRect();
    const column = Math.floor(((clientX - rect.left) / rect.width) * drawn.columns);
    const row = Math.floor(((clientY - rect.top) / rect.height) * drawn.rows);
    return row >= 0 && row < drawn.rows && column >= 0 && column < drawn.columns ? [row, column] : null;
  };

  const draw = (values, options) => {
    const [rows, columns] = [values.length, values[0].length];
    if (name.textContent !== options.title) name.textContent = options.title;
    size.textContent = `${rows} × ${columns}`;
    canvas.setAttribute("aria-label", `${options.title}, ${rows} × ${columns}`);
    while (labels.children.length > rows) labels.lastChild.remove();
    while (labels.children.length < rows) labels.append(document.createElement("span"));
    for (let row = 0; row < rows; row++) {
      const label = labels.children[row];
      const text = matrix.rowLabel(row);
      if (label.textContent !== text) label.textContent = text;
      label.row = row;
      label.style.height = `${rowHeight(rows)}px`;
      label.classList.toggle("chosen", row === options.chosen);
    }
    paint();
  };
  new ResizeObserver(() => drawn.width && canvas.clientWidth !== drawn.width && matrix.values.length && paint()).observe(box);

  return {
    element: box,
    draw,
    light(list) {
      marks = list;
      if (matrix.values.length) paint();
    },
    at,
    rowAt: ({ target }) => target.closest?.(".strip-labels span")?.row ?? null,
    rectOf: (row, column) => {
      const rect = canvas.getBoundingClientRect();
      const [width, height] = [rect.width / drawn.columns, rect.height / drawn.rows];
      return new DOMRect(rect.left + column * width, rect.top + row * height, width, height);
    },
    focusCell: () => canvas.focus({ preventScroll: false }),
  };
};
