// The text: its words, the lines from the one that is pointed at to those it looks at, and the weights as lists.

import { view } from "./view.js";
import { current, loadTextRow, slots, textUnits } from "./current.js";
import { curve, svgPath } from "./link_shapes.js";
import { isolated, say, sayWith } from "./words.js";

const PART = 400; // words shown at once
const LINES = 8; // lines a head
const FAINTEST = 0.001; // weight of a line, or a tenth of the strongest
const LISTED = 10;
const LONG = 60; // words from which on the text is set smaller and scrolls
const byId = (name) => document.getElementById(name);

const elements = { query: new Map(), key: new Map() };
const rows = { a: null, b: null }; // the weights of the active word
let active = null; // the word pointed at, else the chosen one
let part = null; // which part of a long text is shown
let visit = () => {};

const chosenUnit = () => (view.query === null ? null : textUnits("query").of[view.query]);
const targets = () => (current.tokens.same ? elements.query : elements.key);
// The strongest words of a row, the strongest first.
const best = (row, count) => {
  const found = [];
  row?.forEach((weight, unit) => {
    if (!(weight > 0) || (found.length === count && weight <= found.at(-1).weight)) return;
    found.push({ unit, weight });
    found.sort((one, other) => other.weight - one.weight || one.unit - other.unit);
    found.length = Math.min(found.length, count);
  });
  return found;
};

const makeToken = (side, unit, index) => {
  const element = document.createElement(side === "query" ? "button" : "span");
  const classes = ["special", "piece", "generated"].filter((name) => unit[name]);
  element.className = ["token", ...classes].join(" ");
  element.textContent = unit.text;
  Object.assign(element.dataset, { side, unit: index, at: unit.start });
  if (side === "query") Object.assign(element, { type: "button", tabIndex: -1 });
  return element;
};

const fill = (box, side, which) => {
  const { list } = textUnits(side);
  const start = which * PART;
  const content = document.createDocumentFragment();
  elements[side].clear();
  list.slice(start, start + PART).forEach((unit, i) => {
    if (i && (unit.space || unit.special || list[start + i - 1].special)) content.append(" ");
    else if (i) content.append(document.createElement("wbr")); // Chinese breaks without white space
    const element = makeToken(side, unit, start + i);
    elements[side].set(start + i, element);
    content.append(element);
  });
  box.replaceChildren(content);
};

let filled = []; // elements are made anew only where other words are shown, so that the focus stays
const fillText = () => {
  const { same } = current.tokens;
  const keyPart = same ? 0 : Math.floor((best(rows.a, 1)[0]?.unit ?? 0) / PART);
  const next = [current.tokens, view.words, part, keyPart];
  if (next.some((one, at) => one !== filled[at])) {
    filled = next;
    fill(byId("queries"), "query", part);
    if (!same) fill(byId("keys"), "key", keyPart);
  }
  byId("keys").hidden = same;
  byId("text").classList.toggle("long", textUnits("query").list.length > LONG);
  byId("text").classList.toggle("crossing", !same);
  describeText(textUnits("query").list);
};

const describeText = (list) => {
  const count = list.length;
  byId("pager").hidden = count <= PART;
  const [from, to] = [part * PART + 1, Math.min((part + 1) * PART, count)];
  byId("where").textContent = say(view.words ? "wordsShown" : "tokensShown", { from, to, count });
  byId("earlier").disabled = part === 0;
  byId("later").disabled = to === count;
  byId("generated").hidden = !list.at(-1)?.generated;
  const prompt = list.findIndex(({ generated }) => generated);
  byId("generated").textContent = say("generated", { prompt, count: count - prompt });
};

const tint = (slot, share) => `color-mix(in srgb, var(--${slot}) ${Math.round(share)}%, transparent)`;

