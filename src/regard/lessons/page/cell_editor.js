// Changing a number: by typing over its cell, by dragging it up or down, and by Alt with the arrow keys.

import { moved, readNumber, stepOf } from "./number_text.js";
import { beginGesture, cancelGesture, endGesture } from "./state.js";
import { say } from "./words.js";

const FIRST_MOVE = 4; // pixels after which a press is a drag
const NEAR = 120; // pixels between a cell and a sentence about it
const PIXELS = 3; // of a drag for one step
const MOST_SHOWN = 24; // characters of what was pasted
const BEGINS = /^[0-9.+\-−０-９．＋－]$/;
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// `matrix` has: element, values, options, rectOf(row, column), focusCell(row, column), moveBy(down, across).
export const makeEditor = (matrix) => {
  const input = Object.assign(document.createElement("input"), { type: "text", inputMode: "decimal", hidden: true });
  input.className = "cell-input";
  input.autocomplete = "off";
  const alert = document.createElement("p");
  alert.className = "cell-trouble";
  alert.setAttribute("role", "alert");
  alert.hidden = true;
  matrix.element.append(input, alert);
  let cell = null; // { row, column, replaces } of the number that is typed
  let trouble = null; // { name, text }
  let drag = null;

  const place = (element, row, column, below) => {
    const [rect, box] = [matrix.rectOf(row, column), matrix.element.getBoundingClientRect()];
    // below a small matrix, where it hides none of its numbers; else below the cell
    const last = matrix.rectOf(matrix.values.length - 1, column).bottom;
    const bottom = last - rect.bottom < NEAR ? last : rect.bottom;
    element.style.left = `${rect.left - box.left}px`;
    element.style.top = `${(below ? bottom + 2 : rect.top) - box.top}px`;
    if (below) return;
    element.style.width = `${Math.max(rect.width, 72)}px`;
    element.style.height = `${Math.max(rect.height, 26)}px`;
  };

  const keepInView = (element) => {
    const over = element.getBoundingClientRect().right - document.documentElement.clientWidth + 8;
    if (over > 0) element.style.left = `${parseFloat(element.style.left) - over}px`;
  };

  const speak = () => {
    alert.textContent = trouble ? say(trouble.name, { text: trouble.text }) : "";
    alert.hidden = !trouble;
  };
  const complain = (name, text, row, column) => {
    trouble = { name, text };
    input.setAttribute("aria-invalid", "true");
    speak();
    place(alert, row, column, true);
    keepInView(alert);
  };
  const calm = () => {
    trouble = null;
    input.removeAttribute("aria-invalid");
    speak();
  };

  const close = (refocus) => {
    const { row, column } = cell;
    cell = null;
    input.hidden = true;
    if (refocus) matrix.focusCell(row, column);
  };

  // Whether the cell was closed: a number that cannot be read keeps it open.
  const commit = (refocus = true) => {
    const { value, trouble: name } = readNumber(input.value);
    const { row, column } = cell;
    if (name) {
      complain(name, input.value, row, column);
      return false;
    }
    calm();
    close(refocus);
    if (value !== matrix.values[row][column]) matrix.options.edit(row, column, value);
    return true;
  };

  const begin = (row, column, text) => {
    calm();
    cell = { row, column, replaces: text !== null };
    input.hidden = false;
    input.value = text ?? String(matrix.values[row][column]);
    input.setAttribute("aria-label", say("cellLabel", { name: matrix.cellName(row, column) }));
    place(input, row, column, false);
    keepInView(input);
    input.focus({ preventScroll: true });
    if (text === null) input.select();
    else input.setSelectionRange(text.length, text.length); // what was selected before may still be
  };

  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.isComposing) return;
    const move = ARROWS[event.key];
    const caret = move && !move[0] && !cell.replaces;
    if (event.key === "Escape") {
      calm();
      close(true);
    } else if (event.key === "Enter") commit();
    else if (event.key === "Tab") {
      if (commit()) return; // the browser goes on from the cell
    } else if (move && !caret) {
      if (commit()) matrix.moveBy(...move);
    } else return;
    event.preventDefault();
  });
  input.addEventListener("input", () => trouble && calm());
  input.addEventListener("blur", () => {
    if (!cell) return;
    const { row, column } = cell;
    if (!commit(false)) {
      const { name, text } = trouble;
      close(false);
      complain(name, text, row, column); // the sentence stays, the number is as it was
    }
  });
  for (const type of ["pointerdown", "dblclick"]) input.addEventListener(type, (event) => event.stopPropagation());

  // Dragging: at each frame the last position of the pointer counts.
  const apply = () => {
    drag.frame = 0;
    const step = drag.step * (drag.small ? 0.1 : 1);
    const count = Math.round((drag.from - drag.y) / PIXELS);
    const value = count ? moved(drag.value, count, step) : drag.value;
    if (value !== matrix.values[drag.row][drag.column]) matrix.options.edit(drag.row, drag.column, value);
  };
  const onMove = (event) => {
    if (event.pointerId !== drag.pointer) return;
    if (!drag.moves && Math.abs(event.clientY - drag.from) < FIRST_MOVE) return;
    if (!drag.moves) {
      drag.moves = true;
      beginGesture();
      document.documentElement.classList.add("dragging");
    }
    if (event.shiftKey !== drag.small) {
      // from here on, by the other step
      Object.assign(drag, { small: event.shiftKey, from: event.clientY, value: matrix.values[drag.row][drag.column] });
    }
    drag.y = event.clientY;
    drag.frame ||= requestAnimationFrame(apply);
    event.preventDefault();
  };
  const stop = (keep) => {
    removeEventListener("pointermove", onMove);
    removeEventListener("pointerup", onUp);
    removeEventListener("pointercancel", onCancel);
    removeEventListener("keydown", onEscape, true);
    document.documentElement.classList.remove("dragging");
    if (drag.frame) {
      cancelAnimationFrame(drag.frame);
      if (keep) apply();
    }
    if (drag.moves) (keep ? endGesture : cancelGesture)();
    drag = null;
  };
  const onUp = (event) => event.pointerId === drag.pointer && stop(true);
  const onCancel = (event) => event.pointerId === drag.pointer && stop(false);
  const onEscape = (event) => {
    if (event.key !== "Escape" || !drag.moves) return;
    event.preventDefault();
    stop(false);
  };

  // A number, or a block of numbers from a table, from this cell on: one change.
  const paste = (text, row, column) => {
    calm();
    const lines = text.trim().split(/\r?\n/).map((line) => line.trim().split(/[\t;\s]+/));
    const fits = row + lines.length <= matrix.values.length && lines.every((line) => column + line.length <= matrix.values[0].length);
    if (!fits) {
      complain("pasteSize", lines.map((line) => line.join(" ")).join(" / ").slice(0, MOST_SHOWN), row, column);
      return;
    }
    const read = lines.map((line) => line.map(readNumber));
    for (const [down, line] of read.entries()) {
      for (const [across, { trouble: name }] of line.entries()) {
        if (!name) continue;
        complain(name, lines[down][across].slice(0, MOST_SHOWN), row, column);
        return;
      }
    }
    beginGesture();
    read.forEach((line, down) => line.forEach(({ value }, across) => matrix.options.edit(row + down, column + across, value)));
    endGesture();
  };

  return {
    speak,
    paste,
    isOpen: () => cell !== null,
    begin: (row, column) => begin(row, column, null),
    dragFrom(event, row, column) {
      if (drag || event.button !== 0) return;
      calm();
      const value = matrix.values[row][column];
      drag = { row, column, value, from: event.clientY, y: event.clientY, pointer: event.pointerId, frame: 0 };
      Object.assign(drag, { step: stepOf(matrix.values), small: event.shiftKey, moves: false });
      addEventListener("pointermove", onMove);
      addEventListener("pointerup", onUp);
      addEventListener("pointercancel", onCancel);
      addEventListener("keydown", onEscape, true);
    },
    // Whether the key was one that changes the number.
    key(event, row, column) {
      if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
        calm();
        const step = stepOf(matrix.values) * (event.shiftKey ? 0.1 : 1);
        const value = moved(matrix.values[row][column], event.key === "ArrowUp" ? 1 : -1, step);
        if (!event.repeat) beginGesture(); // a key that is held down is one change
        matrix.options.edit(row, column, value);
        return true;
      }
      if (event.altKey || event.ctrlKey || event.metaKey) return false;
      if (event.key === "Enter" || event.key === "F2") begin(row, column, null);
      else if (event.key === "Backspace" || event.key === "Delete") begin(row, column, "");
      else if (BEGINS.test(event.key)) begin(row, column, event.key);
      else return false;
      return true;
    },
    keyUp: (event) => (event.key === "ArrowUp" || event.key === "ArrowDown") && endGesture(),
  };
};
