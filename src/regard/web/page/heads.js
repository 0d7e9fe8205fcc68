// All heads as small maps, layers down and heads across, painted a layer at a time.

import { view } from "./view.js";
import { layerName, loadThumbs, record } from "./data.js";
import { ramp } from "./colour.js";

const box = document.getElementById("heads");
let painted = "";
let round = 0;

const thumb = (layer, head) => box.querySelector(`canvas[data-layer="${layer}"][data-head="${head}"]`);

export const markHead = () => {
  for (const one of box.querySelectorAll(".chosen")) one.classList.remove("chosen");
  thumb(view.layer, view.head)?.classList.add("chosen");
};

const paint = (canvas, bytes, at, rows, columns) => {
  Object.assign(canvas, { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const cells = bytes.subarray(at, at + rows * columns);
  const top = Math.max(1, ...cells);
  cells.forEach((value, i) => { pixels[i] = ramp()[Math.round((255 * value) / top)]; });
  pen.putImageData(image, 0, 0);
};

const lay = (layers) => {
  const most = Math.max(...layers.map((one) => one.size[1]));
  box.style.gridTemplateColumns = `max-content repeat(${most}, 30px)`;
  box.replaceChildren(...layers.flatMap((one, layer) => {
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = layerName(one);
    name.title = one.name;
    name.style.gridColumn = 1;
    const maps = Array.from({ length: one.size[1] }, (_, head) => {
      const canvas = document.createElement("canvas");
      Object.assign(canvas, { width: 1, height: 1, title: `${layerName(one)} · ${head}` });
      Object.assign(canvas.dataset, { layer, head });
      return canvas;
    });
    return [name, ...maps];
  }));
};

export const drawHeads = async (again = false) => {
  const name = `${view.record} ${view.sequence}`;
  if (painted === name && !again) return markHead();
  painted = name;
  round += 1;
  const mine = round;
  const { layers } = record();
  lay(layers);
  markHead();
  for (let layer = 0; layer < layers.length; layer++) {
    const bytes = await loadThumbs(layer);
    if (mine !== round) return;
    const [rows, columns] = bytes;
    for (let head = 0; head < layers[layer].size[1]; head++) paint(thumb(layer, head), bytes, 2 + head * rows * columns, rows, columns);
  }
  document.documentElement.dataset.heads = name;
};

export const listenToHeads = (go) => {
  box.addEventListener("click", ({ target }) => { if (target.dataset.layer) go(Number(target.dataset.layer), Number(target.dataset.head)); });
  box.addEventListener("keydown", (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    go(view.layer + by[0], view.head + by[1]);
    thumb(view.layer, view.head)?.scrollIntoView({ block: "nearest" });
  });
};
