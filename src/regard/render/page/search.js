// The places of what is searched for, the word itself before what has it inside; in cross-attention, in both texts.

import { current } from "./current.js";
import { findPlaces } from "./places.js";
import { say } from "./words.js";

const field = document.getElementById("wanted");
const counter = document.getElementById("hits");
let hits = [];
let hit = -1;
let chooseHit = () => {};

const places = (side, stream, wanted) => findPlaces(stream, wanted).map(([at]) => ({ side, at }));

export const search = () => {
  if (!current.tokens) return;
  const wanted = field.value.trim();
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
