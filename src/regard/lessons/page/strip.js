// A wide matrix as strips of colour: a line a row, a small rectangle a number. Each is read in the readout.

import { drawCells, largestOf, lineColours } from "./cell_colours.js";
import { setText } from "./elements.js";
import { indexed } from "./formula.js";
import { format } from "./number_text.js";
import { say } from "./words.js";

const LOWEST = 12; // pixels of a row
const HIGHEST = 22;
const TICKS = 10; // about as many numbers of columns

export const makeStrip = (matrix) => {
  const box = Object.assign(document.createElement("div"), { className: "strip" });
  const title = Object.assign(document.createElement("div"), { className: "strip-title" });
  const name = document.createElement("span");
  const size = Object.assign(document.createElement("span"), { className: "size" });
  const scale = Object.assign(document.createElement("span"), { className: "strip-scale" });
  const [least, ramp, most] = ["", "ramp", ""].map((className) =>
    Object.assign(document.createElement("span"), { className }),
  );
  scale.append(least, ramp, most);
  title.append(name, " ", size, " ", scale);
  const labels = Object.assign(document.createElement("div"), { className: "strip-labels" });
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  const [colours, keys] = ["", "no-print"].map((className) => Object.assign(document.createElement("span"), { className }));
  const hint = Object.assign(document.createElement("p"), { className: "hint strip-hint" });
  hint.append(colours, keys);
  const ticks = Object.assign(document.createElement("div"), { className: "strip-ticks" });
  ticks.setAttribute("aria-hidden", "true");
  box.append(title, labels, canvas, ticks, hint);
  let marks = [];
  let known = null; // the title that is shown
  let wide = 0; // pixels of the canvas, as last laid out: asking for it after each change would lay out the page again
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
    wide ||= canvas.clientWidth;
    const width = wide || 480;
    const height = rowHeight(rows) * rows;
    drawn = { rows, columns, width, height };
    const pixels = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
    if (canvas.width !== pixels.width || canvas.height !== pixels.height) Object.assign(canvas, pixels);
    if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const [across, down] = [width / columns, height / rows];
    drawCells(pen, values, options, [0, 0, width, height]);
    const { page, edge, ink } = lineColours();
    pen.fillStyle = page;
    for (let row = 1; row < rows; row++) pen.fillRect(0, row * down - 1, width, 1);
    // a stroke through each negative number, which colour alone would show
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        if (values[row][column] < 0) pen.fillRect((column + 0.2) * across, (row + 0.5) * down - 1, across * 0.6, 1);
      }
    }
    pen.lineWidth = 2;
    if (options.chosen !== null) {
      pen.strokeStyle = edge;
      outline(pen, options.chosen, 0, 1, columns);
    }
    pen.strokeStyle = ink;
    for (const [kind, index, column] of marks) {
      if (kind === "cell") outline(pen, index, column, 1, 1);
      else if (kind === "row") outline(pen, index, 0, 1, columns);
      else outline(pen, 0, index, rows, 1);
    }
  };

  // What the colours mean: the scale of each matrix, and the words once in a step.
  const drawLegend = ({ paint, ownScales }) => {
    const isWeight = paint === "weight";
    const largest = isWeight ? 1 : largestOf(matrix.values);
    scale.hidden = ownScales;
    ramp.classList.toggle("weight", isWeight);
    const ends = [isWeight ? "0" : format(-largest), format(largest)];
    [least, most].forEach((element, at) => setText(element, ends[at]));
    const isFirst = box.closest("section")?.querySelector(".strip") === box;
    hint.hidden = !isFirst && !ownScales;
    const words = [ownScales && say("stripRows"), isFirst && say(isWeight ? "stripWeights" : "stripColours")];
    setText(colours, words.filter(Boolean).join(say("stripGap")));
    setText(keys, isFirst ? `${say("stripGap")}${say("stripKeys")}` : "");
  };

  // `target` of an event of the canvas, and where it is on it
  const at = ({ target, clientX, clientY }) => {
    if (target !== canvas || clientX === undefined) return null;
    const rect = canvas.getBoundingClientRect();
    const column = Math.floor(((clientX - rect.left) / rect.width) * drawn.columns);
    const row = Math.floor(((clientY - rect.top) / rect.height) * drawn.rows);
    return row >= 0 && row < drawn.rows && column >= 0 && column < drawn.columns ? [row, column] : null;
  };

  // The numbers of some columns below them: 1, 5, 10, … Columns with names have none: these are read in the readout.
  const drawTicks = (columns, { columns: names }) => {
    const key = names.length ? 0 : columns;
    if (ticks.columns === key) return;
    ticks.columns = key;
    const step = key > TICKS * 5 ? Math.ceil(key / TICKS / 10) * 10 : 5;
    const numbers = key ? [1, ...Array.from({ length: Math.floor(key / step) }, (_, at) => (at + 1) * step)] : [];
    ticks.replaceChildren(
      ...numbers.map((number) => {
        const tick = Object.assign(document.createElement("span"), { textContent: String(number) });
        tick.style.left = `${((number - 0.5) / key) * 100}%`;
        return tick;
      }),
    );
  };

  const draw = (values, options) => {
    const [rows, columns] = [values.length, values[0].length];
    if (known !== options.title) name.replaceChildren(...indexed((known = options.title)));
    const shape = `${rows} × ${columns}`;
    if (size.textContent !== shape) size.textContent = shape;
    const label = `${options.title}, ${shape}`;
    if (canvas.getAttribute("aria-label") !== label) canvas.setAttribute("aria-label", label);
    while (labels.children.length > rows) labels.lastChild.remove();
    while (labels.children.length < rows) labels.append(document.createElement("span"));
    for (let row = 0; row < rows; row++) {
      const label = labels.children[row];
      const text = matrix.rowLabel(row);
      if (label.textContent !== text) label.textContent = text;
      label.row = row;
      const tall = `${rowHeight(rows)}px`;
      if (label.style.height !== tall) label.style.height = label.style.lineHeight = tall;
      label.classList.toggle("chosen", row === options.chosen);
    }
    drawTicks(columns, options);
    paint();
    drawLegend(options);
  };
  new ResizeObserver(() => {
    const { clientWidth } = canvas;
    if (!clientWidth || clientWidth === wide) return;
    wide = clientWidth;
    if (matrix.values.length) paint();
  }).observe(canvas);

  return {
    element: box,
    draw,
    light(list) {
      marks = list;
      if (matrix.values.length) paint();
    },
    at,
    setCursor: () => {}, // one canvas has the focus, whichever number is read
    rowAt: ({ target }) => target.closest?.(".strip-labels span")?.row ?? null,
    rectOf: (row, column) => {
      const rect = canvas.getBoundingClientRect();
      const [width, height] = [rect.width / drawn.columns, rect.height / drawn.rows];
      return new DOMRect(rect.left + column * width, rect.top + row * height, width, height);
    },
    focusCell: () => canvas.focus({ preventScroll: false }),
  };
};
