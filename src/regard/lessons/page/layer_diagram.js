// A layer as a picture: attention and feed-forward in their boxes, with the sizes of the vectors at each place.

import { draw } from "./elements.js";

const WIDTH = 330;
const LEFT = 44; // of the boxes; left of them run the residuals
const BOX = 280;
const HEIGHT = 42;
const GAP = 16;

// The places of a layer in their order. `blocks` are its sub-layers, each { kind, name, size }.
export const placesOf = (blocks, norm, { input, output, normName, addName, finalNorm }) => {
  const places = [input];
  for (const block of blocks) {
    if (norm === "pre") places.push({ kind: "norm", ...normName, from: true });
    places.push({ ...block, from: norm === "post" });
    places.push({ kind: "add", ...addName });
    if (norm === "post") places.push({ kind: "norm", ...normName });
  }
  if (norm === "pre") places.push({ kind: "norm", ...finalNorm });
  places.push(...output);
  return places;
};

// An arrow's point of its own: a marker, which other pictures share, would not be saved with this one.
const POINTS = { down: "l-4 -6h8z", right: "l-6 -4v8z" };
const point = (x, y, way) => draw("path", { d: `M${x} ${y}${POINTS[way]}`, class: "arrow" });

// Places from top to bottom, as a list that is read in this order. A residual runs from before the place that is
// marked by `from` to the next "add".
export const drawLayer = (svg, places, title) => {
  const list = draw("g", { role: "list", "aria-label": title });
  const lines = [];
  const middle = LEFT + BOX / 2;
  let y = 6;
  let start = 0;
  places.forEach(({ kind, name, size, from, side }, at) => {
    const height = kind === "add" ? 24 : HEIGHT;
    if (at) lines.push(draw("path", { d: `M${middle} ${y - GAP}V${y}`, class: "flow" }), point(middle, y, "down"));
    if (from) start = y - GAP / 2;
    const item = draw("g", { role: "listitem", class: `place place-${kind}` });
    const text = (line, words, className) =>
      draw("text", { x: middle, y: y + line, "text-anchor": "middle", class: className }, words);
    if (kind === "add") {
      lines.push(draw("path", { d: `M${middle} ${start}H20V${y + 12}H${LEFT}`, class: "residual" }));
      lines.push(point(LEFT, y + 12, "right"));
    }
    item.append(draw("rect", { x: LEFT, y, width: BOX, height, rx: 7 }));
    if (kind === "add") item.append(text(16, `+ ${name}`, "size"));
    else item.append(text(17, name, "name"), text(34, size, "size"));
    if (side) lines.push(draw("path", { d: `M0 ${y + 21}H${LEFT}`, class: "cross" }), point(LEFT, y + 21, "right"));
    list.append(item);
    y += height + GAP;
  });
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${y - GAP + 6}`);
  svg.replaceChildren(...lines, list);
};
