// Two pictures of a mask: its pattern for a number of tokens, and how the number of its pairs grows with them.

import { draw, grouped, make } from "./elements.js";
import { pairsAt } from "./masks.js";
import { drawnCount, maskOfLength, patternOf } from "./mask_patterns.js";

const LONGEST = 4096;
const LENGTHS = [1, ...Array.from({ length: 64 }, (_, step) => (step + 1) * (LONGEST / 64))];
const TABLE = [128, 1024, 4096];

// Parts of a pattern by shape as well as by colour: a square, a frame, a diamond.
const SHAPES = {
  square: (x, y) => `M${x + 0.06} ${y + 0.06}h.88v.88h-.88z`,
  frame: (x, y) => `M${x + 0.06} ${y + 0.06}h.88v.88h-.88zm.26 .26v.36h.36v-.36z`,
  diamond: (x, y) => `M${x + 0.5} ${y + 0.04}l.46 .46l-.46 .46l-.46 -.46z`,
};
const shapeOf = (name) => ({ global: "frame", prefix: "frame", random: "diamond" })[name] ?? "square";
const pathOf = (pattern, name) =>
  pattern
    .flatMap((row, query) => row.map((part, key) => (part === name ? SHAPES[shapeOf(name)](key, query) : "")))
    .join("");

const legendItem = (name, text) =>
  make(
    "li",
    {},
    draw(
      "svg",
      { viewBox: "0 0 1 1", class: "swatch", "aria-hidden": "true" },
      draw("path", { d: SHAPES[shapeOf(name)](0, 0), class: `part-${name}`, "fill-rule": "evenodd" }),
    ),
    text,
  );

// speak gives: patternName (of the picture for a screen reader), patternNone, and part-<name> for each part.
export const makePattern = () => {
  const picture = draw("svg", { class: "pattern", role: "img" });
  const legend = make("ul", { className: "legend" });
  const text = make("p", { className: "hint" });
  const element = make("div", { className: "mask-pattern" }, picture, legend, text);
  let drawn = "";
  return {
    element,
    draw(mask, length, seed, speak, language) {
      const key = JSON.stringify([mask, length, seed, language]);
      if (key === drawn) return;
      drawn = key;
      const placed = maskOfLength(mask, length, seed);
      for (const part of [picture, legend]) part.toggleAttribute("hidden", placed === null);
      const pattern = placed === null ? [] : patternOf(placed, length);
      const names = [...new Set(pattern.flat())].filter(Boolean);
      const pairs = pattern.flat().filter(Boolean).length;
      element.pattern = pattern;
      picture.setAttribute("viewBox", `0 0 ${length} ${length}`);
      picture.setAttribute("aria-label", speak("patternName", { length, pairs }));
      picture.replaceChildren(
        draw("rect", { width: length, height: length, class: "ground" }),
        ...names.map((name) =>
          draw("path", { d: pathOf(pattern, name), class: `part-${name}`, "fill-rule": "evenodd" }),
        ),
      );
      legend.replaceChildren(...names.map((name) => legendItem(name, speak(`part-${name}`))));
      text.textContent = placed === null ? speak("patternNone") : speak("patternPairs", counts(pairs, length ** 2, speak));
    },
  };
};

// A count beside all, as a sentence needs them.
export const counts = (pairs, all, speak) => ({
  pairs: grouped(pairs),
  all: grouped(all),
  percent: speak("percent", { share: pairs ? ((100 * pairs) / all).toPrecision(3) : "0" }),
});

const [WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM] = [360, 210, 50, 14, 10, 34];
const across = (length) => LEFT + (length / LONGEST) * (WIDTH - LEFT - RIGHT);
const up = (pairs) => HEIGHT - BOTTOM - (pairs / LONGEST ** 2) * (HEIGHT - TOP - BOTTOM);
const lineOf = (points) =>
  points
    .map(({ length, pairs }, at) => `${at ? "L" : "M"}${across(length).toFixed(1)} ${up(pairs).toFixed(1)}`)
    .join("");

