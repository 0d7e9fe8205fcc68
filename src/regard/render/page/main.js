// What is chosen decides what is loaded, and what is loaded is drawn.

import { address, readAddress, startWith, view, writeAddress } from "./view.js";
import {
  chosenLines,
  current,
  layer,
  loadChosenLines,
  loadRecords,
  loadTokens,
  mapUnits,
  matrixSize,
  nearHead,
  placeOf,
  record,
  slots,
} from "./current.js";
import { dark } from "./colours.js";
import { listenToTiles } from "./tiles.js";
import { cell } from "./frame.js";
import { drawMap, listenToMap, revealChosen, showSingle, showWhole, zoomBy } from "./map.js";
import { drawHeads, listenToHeads, markHeads, nameHeads } from "./heads.js";
import { drawLinks, drawSentence, forgetPart, listenToSentence } from "./sentence.js";
import { clearSearch, jump, listenToSearch, search } from "./search.js";
import { complain, forgetCell, nameMap, readCell } from "./panel.js";
import { listenToKeys } from "./keys.js";
import { fillControls, fillTokenControls } from "./controls.js";
import { say, speak } from "./words.js";

const byId = (name) => document.getElementById(name);
const bounded = (value, count) => Math.max(0, Math.min(count - 1, value ?? 0));
const EVEN = 128; // tokens: of longer texts few weights are large
let slot = "a"; // which head a click on a small map chooses
let round = 0;

// Bring an address that names more than there is back to what there is.
const clamp = () => {
  if (!record()) view.record = current.file.records[0].number;
  const count = record().layers.length;
  view.layer = bounded(view.layer, count);
  const [batch, , queries, keys] = layer().size;
  view.sequence = bounded(view.sequence, batch);
  view.head = nearHead(view.layer, view.head ?? 0);
  if (view.head2 !== null) {
    view.layer2 = bounded(view.layer2 ?? view.layer, count);
    view.head2 = nearHead(view.layer2, view.head2);
  }
  view.scale ??= Math.max(queries, keys) <= EVEN ? "linear" : "log";
  if (view.query !== null) view.query = bounded(view.query, queries);
  if (view.key !== null) view.key = bounded(view.key, keys);
};

const ready = () => {
  const { dataset } = document.documentElement;
  dataset.ready = String(Number(dataset.ready || 0) + 1);
};

const load = async () => {
  const { source } = current;
  const shown = slots();
  const [tokens, a, b] = await Promise.all([
    loadTokens(),
    source.head(placeOf(shown.a)),
    shown.b && source.head(placeOf(shown.b)),
  ]);
  return { tokens, info: { a, b } };
};

// Show what the view names; a later call overtakes an earlier one that still waits for numbers.
const show = async () => {
  const mine = ++round;
  speak();
  nameReader();
  const empty = !current.file.records.length;
  document.querySelector("main").hidden = empty;
  if (empty) {
    byId("title").textContent = say("nothing");
    ready();
    return;
  }
  clamp();
  fillControls();
  drawHeads().catch(complain);
  markHeads(slot);
  nameHeads();
  try {
    const loaded = await load();
    if (mine !== round) return;
    Object.assign(current, loaded);
    fillTokenControls();
    forgetCell();
    drawMap();
    const [lines] = await Promise.all([loadChosenLines(), drawSentence()]);
    if (mine !== round) return;
    Object.assign(chosenLines, lines);
    drawMap();
    nameMap();
    complain(null);
  } catch (problem) {
    complain(problem);
  }
  writeAddress();
  ready();
};

const nameReader = () => {
  byId("typed").hidden = !current.file.model;
  byId("sentence-label").textContent = say("sentence", { model: current.file.model });
};

const choose = (change, closer = false) => {
  Object.assign(view, change);
  revealChosen(closer);
  return show();
};
// The positions of the cell that is read, or of its first row and column.
const chooseCell = () => {
  const at = cell();
  if (at) choose({ query: mapUnits("query").list[at.query].start, key: mapUnits("key").list[at.key].start });
};

const extent = () =>
  record() ? String([view.record, view.sequence, layer().streams, matrixSize().queries, matrixSize().keys]) : "";
const anew = { x: null, y: null, zoom: null };