const drawLink = (content, { unit, weight }, strongest, slot) => {
  const [source, target] = [elements.query.get(active), targets().get(unit)];
  if (!target || weight < Math.min(FAINTEST, strongest / 10)) return;
  if (slot === "b") target.style.boxShadow = `inset 0 -3px 0 ${tint("b", 30 + (70 * weight) / strongest)}`;
  if (!source) return;
  const [from, to] = [source.getBoundingClientRect(), target.getBoundingClientRect()];
  const line = curve(source === target ? to : from, to, slot, byId("lines").getBoundingClientRect());
  const [opacity, wide] = [0.2 + (0.8 * weight) / strongest, 1 + 5 * weight];
  const data = { "data-unit": unit, "data-weight": weight.toFixed(4) };
  content.append(svgPath({ class: `line-${slot}`, d: line.path, "stroke-width": wide, opacity, ...data }));
  const [w, h] = [3 + wide, (5 + wide) * line.tip];
  content.append(svgPath({ class: `tip-${slot}`, d: `M${line.x},${line.y}l${-w},${h}h${2 * w}z`, opacity }));
};

export const drawLinks = () => {
  if (!current.tokens) return;
  byId("lines").setAttribute("height", 0);
  byId("lines").setAttribute("height", byId("text").scrollHeight);
  const content = document.createDocumentFragment();
  const top = best(rows.a, 1)[0]?.weight ?? 1;
  for (const [unit, element] of targets()) {
    const share = unit === active && current.tokens.same ? 0 : (rows.a?.[unit] ?? 0) / top;
    element.style.background = share > 0.02 ? tint("a", 55 * share) : "";
    element.style.boxShadow = "";
  }
  for (const slot of ["a", "b"]) {
    const links = best(rows[slot], LINES);
    for (const one of links.reverse()) drawLink(content, one, links.at(-1).weight, slot);
  }
  byId("lines").replaceChildren(content);
};

const makeItem = (query, { unit, weight }, tabIndex) => {
  const [item, button] = [document.createElement("li"), document.createElement("button")];
  const [number, bar] = [document.createElement("span"), document.createElement("span")];
  const keys = textUnits("key").list;
  Object.assign(item.dataset, { query: query.start, key: keys[unit].start, weight: weight.toFixed(4) });
  Object.assign(button, {
    type: "button",
    className: "pair",
    tabIndex,
    title: `\u2068${query.text}\u2069 → \u2068${keys[unit].text}\u2069`,
  });
  button.append(isolated(query.text), " → ", isolated(keys[unit].text));
  button.addEventListener("click", () => visit(query.start, keys[unit].start));
  Object.assign(number, { className: "number", textContent: weight.toFixed(4) });
  bar.className = "bar";
  bar.append(document.createElement("span"));
  bar.firstChild.style.width = `${Math.min(100, weight * 100)}%`;
  item.append(button, number, bar);
  return item;
};

const hintOf = (row) => {
  if (!row || row.some(Number.isNaN)) return "weightsFew";
  return row.some((weight) => weight > 0) ? "weightsAll" : "weightsNone"; // a row that was not recorded is 0
};

const listWeights = () => {
  const query = active === null ? null : textUnits("query").list[active];
  for (const slot of ["a", "b"]) {
    const items = best(rows[slot], LISTED).map((one, at) => makeItem(query, one, at ? -1 : 0));
    byId(`weights-${slot}`).replaceChildren(...items);
  }
  byId("weights-hint").textContent = say(query ? hintOf(rows.a) : "none");
  byId("active-word").hidden = !query;
  if (query)
    byId("active-word").replaceChildren(...sayWith("looksAt", { token: isolated(query.text), query: query.start + 1 }));
};

// Up and down through a list; Tab passes it in one step.
const listenToList = (list) =>
  list.addEventListener("keydown", (event) => {
    const item = event.target.closest("li");
    const next = { ArrowUp: item?.previousSibling, ArrowDown: item?.nextSibling }[event.key];
    if (!next) return;
    event.preventDefault();
    next.querySelector("button").focus();
  });

