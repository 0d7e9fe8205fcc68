// What made a cell: its sum in the readout of the page, and the row and the column that it came from, lit up.

import { format, formatExactly, isRounded } from "./number_text.js";
import { say } from "./words.js";

const MOST_TERMS = 8; // of a sum that is written out; of longer ones the largest few
const LARGEST_TERMS = 5;
const MARGIN = 10; // pixels between the readout and the edge of the window, or a cell

const matrices = new Map(); // name → the matrices of this name on the page
let shown = null; // { matrix, row, column } of the cell that is read
let lit = [];

export const registerMatrix = (matrix) => {
  if (!matrices.has(matrix.name)) matrices.set(matrix.name, new Set());
  matrices.get(matrix.name).add(matrix);
};
const matricesOf = (name) => [...(matrices.get(name) ?? [])];

const factor = (value, leads) => (value < 0 && !leads ? `(${format(value)})` : format(value));
const product = ([, a, b], leads) => (b === undefined ? factor(a, leads) : `${factor(a, leads)}·${factor(b, false)}`);
const sizeOf = ([, a, b]) => a * (b ?? 1);

const sumOf = (terms) => {
  if (terms.length <= MOST_TERMS) return terms.map((term, at) => product(term, at === 0)).join(" + ");
  const largest = [...terms].sort((left, right) => Math.abs(sizeOf(right)) - Math.abs(sizeOf(left)));
  const others = largest.splice(LARGEST_TERMS);
  const rest = others.reduce((sum, term) => sum + sizeOf(term), 0);
  const listed = largest.map((term, at) => product(term, at === 0) + (term[0] ? ` [${term[0]}]` : ""));
  return `${listed.join(" + ")} + ${say("moreTerms", { count: others.length, sum: factor(rest, false) })}`;
};

const isolate = (text) => `\u2068${text}\u2069`;
// A label within brackets, such as [CLS], is quoted.
const labelled = (label) => isolate(/[[\],]/.test(label) ? `“${label}”` : label);

// The sentence of a cell: its name, the sum that made it, and its value.
export const cellSentence = ({ options, values, rowLabel, columnLabel }, row, column) => {
  const value = values[row][column];
  // "Q = X · W_Q" names the matrix Q, and so does "Q, a row a token"
  const name = `${options.title.split(/ = |[,，:：]/)[0]} [${labelled(rowLabel(row))}, ${labelled(columnLabel(column))}]`;
  const hidden = options.hidden?.(row, column) ? ` · ${say("hiddenCell")}` : "";
  const parts = options.parts?.(row, column);
  const hint = options.edit ? ` · ${say("editHint")}` : "";
  if (!parts) return `${name} = ${formatExactly(value)}${hidden}${hint}`;
  if (parts.text) return `${parts.label ?? name} ${parts.text}${hidden}${hint}`;
  const result = parts.result ?? value;
  const rounded = isRounded(result) || parts.terms.some(([, a, b]) => isRounded(a) || (b !== undefined && isRounded(b)));
  return `${parts.label ?? name} = ${sumOf(parts.terms)} ${rounded ? "≈" : "="} ${format(result)}${hidden}${hint}`;
};

const darken = () => {
  for (const matrix of lit) matrix.light([]);
  lit = [];
};

const lightUp = ({ matrix, row, column }) => {
  const marks = new Map([[matrix, [["cell", row, column]]]]);
  for (const [name, ...mark] of matrix.options.parts?.(row, column)?.from ?? []) {
    for (const source of matricesOf(name)) marks.set(source, [...(marks.get(source) ?? []), mark]);
  }
  // the same cell where the matrix stands in another step
  for (const twin of matricesOf(matrix.name)) if (!marks.has(twin)) marks.set(twin, [["cell", row, column]]);
  for (const [source, list] of marks) source.light(list);
  lit = [...marks.keys()];
};

const readout = () => document.getElementById("readout");
const barEnd = () => document.getElementById("nav").getBoundingClientRect().bottom;

const write = () => {
  const text = shown ? cellSentence(shown.matrix, shown.row, shown.column) : "";
  if (readout().textContent !== text) readout().textContent = text;
  readout().hidden = !text;
};
// At the lower edge of the window, or at the upper one where it would cover the cell that it is about.
const place = () => {
  const { top, bottom } = shown.matrix.rectOf(shown.row, shown.column);
  const { style, offsetHeight } = readout();
  const covers = bottom > innerHeight - offsetHeight - MARGIN && top > barEnd() + offsetHeight + MARGIN;
  style.top = covers ? `${barEnd() + 4}px` : "";
  style.bottom = covers ? "auto" : "";
};
// What is scrolled out of sight is no longer read.
let moving = 0;
const follow = () => {
  moving = 0;
  if (!shown) return;
  const { top, bottom } = shown.matrix.rectOf(shown.row, shown.column);
  if (bottom < barEnd() || top > innerHeight) hideOrigin(shown.matrix);
  else place();
};
addEventListener("scroll", () => (moving ||= requestAnimationFrame(follow)), { passive: true });

export const showOrigin = (matrix, row, column) => {
  if (shown?.matrix === matrix && shown.row === row && shown.column === column) return;
  shown = { matrix, row, column };
  darken();
  lightUp(shown);
  write();
  place();
};

export const hideOrigin = (matrix) => {
  if (shown?.matrix !== matrix) return;
  shown = null;
  darken();
  write();
};

// After a draw: the cell may have another value, or be gone.
export const refreshOrigin = (matrix) => {
  if (shown?.matrix !== matrix) return;
  if (shown.row >= matrix.values.length || shown.column >= matrix.values[0].length) hideOrigin(matrix);
  else write();
};
