// What the page says, in the language of the view. Nothing here is ever read as HTML.

import { fill, fillWith } from "./filling.js";
import { view } from "./view.js";
import { ENGLISH } from "./words_en.js";
import { CHINESE } from "./words_zh.js";

const WORDS = { en: ENGLISH, zh: CHINESE };

export const say = (name, filled = {}) => fill(WORDS[view.language][name], filled);
export const sayWith = (name, filled) => fillWith(WORDS[view.language][name], filled);

// A token beside other text, which a right-to-left name must not reorder.
export const isolated = (text) => Object.assign(document.createElement("bdi"), { textContent: text });

const KEYS = [
  ["kArrows", "← ↑ → ↓"],
  ["kZoom", "+ −"],
  ["kWhole", "0 1"],
  ["kHeads", "h l [ ]"],
  ["kLayers", "k j"],
  ["kSearch", "/"],
  ["kHits", "n N"],
  ["kEnter", "Enter"],
  ["kEscape", "Esc"],
  ["kMore", "m c s"],
];

// Where a head looks: one of the patterns that Python names.
const whereOf = (pattern) => say(pattern === "next" ? "next_token" : pattern);
export const patternName = (pattern) => say("looks", { where: whereOf(pattern) });

// How many heads follow each pattern, the most frequent first; nothing where the patterns are not known.
export const summary = (layers) => {
  const patterns = layers.flatMap((one) => (one.patterns ?? []).filter(Boolean)); // "" of heads that were not recorded
  const counts = new Map();
  for (const pattern of patterns) counts.set(pattern, (counts.get(pattern) ?? 0) + 1);
  const list = [...counts].sort((one, other) => other[1] - one[1]);
  const parts = list.map(([pattern, count]) => say("summaryPart", { count, where: whereOf(pattern) }));
  return parts.length ? say("summary", { count: patterns.length, list: parts.join(say("comma")) }) : "";
};

export const speak = () => {
  document.documentElement.lang = view.language === "zh" ? "zh" : "en";
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = say(element.dataset.word);
  for (const element of document.querySelectorAll("[data-title]")) {
    element.title = say(element.dataset.title);
    element.setAttribute("aria-label", element.title);
  }
  for (const option of document.querySelectorAll("#pool option, #scale option")) option.textContent = say(option.value);
  document.getElementById("help-list").replaceChildren(
    ...KEYS.flatMap(([name, keys]) => {
      const [term, meaning] = [document.createElement("dt"), document.createElement("dd")];
      for (const key of keys.split(" ")) {
        const cap = document.createElement("kbd");
        cap.textContent = key;
        term.append(cap, " ");
      }
      meaning.textContent = say(name);
      return [term, meaning];
    }),
  );
};
