// The sines and cosines of positions: a wave a column, and a point at each position that is there.

import { draw, make } from "./elements.js";

const [HEIGHT, LEFT, TOP, LABEL] = [150, 30, 14, 24];
const [NAME, LINE] = [106, 20]; // of the list of waves
const MOST_COLUMNS = 6; // that can be told apart
const FINE = 12; // points of a wave between two positions

const valueAt = (position, column, width) => {
  const angle = position * 10000 ** (-(column - (column % 2)) / width);
  return column % 2 ? Math.cos(angle) : Math.sin(angle);
};

export const makeWaves = () => {
  const svg = draw("svg", { role: "img", class: "waves" });
  const element = make("div", { className: "waves-box" }, svg);
  let last = null;

  const paint = () => {
    const { count, columns, width, speak } = last;
    const room = Math.max(260, Math.min(640, element.clientWidth || 560));
    const acrossAt = (position) => LEFT + 8 + (position / Math.max(1, count - 1)) * (room - LEFT - 24);
    const downAt = (value) => TOP + ((1 - value) / 2) * HEIGHT;
    const perLine = Math.max(1, Math.floor((room - LEFT) / NAME));
    const [below, bottom] = [TOP + HEIGHT + LABEL, TOP + HEIGHT + 16];
    const height = below + Math.ceil(columns.length / perLine) * LINE;
    for (const [name, value] of Object.entries({ width: room, height, viewBox: `0 0 ${room} ${height}` })) svg.setAttribute(name, value);
    const axes = [1, 0, -1].flatMap((value) => [
      draw("line", { x1: LEFT, x2: room - 8, y1: downAt(value), y2: downAt(value), class: "axis" }),
      draw("text", { x: LEFT - 6, y: downAt(value) + 4, "text-anchor": "end", class: "soft" }, String(value).replace("-", "−")),
    ]);
    const every = Math.ceil(count / 12);
    for (let position = 0; position < count; position += every) {
      axes.push(draw("text", { x: acrossAt(position), y: bottom, "text-anchor": "middle", class: "soft" }, String(position)));
    }
    const lines = columns.map((column, order) => {
      const group = draw("g", { class: `wave wave-${column}` });
      const steps = Math.max(1, count - 1) * FINE;
      const points = Array.from({ length: steps + 1 }, (_, at) => {
        const position = (at / steps) * Math.max(0, count - 1);
        return `${acrossAt(position).toFixed(1)},${downAt(valueAt(position, column, width)).toFixed(1)}`;
      });
      group.append(draw("polyline", { points: points.join(" ") }));
      for (let position = 0; position < count; position += 1) {
        group.append(draw("circle", { cx: acrossAt(position), cy: downAt(valueAt(position, column, width)), r: 3.5 }));
      }
      const [x, y] = [LEFT + (order % perLine) * NAME, below + Math.floor(order / perLine) * LINE + 10];
      group.append(draw("polyline", { points: `${x},${y} ${x + 28},${y}` }));
      group.append(draw("text", { x: x + 34, y: y + 4 }, speak("columnName", { number: column + 1 })));
      return group;
    });
    svg.replaceChildren(...axes, ...lines);
    svg.setAttribute("aria-label", speak("wavesName", { columns: columns.map((column) => column + 1).join(", "), last: count - 1 }));
  };
  let known = 0;
  new ResizeObserver(() => {
    if (last && element.clientWidth !== known) paint();
    known = element.clientWidth;
  }).observe(element);

  return {
    element,
    draw(count, width, speak) {
      last = { count, width, speak, columns: Array.from({ length: Math.min(MOST_COLUMNS, width) }, (_, column) => column) };
      paint();
    },
  };
};