// Another place: another text or another size of the matrix is shown whole.
const goTo = (change) => {
  const before = extent();
  Object.assign(view, change);
  clamp();
  if (before !== extent()) {
    Object.assign(view, { ...anew, query: null, key: null });
    clearSearch();
    forgetPart();
  }
  show().then(search);
};

// The head of a slot; a second one that looks at other texts becomes the first.
const chooseHead = (which, { layer: at, head }) => {
  if (which === "a") return goTo({ layer: at, head: nearHead(at, head) });
  Object.assign(view, { layer2: at, head2: nearHead(at, head) });
  if (slots().b) return show();
  return goTo({ layer: at, head: view.head2 });
};

const flip = (name) => {
  if (name === "sinks") {
    if (current.info.a?.sinks.length) view.sinks = !view.sinks;
  } else view[name] = { pool: { max: "mean", mean: "max" }, scale: { log: "linear", linear: "log" } }[name][view[name]];
  show();
};

const sendText = async (event) => {
  event.preventDefault();
  byId("send").disabled = true;
  byId("reading").textContent = say("reading", { model: current.file.model });
  try {
    const { number, warning } = await current.source.send(byId("sentence").value);
    await loadRecords();
    goTo({ record: number, sequence: 0 });
    byId("reading").textContent = warning || say("read");
  } catch (problem) {
    byId("reading").textContent = "";
    complain(problem);
  } finally {
    byId("send").disabled = false;
  }
};

const listenToHeadControls = () => {
  const second = () => ({ layer: view.layer2 ?? view.layer, head: view.head2 ?? view.head });
  for (const which of ["a", "b"]) {
    for (const part of ["layer", "head"]) {
      byId(`${part}-${which}`).addEventListener("change", ({ target }) => {
        const { layer: at, head } = which === "a" ? view : second();
        chooseHead(which, { layer: at, head, [part]: Number(target.value) });
      });
    }
  }
  byId("show-b").addEventListener("change", ({ target }) => {
    const { layer: at, head } = second();
    if (target.checked) chooseHead("b", { layer: at, head });
    else {
      view.head2 = null;
      show();
    }
  });
  for (const radio of document.getElementsByName("slot")) {
    radio.addEventListener("change", () => {
      slot = radio.value;
      markHeads(slot);
    });
  }
};

const listenToControls = () => {
  for (const name of ["record", "sequence"])
    byId(name).addEventListener("change", ({ target }) => goTo({ [name]: Number(target.value) }));
  for (const name of ["pool", "scale", "language"])
    byId(name).addEventListener("change", ({ target }) => {
      view[name] = target.value;
      show();
    });
  byId("floor").addEventListener("input", ({ target }) => {
    view.floor = Number(target.value);
    drawMap();
  });
  byId("sinks").addEventListener("change", () => flip("sinks"));
  byId("words").addEventListener("change", ({ target }) => {
    Object.assign(view, anew, { words: target.checked });
    forgetPart();
    show();
  });
  byId("in").addEventListener("click", () => zoomBy(2));
  byId("out").addEventListener("click", () => zoomBy(0.5));
  byId("whole").addEventListener("click", showWhole);
  byId("single").addEventListener("click", showSingle);
  byId("typed").addEventListener("submit", sendText);
  byId("sentence").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("typed").requestSubmit();
  });
};

const listen = () => {
  listenToHeadControls();
  listenToControls();
  listenToTiles(drawMap, complain);
  listenToMap(readCell, chooseCell);
  listenToHeads((at) => chooseHead(slot, at));
  listenToSentence({ choose, visited: (query, key) => choose({ query, key }, true), complain });
  listenToSearch(choose);
  const go = (down, across) => {
    const to = bounded(view.layer + down, record().layers.length);
    goTo({ layer: to, head: nearHead(to, view.head + across, across < 0) });
  };
  listenToKeys({ go, flip, choose: chooseCell, clear: () => choose({ query: null, key: null }), jump });
  addEventListener("hashchange", () => {
    if (location.hash !== address()) {
      readAddress();
      forgetPart();
      show();
    }
  });
  dark.addEventListener("change", () => {
    if (current.tokens) {
      drawMap();
      drawLinks();
      drawHeads(true).then(() => markHeads(slot), complain);
    }
  });
};

// Begin, with a source of numbers.
export const start = (source) => {
  current.source = source;
  startWith(source.initial);
  readAddress();
  speak();
  listen();
  loadRecords().then(show).catch(complain);
};