const axes = (speak) => {
  const label = (x, y, text, anchor) => draw("text", { x, y, "text-anchor": anchor }, text);
  const marks = [0, 1024, 2048, 3072, 4096].map((length) =>
    label(across(length), HEIGHT - BOTTOM + 13, String(length), length === LONGEST ? "end" : "middle"),
  );
  const heights = [0, 4, 8, 12, 16].flatMap((millions) => [
    draw("line", {
      x1: LEFT,
      x2: WIDTH - RIGHT,
      y1: up(millions * 1e6),
      y2: up(millions * 1e6),
      class: millions ? "rule" : "axis",
    }),
    label(
      LEFT - 5,
      up(millions * 1e6) + 4,
      millions ? speak("millions", { millions, myriads: millions * 100 }) : "0",
      "end",
    ),
  ]);
  return [...heights, ...marks, label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, speak("axisLength"), "middle")];
};

const lineItem = (name, text) => {
  const line = draw("path", { d: "M0 5H32", class: name });
  return make("li", {}, draw("svg", { viewBox: "0 0 32 10", "aria-hidden": "true" }, line), text);
};

// How the pairs grow from 1 to 4,096 tokens, for a mask and for all pairs, with three lengths as a table.
export const makeGrowth = () => {
  const picture = draw("svg", { class: "growth", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  const caption = make("caption");
  const head = make("thead");
  const body = make("tbody");
  const table = make("table", { className: "numbers" }, caption, head, body);
  const hint = make("p", { className: "hint" });
  const legend = make("ul", { className: "legend" });
  const element = make("div", { className: "mask-growth" }, picture, legend, table, hint);
  let drawn = "";
  const all = LENGTHS.map((length) => ({ length, pairs: length ** 2 }));
  const rowOf = (length, pairs, speak) => {
    const { percent } = counts(pairs ?? 0, length ** 2, speak);
    const cells = [grouped(length ** 2), ...(pairs === null ? ["–", "–"] : [grouped(pairs), percent])];
    return make(
      "tr",
      {},
      make("th", { scope: "row", textContent: String(length) }),
      ...cells.map((textContent) => make("td", { textContent })),
    );
  };
  return {
    element,
    draw(mask, speak, language) {
      const key = JSON.stringify([language, mask.kind === "bigbird" ? { ...mask, table: drawnCount(mask) } : mask]);
      if (key === drawn) return;
      drawn = key;
      const name = speak(`visible-${mask.kind}`);
      const points = LENGTHS.map((length) => ({ length, pairs: pairsAt(mask, length) }));
      const hasRule = points[0].pairs !== null;
      const hasLine = hasRule && mask.kind !== "none"; // without a mask it would be that of all pairs
      const rows = TABLE.map((length) => [length, pairsAt(mask, length)]);
      element.values = rows;
      picture.setAttribute("aria-label", speak(hasLine ? "growthName" : "growthAll", { name }));
      picture.replaceChildren(
        ...axes(speak),
        draw("path", { d: lineOf(all), class: "line-all" }),
        ...(hasLine ? [draw("path", { d: lineOf(points), class: "line-mask" })] : []),
      );
      legend.replaceChildren(
        lineItem("line-all", speak("allPairs")),
        ...(hasLine ? [lineItem("line-mask", name)] : []),
      );
      caption.textContent = speak("growthTable");
      const titles = [speak("axisLength"), speak("allPairs"), name, speak("share")];
      head.replaceChildren(make("tr", {}, ...titles.map((textContent) => make("th", { scope: "col", textContent }))));
      body.replaceChildren(...rows.map(([length, pairs]) => rowOf(length, pairs, speak)));
      hint.textContent = hasRule ? speak(`growth-${mask.kind}`) : speak("growthNone");
    },
  };
};
