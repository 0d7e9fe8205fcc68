// A matrix as a table: its cells are updated where they differ.

import { largestOf } from "./cell_colours.js";
import { setText } from "./elements.js";
import { indexed } from "./formula.js";
import { format } from "./number_text.js";

const LEVELS = 20; // of the colour behind a number
const MOST = 45; // percent of the colour, so that the number on it stays readable

const cellOf = (name, className) => Object.assign(document.createElement(name), { className });

const background = (value, largest, paint) => {
  if (paint === "none" || !largest || !Number.isFinite(Number(value))) return "";
  const level = Math.round((Math.abs(value) / largest) * LEVELS);
  if (!level) return "";
  const colour = paint === "weight" ? "--weight" : value < 0 ? "--b" : "--a";
  return `color-mix(in srgb, var(${colour}) ${(level / LEVELS) * MOST}%, transparent)`;
};

// `matrix` has rowLabel(row) and columnLabel(column).
export const makeTable = (matrix) => {
  const box = cellOf("div", "matrix-box");
  const table = document.createElement("table");
  table.setAttribute("role", "grid");
  const caption = table.createCaption();
  const title = document.createElement("span");
  const size = cellOf("span", "size");
  caption.append(title, " ", size);
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  box.append(table);
  let cells = []; // td by row and column
  let shown = []; // what each of them shows
  const known = { title: null };
  let cursor = null;

  const layOut = (rows, columns) => {
    head.replaceChildren(document.createElement("td"));
    for (let column = 0; column < columns; column++) {
      head.append(Object.assign(cellOf("th", ""), { scope: "col" }));
    }
    cells = Array.from({ length: rows }, (_, row) =>
      Array.from({ length: columns }, (_, column) =>
        Object.assign(document.createElement("td"), { row, column, tabIndex: -1 }),
      ),
    );
    shown = cells.map((row) => row.map(() => ({ value: NaN, hidden: false, colour: "" })));
    body.replaceChildren(
      ...cells.map((row, at) => {
        const line = document.createElement("tr");
        line.append(Object.assign(cellOf("th", ""), { scope: "row", row: at }), ...row);
        return line;
      }),
    );
    cursor = null;
  };

  const setCursor = ([row, column]) => {
    if (cursor) cells[cursor[0]][cursor[1]].tabIndex = -1;
    cursor = [row, column];
    cells[row][column].tabIndex = 0;
  };

  const fill = (values, { hidden, paint, ownScales }) => {
    const isHidden = hidden ?? (() => false);
    const whole = paint === "weight" ? 1 : largestOf(values);
    values.forEach((line, row) => {
      const largest = ownScales ? largestOf([line]) : whole;
      line.forEach((value, column) => {
        const [cell, last, masked] = [cells[row][column], shown[row][column], isHidden(row, column)];
        if (!Object.is(last.value, value) || last.hidden !== masked) {
          // before the softmax a hidden cell is −∞, after it a weight of 0
          setText(cell, masked && paint !== "weight" ? "−∞" : format(value));
          if (last.hidden !== masked) cell.classList.toggle("hidden-cell", masked);
          Object.assign(last, { value, hidden: masked });
        }
        const colour = masked ? "" : background(value, largest, paint);
        if (last.colour !== colour) cell.style.backgroundColor = last.colour = colour;
      });
    });
  };

  const draw = (values, options) => {
    const [rows, columns] = [values.length, values[0].length];
    const hasFocus = cursor && cells[cursor[0]][cursor[1]] === document.activeElement;
    if (cells.length !== rows || cells[0]?.length !== columns) layOut(rows, columns);
    if (known.title !== options.title) title.replaceChildren(...indexed((known.title = options.title)));
    setText(size, `${rows} × ${columns}`);
    table.setAttribute("aria-readonly", String(!options.edit));
    for (let column = 0; column < columns; column++) setText(head.children[column + 1], matrix.columnLabel(column));
    // rows without names need no column for them
    table.classList.toggle("bare", options.rows.length > 0 && options.rows.every((name) => !String(name).trim()));
    for (let row = 0; row < rows; row++) {
      const line = body.rows[row];
      setText(line.cells[0], matrix.rowLabel(row));
      const chosen = row === options.chosen;
      if (line.classList.contains("chosen") !== chosen) line.classList.toggle("chosen", chosen);
      if (options.chosen !== null) line.setAttribute("aria-selected", String(chosen));
    }
    fill(values, options);
    if (!cursor) setCursor(matrix.cursor);
    if (hasFocus && document.activeElement === document.body) cells[cursor[0]][cursor[1]].focus({ preventScroll: true });
  };

  const marked = ([kind, index, column]) => {
    if (kind === "cell") return cells[index]?.[column] ? [cells[index][column]] : [];
    if (kind === "row") return cells[index] ?? [];
    return cells.map((row) => row[index]).filter(Boolean);
  };
  let lit = [];
  const light = (marks) => {
    for (const cell of lit) cell.classList.remove("lit", "lit-cell");
    lit = marks.flatMap(marked);
    for (const mark of marks) {
      for (const cell of marked(mark)) cell.classList.add(mark[0] === "cell" ? "lit-cell" : "lit");
    }
  };

  return {
    element: box,
    draw,
    light,
    at: ({ target }) => {
      const cell = target.closest?.("td");
      return cell?.row === undefined ? null : [cell.row, cell.column];
    },
    rowAt: ({ target }) => target.closest?.("th")?.row ?? null,
    setCursor,
    rectOf: (row, column) => cells[row][column].getBoundingClientRect(),
    focusCell: (row, column) => {
      setCursor([row, column]);
      cells[row][column].focus({ preventScroll: false });
    },
  };
};
