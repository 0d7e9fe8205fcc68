// Every place of what is searched for, across the pieces of words; in cross-attention, in both texts.

import { current } from "./current.js";
import { say } from "./words.js";

const field = document.getElementById("wanted");
const counter = document.getElementById("hits");
let hits = [];
let hit = -1;
let chooseHit = () => {};

const places = (side, stream, wanted) => {
  let text = "";
  const starts = stream.texts.map((token, at) => {
    if (stream.marks[at] & 1) text += " ";
    const start = text.length;
    text += token.toLowerCase();
    return start;
  });
  const found = [];
  let at = 0;
  for (let start = text.indexOf(wanted); start >= 0; start = text.indexOf(wanted, start + 1)) {
    while (at + 1 < starts.length && starts[at + 1] <= start) at += 1;
    if (!found.length || found.at(-1).at !== at) found.push({ side, at });
  }
  return found;
};

export const search = () => {
  if (!current.tokens) return;
  const wanted = field.value.trim().toLowerCase();
  const { same, queries, keys } = current.tokens;
  hit = -1;
  hits = wanted ? [...places("query", queries, wanted), ...(same ? [] : places("key", keys, wanted))] : [];
  counter.textContent = wanted && !hits.length ? say("noHits") : "";
};

export const jump = (by) => {
  if (!hits.length) return;
  hit = hit < 0 ? (by > 0 ? 0 : hits.length - 1) : (hit + by + hits.length) % hits.length;
  counter.textContent = say("hits", { at: hit + 1, count: hits.length });
  const { side, at } = hits[hit];
  chooseHit(current.tokens.same ? { query: at, key: at } : { [side]: at });
};

export const clearSearch = () => {
  field.value = "";
};

export const listenToSearch = (choose) => {
  chooseHit = choose;
  field.addEventListener("input", search);
  document.getElementById("search").addEventListener("submit", (event) => {
    event.preventDefault();
    jump(1);
  });
  document.getElementById("before").addEventListener("click", () => jump(-1));
};
