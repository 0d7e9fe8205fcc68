// The text beside the map: the chosen row's links drawn over it, its strongest keys as a list, and the search.

import { view } from "./view.js";
import { head, loadLine, nameOf, size } from "./data.js";
import { css } from "./colour.js";
import { lines } from "./axes.js";
import { apart, say, sayWith } from "./words.js";

const AROUND = 150; // tokens shown before and after the chosen one of a long text
const WHOLE = 400; // tokens of a text that is shown whole
const LINKS = 8;
const byId = (name) => document.getElementById(name);
const SVG = "http://www.w3.org/2000/svg";
let choose = () => {};
let visit = () => {};
let strongest = [];

const windowOf = (count, centre) => {
  if (count <= WHOLE) return [0, count];
  const from = Math.max(0, Math.min(Math.round(centre) - AROUND, count - 2 * AROUND));
  return [from, Math.min(count, from + 2 * AROUND)];
};

const shade = (token, share) => {
  if (!(share > 0.02)) return;
  token.style.backgroundColor = `color-mix(in srgb, ${css("--a")} ${Math.round(100 * Math.min(share, 1))}%, transparent)`;
  token.classList.toggle("strong", share > 0.55);
};

const write = (box, side, [from, to], top) => {
  const stream = side === "key" && !head.tokens.same ? head.tokens.keys : head.tokens.queries;
  const parts = [];
  for (let at = from; at < to; at++) {
    if (stream.marks[at] & 1 && at > from) parts.push(" ");
    const token = document.createElement("span");
    token.className = `token${stream.marks[at] & 2 ? " special" : ""}`;
    token.textContent = stream.texts[at];
    token.dataset.at = at;
    token.dataset.side = side;
    if ((side === "query" || head.tokens.same) && at === view.query) token.classList.add("chosen");
    else if ((side === "key" || head.tokens.same) && lines.row && view.query !== null) shade(token, lines.row[at] / top);
    if (at === view.key && (side === "key" || head.tokens.same)) token.classList.add("asked");
    parts.push(token);
  }
  box.replaceChildren(...parts);
  return to - from < stream.texts.length ? [from + 1, to, stream.texts.length] : null;
};

const drawLinks = () => {
  const svg = byId("lines");
  const box = byId("text");
  svg.setAttribute("height", box.scrollHeight);
  const from = box.querySelector(".token.chosen");
  const place = (token) => {
    const [outer, inner] = [box.getBoundingClientRect(), token.getBoundingClientRect()];
    return [inner.left + inner.width / 2 - outer.left - box.clientLeft, inner.top - outer.top - box.clientTop + box.scrollTop, inner.height];
  };
  const paths = [];
  for (const { key, weight } of from ? strongest : []) {
    const to = box.querySelector(`.token[data-at="${key}"]${head.tokens.same ? "" : '[data-side="key"]'}`);
    if (!to || to === from) continue;
    const [[x, y], [toX, toY]] = [place(from), place(to)];
    const lift = Math.min(14 + Math.abs(toX - x) / 12, 40);
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", "line");
    path.setAttribute("d", `M${x} ${y} C${x} ${y - lift} ${toX} ${toY - lift} ${toX} ${toY}`);
    path.setAttribute("stroke-width", 1 + 4 * weight);
    path.dataset.key = key;
    paths.push(path);
  }
  svg.replaceChildren(...paths);
};

const list = () => {
  const title = () => sayWith("linksTitle", { token: apart(nameOf("query", view.query)), query: view.query });
  byId("links-title").replaceChildren(...(view.query === null ? [say("none")] : title()));
  const exact = lines.row && !lines.row.some(Number.isNaN);
  byId("links-hint").textContent = view.query === null ? "" : say(exact ? "linksHint" : "linksFew");
  byId("links-list").replaceChildren(...strongest.map(({ key, weight }) => {
    const [item, button, number] = [document.createElement("li"), document.createElement("button"), document.createElement("span")];
    button.type = "button";
    button.append(apart(nameOf("key", key)));
    button.title = String(key);
    button.addEventListener("click", () => visit(view.query, key));
    number.className = "number";
    number.textContent = weight.toFixed(4);
    Object.assign(item.dataset, { key, weight });
    item.append(button, number);
    return item;
  }));
};

const best = (row) => {
  const found = [];
  row.forEach((weight, key) => {
    if (!(weight > 0) || (found.length === LINKS && weight <= found.at(-1).weight)) return;
    found.push({ key, weight });
    found.sort((one, other) => other.weight - one.weight || one.key - other.key);
    found.length = Math.min(found.length, LINKS);
  });
  return found;
};

export const drawText = () => {
  const { queries, keys } = size();
  const same = head.tokens.same;
  const top = strongest.length ? strongest[0].weight : 1;
  const cut = write(byId("queries"), "query", windowOf(queries, view.query ?? view.y ?? 0), top);
  byId("keys").hidden = same;
  if (!same) write(byId("keys"), "key", windowOf(keys, strongest.length ? strongest[0].key : view.key ?? 0), top);
  byId("text-hint").textContent = cut ? say("tokens", { from: cut[0], to: cut[1], count: cut[2] }) : "";
  list();
  drawLinks();
  const chosen = byId("text").querySelector(".token.chosen");
  if (chosen) byId("text").scrollTop += chosen.getBoundingClientRect().top - byId("text").getBoundingClientRect().top - 120;
};

// Load the weights of the chosen row and column, and draw what they say.
let asked = 0;
export const showChosen = async () => {
  asked += 1;
  const mine = asked;
  const load = (axis, at) => (at === null ? null : loadLine(axis, at));
  const [row, column] = await Promise.all([load("row", view.query), load("column", view.key)]);
  if (mine !== asked) return;
  Object.assign(lines, { row, column });
  strongest = row ? best(row) : [];
  drawText();
};

// Every place of what is searched for, across the pieces of words; in cross-attention, in both texts.
let hits = [];
let current = -1;
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
  const wanted = byId("wanted").value.trim().toLowerCase();
  current = -1;
  const both = head.tokens.same ? [["query", head.tokens.queries]] : [["query", head.tokens.queries], ["key", head.tokens.keys]];
  hits = wanted ? both.flatMap(([side, stream]) => places(side, stream, wanted)) : [];
  byId("hits").textContent = wanted && !hits.length ? say("noHits") : "";
};

export const jump = (by) => {
  if (!hits.length) return;
  current = current < 0 ? (by > 0 ? 0 : hits.length - 1) : (current + by + hits.length) % hits.length;
  byId("hits").textContent = say("hits", { at: current + 1, count: hits.length });
  const { side, at } = hits[current];
  if (head.tokens.same) choose(at, at, true);
  else choose(side === "query" ? at : view.query, side === "key" ? at : view.key, true);
};

export const listenToText = (chosen, visited) => {
  choose = chosen;
  visit = visited;
  byId("text").addEventListener("click", ({ target }) => {
    if (!target.dataset.at) return;
    const at = Number(target.dataset.at);
    if (head.tokens.same) choose(at, at, true);
    else choose(target.dataset.side === "query" ? at : view.query, target.dataset.side === "key" ? at : view.key, true);
  });
  byId("wanted").addEventListener("input", search);
  byId("search").addEventListener("submit", (event) => { event.preventDefault(); jump(1); });
  byId("before").addEventListener("click", () => jump(-1));
  new ResizeObserver(() => head.tokens && drawLinks()).observe(byId("text"));
};
