// The pictures of the experiment on scores: series over d, and the weights of a query as bars.

import { draw, make } from "./elements.js";
import { format } from "./number_text.js";
import { KEYS } from "./score_experiment.js";

// A plot of some series over d, both axes by powers of 2 or of 10.
export const makePlot = () => {
  const [width, height, left, bottom] = [260, 150, 46, 26];
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "plot" });
  const title = make("figcaption");
  const x = (value) => left + (Math.log2(value) / 10) * (width - left - 18);
  return {
    element: make("figure", { className: "plot-figure" }, title, picture),
    // series: [{ points: [[d, value], …], className }]; line: the same, drawn without points
    draw({ caption, label, axis, range: [low, high], ticks, series, line }) {
      const y = (value) => {
        const part = Math.log(Math.min(Math.max(value, low), high) / low) / Math.log(high / low);
        return height - bottom - part * (height - bottom - 10);
      };
      const text = (content, at, anchor) => {
        const element = draw("text", { x: at[0], y: at[1], "text-anchor": anchor });
        element.textContent = content;
        return element;
      };
      const path = (points) => points.map(([d, value], at) => `${at ? "L" : "M"}${x(d)} ${y(value)}`).join(" ");
      title.textContent = caption;
      picture.setAttribute("aria-label", label);
      picture.replaceChildren(
        ...[1, 4, 16, 64, 256, 1024].map((d) => text(String(d), [x(d), height - 10], "middle")),
        text(axis, [width - 2, height - bottom - 4], "end"),
        ...ticks.flatMap((tick) => [
          draw("path", { d: `M${left} ${y(tick)}H${width - 18}`, class: "plot-rule" }),
          text(format(tick), [left - 5, y(tick) + 4], "end"),
        ]),
        ...(line ? [draw("path", { d: path(line), class: "plot-line" })] : []),
        ...series.flatMap(({ points, className }) => [
          draw("path", { d: path(points), class: `plot-series ${className}` }),
          ...points.map(([d, value]) =>
            className === "divided"
              ? draw("rect", { x: x(d) - 3, y: y(value) - 3, width: 6, height: 6, class: className })
              : draw("circle", { cx: x(d), cy: y(value), r: 3.4, class: className }),
          ),
        ]),
      );
    },
  };
};

// The 8 weights of one query as bars, each with its number.
export const makeBars = (className) => {
  const title = make("p", { className: "hint" });
  const bars = Array.from({ length: KEYS }, (_, at) => {
    const fill = make("span");
    const value = make("span", { className: "number" });
    const name = make("span", { className: "hint", textContent: String(at + 1) });
    return { fill, value, element: make("li", {}, name, make("span", { className: "bar" }, fill), value) };
  });
  const list = make("ol", { className: `weight-bars ${className}` }, ...bars.map(({ element }) => element));
  return {
    element: make("div", {}, title, list),
    draw(text, weights) {
      title.textContent = text;
      bars.forEach(({ fill, value }, at) => {
        fill.style.width = `${weights[at] * 100}%`;
        value.textContent = weights[at].toFixed(3);
      });
    },
  };
};
