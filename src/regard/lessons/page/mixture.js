// A row of weights as shares of a bar, and each number of the output as bars of weight × value that add up to it.

import { draw, make } from "./elements.js";
import { format } from "./number_text.js";

const MOST_NUMBERS = 12; // of an output that are drawn
const [LINE, THICK, LEFT, TOP] = [30, 20, 34, 44];
const PATTERNS = 4; // of the parts, in turn, so that neighbours differ without colour

const widthOf = (text) => [...text].reduce((sum, letter) => sum + (letter.codePointAt(0) > 0x2e7f ? 14 : 8), 0);

const part = ({ x, y, width, key, title, label, small }) => {
  const group = draw("g", { class: `part part-${key % PATTERNS}` });
  group.append(
    draw("title", {}, title),
    draw("rect", { x, y, width: Math.max(0, width - 1), height: THICK, rx: 2 }),
  );
  if (width > widthOf(label) + 6) {
    group.append(draw("text", { x: x + width / 2, y: y + THICK / 2 + 5, "text-anchor": "middle", "font-size": small ? 12 : 14 }, label));
  }
  return group;
};

export const makeMixture = () => {
  const svg = draw("svg", { role: "img", class: "mixture" });
  const element = make("div", { className: "mixture-box" }, svg);
  let last = null;

  const drawShares = (width, { weights, keys }) => {
    let x = LEFT;
    return weights.map((weight, key) => {
      const share = weight * (width - LEFT - 4);
      const label = `${keys[key]} ${format(weight)}`;
      const shown = share > widthOf(label) + 6 ? label : keys[key];
      const group = part({ x, y: 6, width: share, key, title: label, label: shown });
      x += share;
      return group;
    });
  };

  // A line a number: positive parts to the right of 0, negative ones to the left, each after the one before.
  const drawSums = (width, { weights, values, output, keys }, count) => {
    const products = Array.from({ length: count }, (_, column) => values.map((value, key) => weights[key] * value[column]));
    const side = (sign) =>
      Math.max(0, ...products.map((list) => list.reduce((sum, value) => sum + Math.max(0, sign * value), 0)));
    const [above, below] = [side(1), side(-1)];
    const unit = (width - LEFT - 64) / (above + below || 1);
    const zero = LEFT + below * unit;
    const lines = products.map((list, column) => {
      const y = TOP + column * LINE;
      const ends = { 1: zero, "-1": zero };
      const group = draw("g", {});
      group.append(draw("text", { x: LEFT - 8, y: y + THICK / 2 + 5, "text-anchor": "end", class: "soft" }, String(column + 1)));
      list.forEach((value, key) => {
        const sign = value < 0 ? -1 : 1;
        const length = Math.abs(value) * unit;
        const x = sign > 0 ? ends[1] : ends[-1] - length;
        ends[sign] += sign * length;
        const title = `${keys[key]}: ${format(weights[key])} · ${format(values[key][column])} = ${format(value)}`;
        if (length > 0) group.append(part({ x, y, width: length, key, title, label: keys[key], small: true }));
      });
      const sum = zero + output[column] * unit;
      group.append(
        draw("line", { x1: sum, x2: sum, y1: y - 3, y2: y + THICK + 3, class: "sum" }),
        draw("text", { x: Math.max(ends[1], sum) + 6, y: y + THICK / 2 + 5 }, format(output[column])),
      );
      return group;
    });
    return [draw("line", { x1: zero, x2: zero, y1: TOP - 6, y2: TOP + count * LINE, class: "zero" }), ...lines];
  };

  const paint = () => {
    const { parts, speak, count } = last;
    const width = Math.max(260, Math.min(720, element.clientWidth || 600));
    const height = TOP + count * LINE + 4;
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(name, value);
    const sentences = parts.output
      .slice(0, count)
      .map((value, column) => speak("bars", { column: column + 1, value: format(value) }));
    const shares = parts.weights.map((weight, key) => `${parts.keys[key]} ${format(weight)}`);
    svg.setAttribute("aria-label", [shares.join(", "), ...sentences].join(" "));
    svg.replaceChildren(...drawShares(width, parts), ...drawSums(width, parts, count));
  };
  let width = 0;
  new ResizeObserver(() => {
    if (last && element.clientWidth !== width) paint();
    width = element.clientWidth;
  }).observe(element);

  return {
    element,
    draw(parts, speak) {
      const count = Math.min(MOST_NUMBERS, parts.output.length);
      last = { parts, speak, count };
      paint();
      return { shown: count };
    },
  };
};
