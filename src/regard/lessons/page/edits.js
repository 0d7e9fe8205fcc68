// Changes of single numbers of the state, each a new value beside the others.

import { change, state } from "./state.js";

export const withCell = (matrix, row, column, value) =>
  matrix.map((line, at) => (at === row ? line.map((old, other) => (other === column ? value : old)) : line));

// For the option `edit` of a matrix: a field of the state that is a matrix …
export const editField = (field) => (row, column, value) =>
  change({ [field]: withCell(state[field], row, column, value) });

// … and "query", "key" or "value" of a head.
export const editHead = (head, part) => (row, column, value) =>
  change({
    heads: state.heads.map((matrices, at) =>
      at === head ? { ...matrices, [part]: withCell(matrices[part], row, column, value) } : matrices,
    ),
  });

// What made a cell of a product, for the option `parts`: the row of the one times the column of the other.
export const productParts =
  ([leftName, left], [rightName, right], label = null) =>
  (row, column) => ({
    ...(label ? { label: label(row, column) } : {}),
    terms: left[row].map((value, at) => [String(at + 1), value, right[at][column]]),
    from: [
      [leftName, "row", row],
      [rightName, "column", column],
    ],
  });