// Scroll the text, not the page, until the chosen word is in sight.
const reveal = () => {
  const [box, element] = [byId("text"), elements.query.get(active)];
  if (!element || box.scrollHeight <= box.clientHeight) return;
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - outer.height / 2;
};

const markActive = () => {
  const [chosen, key] = [chosenUnit(), view.key === null ? null : textUnits("key").of[view.key]];
  for (const [index, element] of elements.query) {
    element.classList.toggle("active", index === active);
    element.classList.toggle("chosen", index === chosen);
    element.setAttribute("aria-pressed", index === chosen);
    element.tabIndex = index === active ? 0 : -1;
  }
  for (const [index, element] of targets()) element.classList.toggle("chosen-key", index === key && index !== active);
  if (!elements.query.has(active)) elements.query.values().next().value?.setAttribute("tabindex", 0);
};

let loading = 0;
// Load the rows of a word and draw them: that under the pointer, or the chosen one.
const activate = async (unit) => {
  const mine = ++loading;
  const shown = slots();
  const load = (slot) => (unit === null || !shown[slot] ? null : loadTextRow(shown[slot], unit));
  const [a, b] = await Promise.all([load("a"), load("b")]);
  if (mine !== loading) return false;
  active = unit;
  Object.assign(rows, { a, b });
  return true;
};

const drawActive = () => {
  markActive();
  drawLinks();
  listWeights();
};

export const forgetPart = () => {
  part = null;
};

export const drawSentence = async () => {
  const unit = chosenUnit();
  if (!(await activate(unit))) return;
  if (unit !== null) part = Math.floor(unit / PART);
  part ??= Math.floor((textUnits("query").of[Math.floor(view.y ?? 0)] ?? 0) / PART);
  fillText();
  drawActive();
  reveal();
};

let resting = 0;
const point = (unit, complain) => {
  clearTimeout(resting);
  if (unit === active) return;
  const act = () =>
    activate(unit).then((latest) => {
      if (latest) drawActive();
    }, complain);
  if (current.source.pause) resting = setTimeout(act, current.source.pause);
  else act();
};

const movedFrom = (unit, key) => {
  const last = textUnits("query").list.length - 1;
  const moves = {
    ArrowLeft: unit - 1,
    ArrowUp: unit - 1,
    ArrowRight: unit + 1,
    ArrowDown: unit + 1,
    Home: 0,
    End: last,
  };
  return moves[key] >= 0 && moves[key] <= last ? moves[key] : null;
};

export const listenToSentence = ({ choose, visited, complain }) => {
  visit = visited;
  const box = byId("queries");
  const unitOf = (event) => {
    const token = event.target.closest(".token");
    return token ? Number(token.dataset.unit) : null;
  };
  const chooseWord = (side, unit) => {
    const at = textUnits(side).list[unit].start;
    return choose(current.tokens.same ? { query: at, key: at } : { [side]: at });
  };
  const listenToClicks = (side, element) =>
    element.addEventListener("click", (event) => {
      const unit = unitOf(event);
      if (unit !== null) chooseWord(side, unit);
    });
  for (const kind of ["pointerover", "focusin"]) {
    box.addEventListener(kind, (event) => {
      const unit = unitOf(event);
      if (unit !== null) point(unit, complain);
    });
  }
  box.addEventListener("pointerleave", () => point(chosenUnit(), complain));
  listenToClicks("query", box);
  listenToClicks("key", byId("keys"));
  box.addEventListener("keydown", async (event) => {
    const next = movedFrom(unitOf(event) ?? active, event.key);
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    await chooseWord("query", next);
    elements.query.get(next)?.focus();
  });
  for (const slot of ["a", "b"]) listenToList(byId(`weights-${slot}`));
  const turn = (by) => {
    part += by;
    fillText();
    drawActive();
  };
  byId("earlier").addEventListener("click", () => turn(-1));
  byId("later").addEventListener("click", () => turn(1));
  new ResizeObserver(drawLinks).observe(byId("text"));
};
