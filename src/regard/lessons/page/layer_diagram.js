// A layer as a picture: attention and feed-forward in their boxes, with the sizes of the vectors at each place.

import { draw } from "./elements.js";

const WIDTH = 330;
const LEFT = 62; // of the boxes; left of them run the residuals
const BOX = 264;
const BEND = 46; // of the residuals
const MARK = { x: 20, radius: 15, text: "K, V" }; // where the pictures of encoder and decoder are one place
const HEIGHT = 42;
const GAP = 16;

// The places of a layer in their order. `blocks` are its sub-layers, each { kind, name, size }.
export const placesOf = (blocks, norm, { input, output, normName, addName, finalNorm }) => {
  const places = [input];
  for (const block of blocks) {
    if (norm === "pre") places.push({ kind: "norm", ...normName, from: true });
    places.push({ ...block, from: norm === "post" });
    places.push(block.noSum ? { kind: "add", noSum: true, name: block.noSum } : { kind: "add", ...addName });
    if (norm === "post") places.push({ kind: "norm", ...normName });
  }
  if (norm === "pre") places.push({ kind: "norm", ...finalNorm });
  places.push(...output);
  return places;
};

// An arrow's point of its own: a marker, which other pictures share, would not be saved with this one.
const POINTS = { down: "l-4 -6h8z", right: "l-6 -4v8z", left: "l6 -4v8z" };
const point = (x, y, way) => draw("path", { d: `M${x} ${y}${POINTS[way]}`, class: "arrow" });

// "W_O" with its index below the line; what follows returns to the line by a space without width.
const withIndex = (words) =>
  words.split("W_O").flatMap((part, at) =>
    at ? ["W", draw("tspan", { dy: 3, "font-size": 8 }, "O"), draw("tspan", { dy: -3 }, "\u200b"), part] : [part],
  );

// Places from top to bottom, as a list that is read in this order. A residual runs from before the place that is
// marked by `from` to the next "add".
export const drawLayer = (svg, places, title) => {
  const list = draw("g", { role: "list", "aria-label": title });
  const lines = [];
  const middle = LEFT + BOX / 2;
  let y = 6;
  let start = 0;
  places.forEach(({ kind, name, size, from, side, noSum }, at) => {
    const height = kind === "add" ? 24 : HEIGHT;
    if (at) lines.push(draw("path", { d: `M${middle} ${y - GAP}V${y}`, class: "flow" }), point(middle, y, "down"));
    if (from) start = y - GAP / 2;
    const item = draw("g", { role: "listitem", class: `place place-${kind}${noSum ? " misfit" : ""}` });
    const text = (line, words, className) =>
      draw("text", { x: middle, y: y + line, "text-anchor": "middle", class: className }, ...withIndex(words));
    if (kind === "add") {
      lines.push(draw("path", { d: `M${middle} ${start}H${BEND}V${y + 12}H${LEFT}`, class: "residual" }));
      lines.push(point(LEFT, y + 12, "right"));
    }
    item.append(draw("rect", { x: LEFT, y, width: BOX, height, rx: 7 }));
    if (kind === "add") item.append(text(16, noSum ? name : `+ ${name}`, "size"));
    else item.append(text(17, name, "name"), text(34, size, "size"));
    if (side) {
      const [inner, line] = [MARK.x + MARK.radius, y + 21];
      lines.push(draw("path", { d: `M${inner} ${line}H${LEFT}`, class: "cross" }));
      lines.push(side === "in" ? point(LEFT, line, "right") : point(inner, line, "left"));
      item.append(draw("circle", { cx: MARK.x, cy: line, r: MARK.radius, class: "mark" }));
      item.append(draw("text", { x: MARK.x, y: line + 4, "text-anchor": "middle", class: "mark-name", "aria-hidden": "true" }, MARK.text));
    }
    list.append(item);
    y += height + GAP;
  });
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${y - GAP + 6}`);
  svg.replaceChildren(...lines, list);
};
