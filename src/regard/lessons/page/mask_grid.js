// A matrix of queries and keys whose cells are shown or hidden by hand: by mouse, touch and keyboard.

import { make } from "./elements.js";
import { beginGesture, endGesture } from "./state.js";

const WIDEST = 12; // columns that fit on a phone: a finger scrolls over larger matrices, and paints smaller ones
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// paint(row, column, visible): a cell was clicked, or the pointer was dragged over it.
export const makeMaskGrid = ({ paint }) => {
  const caption = make("caption");
  const head = make("thead");
  const body = make("tbody");
  const table = make("table", { className: "mask-grid" }, caption, head, body);
  const element = make("div", { className: "scroll", tabIndex: 0, role: "region" }, table);
  const cells = []; // rows of buttons
  let flags = [];
  let focused = [0, 0]; // the cell that Tab reaches
  let brush = null; // while a pointer is down: what it paints
  let isPointer = false; // the click that follows has been painted already

  const placeOf = (target) => {
    const button = target?.closest?.("button[data-key]");
    return button && table.contains(button) ? [Number(button.dataset.query), Number(button.dataset.key)] : null;
  };
  const focus = ([row, column]) => {
    cells[focused[0]][focused[1]].tabIndex = -1;
    focused = [row, column];
    cells[row][column].tabIndex = 0;
  };
  const paintAt = ([row, column]) => {
    if (Boolean(flags[row][column]) === brush) return;
    flags[row][column] = Number(brush); // at once: the next event may come before the page is drawn
    paint(row, column, brush);
  };
  table.addEventListener("pointerdown", (event) => {
    const place = placeOf(event.target);
    if (!place || event.button !== 0) return;
    if (event.pointerType === "touch" && table.classList.contains("scrolled")) return; // a tap is a click
    isPointer = true;
    beginGesture(); // all that a drag paints is one change
    brush = !flags[place[0]][place[1]];
    focus(place);
    paintAt(place);
  });
  table.addEventListener("pointermove", (event) => {
    if (brush === null) return;
    const place = placeOf(document.elementFromPoint(event.clientX, event.clientY));
    if (place) paintAt(place);
  });
  const end = () => {
    if (brush !== null) endGesture();
    brush = null;
    setTimeout(() => {
      isPointer = false; // after the click, which may not come
    });
  };
  addEventListener("pointerup", end);
  addEventListener("pointercancel", end);
  table.addEventListener("click", (event) => {
    const place = placeOf(event.target);
    const isPainted = isPointer;
    isPointer = false;
    if (!place || isPainted) return;
    brush = !flags[place[0]][place[1]]; // the keyboard's, or a screen reader's
    paintAt(place);
    brush = null;
  });
  table.addEventListener("keydown", (event) => {
    isPointer = false;
    const place = placeOf(event.target);
    const step = ARROWS[event.key];
    if (!place || !step || event.ctrlKey || event.metaKey || event.altKey) return;
    const [row, column] = [place[0] + step[0], place[1] + step[1]];
    event.preventDefault();
    if (!cells[row]?.[column]) return;
    focus([row, column]);
    cells[row][column].focus();
  });

  const build = (rows, columns) => {
    table.classList.toggle("scrolled", Math.max(rows.length, columns.length) > WIDEST);
    const header = (name, scope) => make("th", { scope, textContent: name });
    head.replaceChildren(make("tr", {}, make("td"), ...columns.map((name) => header(name, "col"))));
    cells.length = 0;
    body.replaceChildren(
      ...rows.map((name, row) => {
        const buttons = columns.map((_, column) => {
          const button = make("button", { type: "button", tabIndex: -1 });
          Object.assign(button.dataset, { query: row, key: column });
          return button;
        });
        cells.push(buttons);
        return make("tr", {}, header(name, "row"), ...buttons.map((button) => make("td", {}, button)));
      }),
    );
    focused = [Math.min(focused[0], rows.length - 1), Math.min(focused[1], columns.length - 1)];
    cells[focused[0]][focused[1]].tabIndex = 0;
  };

  let shape = "";
  let drawn = "";
  return {
    element,
    // name(query, key): what a screen reader says of a cell, before whether it is pressed.
    draw(visible, { rows, columns, title, name, chosen }) {
      if (shape !== JSON.stringify([rows, columns])) {
        shape = JSON.stringify([rows, columns]);
        build(rows, columns);
      }
      element.values = visible;
      flags = visible.map((row) => [...row]);
      caption.textContent = title;
      element.setAttribute("aria-label", title);
      cells.forEach((_, row) => body.rows[row].classList.toggle("chosen", row === chosen));
      const key = JSON.stringify([visible, shape, title]);
      if (key === drawn) return;
      drawn = key;
      cells.forEach((buttons, row) => {
        buttons.forEach((button, column) => {
          const isVisible = Boolean(visible[row][column]);
          button.textContent = isVisible ? "✓" : "✕";
          button.classList.toggle("is-hidden", !isVisible);
          button.setAttribute("aria-pressed", String(isVisible));
          button.setAttribute("aria-label", name(row, column));
        });
      });
    },
  };
};
