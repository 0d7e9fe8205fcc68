// The page: what is chosen decides what is loaded, and what is loaded is drawn.

import { address, readAddress, view, writeAddress } from "./view.js";
import { book, head, layer, layerName, listenToTiles, loadHead, loadRecords, loadTokens, record, sendText, size } from "./data.js";
import { dark } from "./colour.js";
import { cell, draw, listenToMap, lookAt, showSingle, showWhole, zoomBy } from "./map.js";
import { drawHeads, listenToHeads } from "./heads.js";
import { drawText, jump, listenToText, search, showChosen } from "./text.js";
import { complain, forgetCell, nameHead, readCell } from "./panel.js";
import { listenToKeys } from "./keys.js";
import { say, speak } from "./words.js";

const byId = (name) => document.getElementById(name);
const within = (value, count) => Math.max(0, Math.min(count - 1, value ?? 0));
const EVEN = 128; // tokens: of longer texts few weights are large
let round = 0;

const options = (select, list, chosen) => {
  const made = list.map(([value, text]) => Object.assign(document.createElement("option"), { value, textContent: text }));
  select.replaceChildren(...made);
  select.value = chosen;
};

const titleOf = (one) => [String(one.number + 1), one.model, one.title].filter(Boolean).join(" · ");

// Bring an address that names more than there is back to what there is.
const clamp = () => {
  if (!record()) view.record = book.records[0].number;
  view.layer = within(view.layer, record().layers.length);
  const [batch, heads, queries, keys] = layer().size;
  view.sequence = within(view.sequence, batch);
  view.head = within(view.head, heads);
  view.scale ??= Math.max(queries, keys) <= EVEN ? "linear" : "log";
  if (view.query !== null) view.query = within(view.query, queries);
  if (view.key !== null) view.key = within(view.key, keys);
};

const fillControls = () => {
  const { layers } = record();
  options(byId("record"), book.records.map((one) => [one.number, titleOf(one)]), view.record);
  options(byId("layer"), layers.map((one, at) => [at, layerName(one)]), view.layer);
  const [batch, heads] = layer().size;
  options(byId("sequence"), Array.from({ length: batch }, (_, at) => [at, at + 1]), view.sequence);
  options(byId("head"), Array.from({ length: heads }, (_, at) => [at, at]), view.head);
  byId("sequence-label").hidden = batch === 1;
  for (const name of ["pool", "scale", "floor", "language"]) byId(name).value = view[name];
  byId("sinks").checked = view.sinks;
  byId("title").textContent = [book.name, titleOf(record())].filter(Boolean).join(" — ");
  document.title = byId("title").textContent;
  byId("missing").hidden = !record().missing.length;
  byId("missing").textContent = say("missing", { lines: record().missing.join("; ") });
};

const ready = () => { document.documentElement.dataset.ready = String(Number(document.documentElement.dataset.ready || 0) + 1); };

// Show what the view says; a later call overtakes an earlier one that still waits for numbers.
const show = async () => {
  round += 1;
  const mine = round;
  speak();
  nameReader();
  if (!book.records.length) { byId("title").textContent = say("nothing"); document.querySelector("main").hidden = true; ready(); return; }
  document.querySelector("main").hidden = false;
  clamp();
  fillControls();
  drawHeads().catch(complain);
  try {
    const [tokens, info] = await Promise.all([loadTokens(), loadHead()]);
    if (mine !== round) return;
    Object.assign(head, { tokens, info });
    forgetCell();
    draw();
    await showChosen();
    if (mine !== round) return;
    draw();
    nameHead();
    complain(null);
  } catch (problem) {
    complain(problem);
  }
  writeAddress();
  ready();
};

const nameReader = () => {
  byId("typed").hidden = !book.model;
  byId("sentence-label").textContent = say("sentence", { model: book.model });
};

const choose = (query, key, goThere = false) => {
  Object.assign(view, { query, key });
  if (goThere) lookAt((query ?? view.y) + 0.5, (key ?? view.x) + 0.5);
  show();
};
const chooseCell = () => { const at = cell(); if (at) choose(at.query, at.key); };

// Another place: its own extent if its matrix has another one.
const goTo = (change) => {
  const before = record() ? String([view.record, view.sequence, size().queries, size().keys]) : "";
  Object.assign(view, change);
  clamp();
  const after = String([view.record, view.sequence, size().queries, size().keys]);
  if (before !== after) { Object.assign(view, { x: null, y: null, zoom: null, query: null, key: null }); byId("wanted").value = ""; }
  show().then(search);
};

const flip = (name) => {
  if (name === "sinks") { if (head.info?.sinks.length) view.sinks = !view.sinks; }
  else view[name] = { pool: { max: "mean", mean: "max" }, scale: { log: "linear", linear: "log" } }[name][view[name]];
  show();
};

const read = async (event) => {
  event.preventDefault();
  byId("send").disabled = true;
  byId("reading").textContent = say("reading", { model: book.model });
  try {
    const { number, warning } = await sendText(byId("sentence").value);
    await loadRecords();
    goTo({ record: number, layer: view.layer, head: view.head, sequence: 0 });
    byId("reading").textContent = warning || say("read");
  } catch (problem) {
    byId("reading").textContent = "";
    complain(problem);
  } finally {
    byId("send").disabled = false;
  }
};

const listen = () => {
  for (const name of ["record", "layer", "head", "sequence"]) byId(name).addEventListener("change", ({ target }) => goTo({ [name]: Number(target.value) }));
  for (const name of ["pool", "scale", "language"]) byId(name).addEventListener("change", ({ target }) => { view[name] = target.value; show(); });
  byId("floor").addEventListener("input", ({ target }) => { view.floor = Number(target.value); draw(); });
  byId("sinks").addEventListener("change", () => flip("sinks"));
  byId("in").addEventListener("click", () => zoomBy(2));
  byId("out").addEventListener("click", () => zoomBy(0.5));
  byId("whole").addEventListener("click", showWhole);
  byId("single").addEventListener("click", showSingle);
  byId("typed").addEventListener("submit", read);
  byId("sentence").addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); byId("typed").requestSubmit(); } });
  listenToTiles(draw, complain);
  listenToMap(readCell, chooseCell);
  listenToHeads((at, number) => goTo({ layer: within(at, record().layers.length), head: number }));
  listenToText(choose, (query, key) => { choose(query, key); lookAt(query + 0.5, key + 0.5, Math.max(view.zoom, 28)); });
  const go = (down, across) => goTo({ layer: within(view.layer + down, record().layers.length), head: view.head + across });
  listenToKeys({ go, flip, choose: chooseCell, clear: () => choose(null, null), jump });
  addEventListener("hashchange", () => { if (location.hash !== address()) { readAddress(); show(); } });
  dark.addEventListener("change", () => { if (head.tokens) { draw(); drawText(); drawHeads(true).catch(complain); } });
};

readAddress();
listen();
loadRecords().then(show, complain);
