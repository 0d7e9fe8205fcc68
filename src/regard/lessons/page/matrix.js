// The one widget for all matrices: numbers that are read, traced to what made them, and changed.

import { makeEditor } from "./cell_editor.js";
import { cellSentence, hideOrigin, refreshOrigin, registerMatrix, showOrigin } from "./cell_origin.js";
import { format } from "./number_text.js";
import { watchEdges } from "./scroll_edges.js";
import { makeStrip } from "./strip.js";
import { makeTable } from "./matrix_table.js";
import { say } from "./words.js";

export { format };

const WIDEST = 16; // columns of a table; wider matrices are strips of colour
const MOST_CELLS = 640; // of a table that follows a drag

const DEFAULTS = {
  title: "",
  rows: [],
  columns: [],
  edit: null,
  parts: null,
  hidden: null,
  paint: "none",
  ownScales: false,
  symbol: null,
  chosen: null,
  onChoose: null,
};
const MOVES = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  Home: [0, -Infinity],
  End: [0, Infinity],
  PageUp: [-Infinity, 0],
  PageDown: [Infinity, 0],
};

// Make a matrix once and fill it at each draw: { element, draw(values, options) }. The options are
//   title; rows, columns: labels (numbers from 1 where there are none);
//   edit(row, column, value): a number was typed or dragged;
//   parts(row, column): { label, terms: [[label, a, b], …], result, from: [[name, "row" or "column", index], …] },
//     what made a cell: label = a·b + … = result, and the rows and columns that are lit up with it; or { label, text };
//   hidden(row, column): masked; paint: "none", "signed" or "weight"; ownScales: the largest
//     number of each row has the full colour; symbol: whose colour it has;
//   chosen: the row that is looked at; onChoose(row, column): a cell, or a row (column null), was chosen.
export const makeMatrix = (name) => {
  const element = document.createElement("figure");
  element.className = "matrix";
  element.dataset.name = name;
  const flip = Object.assign(document.createElement("button"), { type: "button", className: "flip", hidden: true });
  const matrix = { name, element, values: [], options: DEFAULTS, cursor: [0, 0] };
  let view = null;
  let kind = "";
  let wantsTable = false;
  const size = () => [matrix.values.length, matrix.values[0].length];

  Object.assign(matrix, {
    rowLabel: (row) => String(matrix.options.rows[row] ?? row + 1),
    columnLabel: (column) => String(matrix.options.columns[column] ?? column + 1),
    cellName: (row, column) => `${matrix.options.title} [${matrix.rowLabel(row)}, ${matrix.columnLabel(column)}]`,
    cellSentence: (row, column) => cellSentence(matrix, row, column),
    rectOf: (row, column) => view.rectOf(row, column),
    light: (marks) => view?.light(marks),
    focusCell: (row, column) => {
      matrix.cursor = [row, column];
      view.focusCell(row, column);
      showOrigin(matrix, row, column);
    },
    moveBy: (down, across) => {
      const within = (value, count) => Math.max(0, Math.min(count - 1, value));
      const [rows, columns] = size();
      matrix.focusCell(within(matrix.cursor[0] + down, rows), within(matrix.cursor[1] + across, columns));
    },
  });
  element.matrix = matrix; // for pictures of a step
  element.append(flip);
  const editor = makeEditor(matrix);
  registerMatrix(matrix);

  const draw = (values, options = {}) => {
    element.values = matrix.values = values; // as they are, for whoever wants more digits than are shown
    matrix.options = { ...DEFAULTS, title: name, ...options };
    const [rows, columns] = size();
    matrix.cursor = [Math.min(matrix.cursor[0], rows - 1), Math.min(matrix.cursor[1], columns - 1)];
    const isLarge = columns > WIDEST || rows * columns > MOST_CELLS;
    const next = isLarge && !wantsTable ? "strip" : "table";
    if (next !== kind) {
      kind = next;
      view?.element.remove();
      view = kind === "strip" ? makeStrip(matrix) : makeTable(matrix);
      element.prepend(view.element);
    }
    element.classList.toggle("editable", Boolean(matrix.options.edit));
    element.classList.toggle("choosable", Boolean(matrix.options.onChoose));
    if (matrix.options.symbol) element.dataset.symbol = matrix.options.symbol;
    flip.hidden = !isLarge;
    if (isLarge) {
      const text = say(kind === "strip" ? "asTable" : "asStrip");
      if (flip.textContent !== text) flip.textContent = text;
    }
    view.draw(values, matrix.options);
    editor.speak();
    refreshOrigin(matrix);
  };

  flip.addEventListener("click", () => {
    wantsTable = !wantsTable;
    draw(matrix.values, matrix.options);
    watchEdges(element);
  });

  let byTouch = false; // the last press
  let tapsAgain = false; // a second tap on a cell types into it
  const choose = (row, column) => matrix.options.onChoose?.(row, column);
  element.addEventListener("pointermove", (event) => {
    const cell = view.at(event);
    if (cell) showOrigin(matrix, ...cell);
  });
  element.addEventListener("pointerleave", () => {
    if (element.contains(document.activeElement)) showOrigin(matrix, ...matrix.cursor);
    else hideOrigin(matrix);
  });
  element.addEventListener("focusin", (event) => {
    const cell = kind === "strip" ? event.target.closest("canvas") && matrix.cursor : view.at(event);
    if (!cell) return;
    matrix.cursor = cell;
    view.setCursor(cell);
    showOrigin(matrix, ...cell);
  });
  element.addEventListener("focusout", (event) => {
    if (!element.contains(event.relatedTarget)) hideOrigin(matrix);
  });
  element.addEventListener("pointerdown", (event) => {
    byTouch = event.pointerType === "touch";
    const cell = view.at(event);
    if (!cell || editor.isOpen()) return;
    const again = document.activeElement === view.element.querySelector("canvas") || view.at({ target: document.activeElement });
    const sameCell = again && String(matrix.cursor) === String(cell);
    tapsAgain = Boolean(sameCell) && byTouch;
    if (!byTouch) matrix.focusCell(...cell);
    // by touch, the first tap chooses a cell, and then it can be dragged: else a page could not be scrolled
    if (matrix.options.edit && (!byTouch || sameCell)) editor.dragFrom(event, ...cell);
  });
  element.addEventListener("click", (event) => {
    const cell = view.at(event);
    if (cell) {
      // before the click of a tap the canvas of a strip got the focus, and with it the number that was read last
      if (byTouch || document.activeElement !== event.target) matrix.focusCell(...cell);
      choose(...cell);
      if (tapsAgain && matrix.options.edit) editor.begin(...cell);
    } else if (view.rowAt(event) !== null) choose(view.rowAt(event), null);
  });
  element.addEventListener("dblclick", (event) => {
    const cell = view.at(event);
    if (cell && matrix.options.edit) editor.begin(...cell);
  });
  element.addEventListener("keydown", (event) => {
    if (event.isComposing || event.target === flip) return;
    const isCell = kind === "strip" ? event.target.closest("canvas") : view.at(event);
    if (!isCell) return;
    if (matrix.options.edit && editor.key(event, ...matrix.cursor)) {
      event.preventDefault();
      return;
    }
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") hideOrigin(matrix);
    else if (MOVES[event.key]) matrix.moveBy(...MOVES[event.key]);
    else if (matrix.options.onChoose && (event.key === " " || event.key === "Enter")) choose(...matrix.cursor);
    else return;
    event.preventDefault();
  });
  element.addEventListener("keyup", editor.keyUp);
  element.addEventListener("paste", (event) => {
    if (editor.isOpen() || !matrix.options.edit || !element.contains(document.activeElement)) return;
    event.preventDefault();
    editor.paste(event.clipboardData.getData("text/plain"), ...matrix.cursor);
  });
  return { element, draw };
};
