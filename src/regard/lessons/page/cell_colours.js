// The colours of numbers: blue for positive, orange for negative, paper for 0; weights from paper to their own colour.

import { css } from "../../render/page/colours.js";
import { onTheme } from "./theme.js";

// The colours of the theme are asked for once: each question makes the browser work out the styles of the page.
let known = null;
let lines = null;
onTheme(() => {
  known = lines = null;
});
export const lineColours = () => {
  lines ??= { page: css("--page"), edge: css("--chosen-edge"), ink: css("--ink") };
  return lines;
};

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const colours = () => {
  known ??= Object.fromEntries(
    [["paper", "--page"], ["plus", "--a"], ["minus", "--b"], ["weight", "--weight"]].map(([name, variable]) => [
      name,
      channels(css(variable)),
    ]),
  );
  return known;
};

export const largestOf = (values) => {
  let largest = 0;
  for (const row of values) for (const value of row) if (Number.isFinite(Number(value))) largest = Math.max(largest, Math.abs(value));
  return largest;
};

const full = (value, paint) => {
  const { plus, minus, weight } = colours();
  if (paint === "weight") return weight;
  return value < 0 ? minus : plus;
};

// Red, green and blue of a number; `largest` has the full colour.
export const colourOf = (value, largest, paint) => {
  const { paper } = colours();
  const share = largest && Number.isFinite(Number(value)) ? Math.min(1, Math.abs(value) / largest) : 0;
  const target = full(value, paint);
  return paper.map((part, at) => Math.round(part + (target[at] - part) * share));
};

const small = document.createElement("canvas");

// Draw a matrix into a rectangle of a canvas, a number a rectangle.
export const drawCells = (pen, values, { paint, ownScales, largest = paint === "weight" ? 1 : largestOf(values) }, rectangle) => {
  const [rows, columns] = [values.length, values[0].length];
  if (small.width !== columns || small.height !== rows) Object.assign(small, { width: columns, height: rows });
  const inner = small.getContext("2d", { willReadFrequently: true });
  const image = inner.createImageData(columns, rows);
  let at = 0;
  for (const row of values) {
    const most = ownScales ? largestOf([row]) : largest;
    for (const value of row) {
      const [red, green, blue] = colourOf(value, most, paint);
      image.data[at] = red;
      image.data[at + 1] = green;
      image.data[at + 2] = blue;
      image.data[at + 3] = 255;
      at += 4;
    }
  }
  inner.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, ...rectangle);
};
