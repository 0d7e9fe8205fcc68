// What stands around the map in words: its title, the sinks, the colour scale, and the number under the cursor.

import { view } from "./view.js";
import { head, layer, layerName, loadWeight, nameOf, size } from "./data.js";
import { DECADES, paintRamp } from "./colour.js";
import { cell, stepNow } from "./map.js";
import { apart, say, sayWith } from "./words.js";

const byId = (name) => document.getElementById(name);

export const number = (value) => {
  if (value === null || Number.isNaN(value)) return say("unknown");
  if (value === 0) return "0";
  return value >= 1e-4 ? value.toFixed(6) : value.toExponential(3);
};

export const complain = (problem) => {
  if (problem && problem.name === "AbortError") return;
  const text = problem ? (problem.message === "unreachable" ? say("unreachable") : problem.message) : "";
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
};

export const nameHead = () => {
  const about = { layer: layerName(layer()), head: view.head, ...size() };
  byId("map-title").textContent = say("title", about);
  byId("map-title").title = layer().name;
  byId("map").setAttribute("aria-label", say("mapLabel", about));
  const sinks = head.info.sinks.flatMap(({ key, share }, at) => [at ? ", " : "", apart(nameOf("key", key)), ` (${key}: ${share.toFixed(2)})`]);
  byId("sinks").disabled = !sinks.length;
  const together = !view.sinks && stepNow() > 1 ? ` ${say("together")}` : "";
  const hides = () => [...sayWith(view.sinks ? "sinksShown" : "sinksHidden", { sinks }), together];
  byId("sink-note").replaceChildren(...(sinks.length ? hides() : [say("noSinks")]));
};

const explain = () => {
  const step = stepNow();
  const top = paintRamp(byId("ramp"), step);
  byId("ramp-text").textContent = say(view.scale === "log" ? "rampLog" : "ramp", { top: number(top), low: number(top / 10 ** DECADES) });
  const finest = head.info.finest > 1 ? ` ${say("finest")}` : "";
  byId("map-hint").textContent = `${step === 1 ? say("cellOne") : say("cellMany", { step })}${finest} ${say("mapHint")}`;
};

const strong = (text) => Object.assign(document.createElement("strong"), { textContent: text });
const mark = (text) => Object.assign(document.createElement("mark"), { textContent: text });

// A token with those around it.
const within = ({ token, before, after }) => {
  const box = document.createElement("bdi");
  box.append(...[before && `… ${before} `, mark(token), after && ` ${after} …`].filter(Boolean));
  return box;
};

const line = (...parts) => {
  const paragraph = document.createElement("div");
  paragraph.append(...parts);
  return paragraph;
};

const showWeight = (found, at) => {
  const box = byId("readout");
  const names = sayWith("weightIs", { query: apart(found.query.token), key: apart(found.key.token) });
  const plain = found.weight === null ? say("below", { below: number(found.below) }) : number(found.weight);
  const other = found.without === null ? "" : view.sinks ? say("without", { without: number(found.without) }) : say("withThem", { weight: plain });
  const main = view.sinks || found.without === null ? plain : number(found.without);
  box.replaceChildren(
    line(...names, strong(main), other, say("at", { query: at.query, key: at.key })),
    line(within(found.query), "  →  ", within(found.key)),
  );
  Object.assign(box.dataset, { query: at.query, key: at.key, weight: found.weight ?? "", without: found.without ?? "" });
};

const showCell = (at) => {
  const box = byId("readout");
  const range = (from, to) => (to - from === 1 ? `${from}` : `${from}–${to - 1}`);
  const value = at.value === null ? "…" : say(view.pool === "mean" ? "meanOf" : "maxOf", { value: number(at.value) });
  const ends = [apart(nameOf("query", at.query)), " … → ", apart(nameOf("key", at.key)), " …"];
  box.replaceChildren(line(say("cellIs", { rows: range(at.query, at.queryEnd), columns: range(at.key, at.keyEnd) }), strong(value)), line(...ends));
  Object.assign(box.dataset, { query: at.query, key: at.key, weight: "", without: "", cell: at.value ?? "" });
};

let shown = "";
let later = 0;
// Called after each drawing. A single weight is asked from the server once the cursor rests.
export const readCell = () => {
  explain();
  const at = cell();
  if (!at) {
    shown = "";
    clearTimeout(later);
    byId("readout").replaceChildren();
    return;
  }
  const name = [view.record, view.sequence, view.layer, view.head, view.pool, view.sinks, view.language, at.query, at.key, at.step, at.value].join();
  if (name === shown) return;
  shown = name;
  clearTimeout(later);
  if (at.step === 1 && at.value !== null) {
    const texts = { token: nameOf("query", at.query) };
    byId("readout").firstChild || byId("readout").append(line(texts.token));
    later = setTimeout(() => loadWeight(at.query, at.key).then((found) => { if (shown === name) showWeight(found, at); }, complain), 60);
  } else {
    showCell(at);
  }
};
export const forgetCell = () => { shown = ""; };
