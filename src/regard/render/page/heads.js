// All heads as small maps, layers down and heads across, painted a layer at a time.

import { view } from "./view.js";
import { current, layerName, nearHead, record, slots } from "./current.js";
import { paintCells } from "./colours.js";
import { patternName, say } from "./words.js";

const grid = document.getElementById("heads");
let painted = "";
let painting = 0;

const headButton = (layer, head) => grid.querySelector(`.head[data-layer="${layer}"][data-head="${head}"]`);

export const headName = ({ layer, head }) => say("headName", { layer: layerName(record().layers[layer]), head });

export const markHeads = (slot) => {
  const { a, b } = slots();
  const is = (button, at) =>
    Boolean(at) && Number(button.dataset.layer) === at.layer && Number(button.dataset.head) === at.head;
  for (const button of grid.querySelectorAll(".head")) {
    button.classList.toggle("is-a", is(button, a));
    button.classList.toggle("is-b", is(button, b));
    button.setAttribute("aria-pressed", is(button, slot === "a" ? a : b));
    button.tabIndex = is(button, a) ? 0 : -1;
  }
};

// Called again where the language has changed.
export const nameHeads = () => {
  for (const button of grid.querySelectorAll(".head")) {
    const at = { layer: Number(button.dataset.layer), head: Number(button.dataset.head) };
    const pattern = record().layers[at.layer].patterns?.[at.head];
    button.title = pattern ? `${headName(at)} ${patternName(pattern)}` : headName(at);
    button.setAttribute("aria-label", button.title);
  }
};

const label = (text, column) => {
  const element = Object.assign(document.createElement("span"), { textContent: text });
  if (column) element.style.gridColumn = column;
  return element;
};

const makeButton = (layer, head) => {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "head" });
  Object.assign(button.dataset, { layer, head });
  button.append(Object.assign(document.createElement("canvas"), { width: 1, height: 1 }));
  return button;
};

const layOut = (layers) => {
  const most = Math.max(...layers.map((one) => one.size[1]));
  grid.style.gridTemplateColumns = `max-content repeat(${most}, minmax(1.35rem, ${layers.length > 12 ? 2 : 3.6}rem))`;
  const numbers = Array.from({ length: most }, (_, head) => label(head, head + 2));
  grid.replaceChildren(
    ...numbers,
    ...layers.flatMap((one, layer) => {
      const name = Object.assign(label(layerName(one), 1), { title: one.name });
      const recorded = new Set(one.heads);
      const maps = Array.from({ length: one.size[1] }, (_, head) =>
        recorded.has(head) ? makeButton(layer, head) : label("·"),
      );
      return [name, ...maps];
    }),
  );
};

// The maps of a layer are on one scale, so that heads which spread are pale beside those which do not.
const paintThumbs = (layer, bytes) => {
  const [rows, columns] = bytes;
  const { size, heads } = record().layers[layer];
  const top = bytes.subarray(2, 2 + size[1] * rows * columns).reduce((most, one) => Math.max(most, one), 1);
  for (const head of heads) {
    const from = 2 + head * rows * columns;
    const cells = bytes.subarray(from, from + rows * columns);
    const canvas = headButton(layer, head).firstChild;
    paintCells(canvas, rows, columns, cells, top, { scale: "linear", floor: 0 });
  }
};

export const drawHeads = async (again = false) => {
  const name = `${view.record} ${view.sequence}`;
  if (painted === name && !again) return;
  painted = name;
  const mine = ++painting;
  const { layers } = record();
  layOut(layers);
  nameHeads();
  for (let layer = 0; layer < layers.length; layer++) {
    const bytes = await current.source.thumbs({ record: view.record, layer, batch_index: view.sequence });
    if (mine !== painting) return;
    paintThumbs(layer, bytes);
  }
  document.documentElement.dataset.heads = name;
};

export const listenToHeads = (choose) => {
  grid.addEventListener("click", (event) => {
    const button = event.target.closest(".head");
    if (button) choose({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
  });
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const from = event.target.closest(".head")?.dataset;
    if (!step || !from) return;
    event.preventDefault();
    event.stopPropagation();
    const [layer, head] = [Number(from.layer) + step[0], Number(from.head) + step[1]];
    if (record().layers[layer] && head >= 0) headButton(layer, nearHead(layer, head, step[1] < 0))?.focus();
  });
};
