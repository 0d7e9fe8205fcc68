// What is written around the map: titles, the sinks, the colour scale, and the number that is read.

import { view } from "./view.js";
import {
  around,
  current,
  layer,
  layerName,
  mapInWords,
  mapSize,
  mapUnits,
  nameOf,
  placeOf,
  poolNow,
  slots,
} from "./current.js";
import { DECADES, paintRamp } from "./colours.js";
import { cellSpan, stepNow, topOf } from "./tiles.js";
import { cell } from "./frame.js";
import { headName } from "./heads.js";
import { isolated, patternName, say, sayWith } from "./words.js";

const PAUSE = 60; // milliseconds that the pointer rests before a single weight is asked for
const byId = (name) => document.getElementById(name);

const number = (value, digits = current.source.digits) => {
  if (value === null || Number.isNaN(value)) return say("unknown");
  if (digits !== null) return value.toFixed(digits);
  if (value === 0) return "0";
  return value >= 1e-4 ? value.toFixed(6) : value.toExponential(3);
};

export const complain = (problem) => {
  if (problem?.name === "AbortError") return;
  const known = ["unreachable", "noInflate"];
  const text = problem ? (known.includes(problem.message) ? say(problem.message) : problem.message) : "";
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
};

const nameSinks = () => {
  const { sinks } = current.info.a;
  const list = sinks.flatMap(({ key, share }, at) => {
    const name = mapUnits("key").list[mapUnits("key").of[key]]?.text ?? String(key);
    return [at ? ", " : "", isolated(name), ` (${key}: ${share.toFixed(2)})`];
  });
  byId("sinks").disabled = !sinks.length;
  const together = !view.sinks && !mapInWords() && stepNow() > 1 ? ` ${say("together")}` : "";
  const note = () => [...sayWith(view.sinks ? "sinksShown" : "sinksHidden", { sinks: list }), together];
  byId("sink-note").replaceChildren(...(sinks.length ? note() : [say("noSinks")]));
};

export const nameMap = () => {
  const about = { layer: layerName(layer()), head: view.head, ...mapSize() };
  byId("map-title").textContent = say("title", about);
  byId("map-title").title = layer().name;
  byId("map").setAttribute("aria-label", say("mapLabel", about));
  nameSinks();
  const shown = slots();
  for (const slot of ["a", "b"]) {
    byId(`side-${slot}`).hidden = !shown[slot];
    if (!shown[slot]) continue;
    byId(`name-${slot}`).textContent = headName(shown[slot]);
    const { pattern, statistics } = current.info[slot];
    const means = statistics.map(([name, mean]) => `${name} ${Number(mean.toPrecision(3))}`);
    byId(`pattern-${slot}`).textContent = [patternName(pattern), ...means].join(" · ");
  }
};

const explain = () => {
  const step = stepNow();
  const top = topOf(step);
  paintRamp(byId("ramp"), view);
  const low = top / 10 ** DECADES;
  byId("ramp-text").textContent = say(view.scale === "log" ? "rampLog" : "ramp", {
    top: number(top),
    low: number(low),
  });
  const { down, across } = cellSpan(step);
  const span = down * across === 1 ? say(mapInWords() ? "cellWord" : "cellOne") : say("cellMany", { down, across });
  const finest = current.info.a.finest > 1 ? ` ${say(current.source.finest)}` : "";
  byId("map-hint").textContent = `${span}${finest} ${say("mapHint")}`;
};

const strong = (text) => Object.assign(document.createElement("strong"), { textContent: text });
const mark = (text) => Object.assign(document.createElement("mark"), { textContent: text });

const line = (...parts) => {
  const element = document.createElement("div");
  element.append(...parts);
  return element;
};

const inContext = ({ name, before, after }) => {
  const box = document.createElement("bdi");
  box.append(...[before && `… ${before} `, mark(name), after && ` ${after} …`].filter(Boolean));
  return box;
};

// `found` has the weight, what it is without the sinks, and what it is at most where it was not kept.
const showWeight = (found, at) => {
  const box = byId("readout");
  const names = sayWith("weightIs", {
    query: isolated(nameOf("query", at.query)),
    key: isolated(nameOf("key", at.key)),
  });
  const plain = found.weight === null ? say("below", { below: number(found.below) }) : number(found.weight);
  const both =
    found.without === null
      ? ""
      : view.sinks
        ? say("without", { without: number(found.without) })
        : say("withThem", { weight: plain });
  const main = view.sinks || found.without === null ? plain : number(found.without);
  const [query, key] = ["query", "key"].map((side) => mapUnits(side).list[at[side]].start);
  box.replaceChildren(
    line(...names, strong(main), both, say("at", { query: query + 1, key: key + 1 })),
    line(inContext(around("query", at.query)), "  →  ", inContext(around("key", at.key))),
  );
  Object.assign(box.dataset, { query, key, weight: found.weight ?? "", without: found.without ?? "" });
};

const showCell = (at) => {
  const box = byId("readout");
  const range = (from, to) => (to - from === 1 ? `${to}` : `${from + 1}–${to}`);
  const digits = layer().exact ? current.source.digits : current.source.cellDigits;
  const value =
    at.value === null ? "…" : say(poolNow() === "mean" ? "meanOf" : "maxOf", { value: number(at.value, digits) });
  const ends = [isolated(nameOf("query", at.query)), " … → ", isolated(nameOf("key", at.key)), " …"];
  const place = { rows: range(at.query, at.queryEnd), columns: range(at.key, at.keyEnd) };
  box.replaceChildren(line(say("cellIs", place), strong(value)), line(...ends));
  Object.assign(box.dataset, { query: at.query, key: at.key, weight: "", without: "", cell: at.value ?? "" });
};

let read = "";
let timer = 0;
// Called after each drawing. A single weight is asked for once the cursor rests.
export const readCell = () => {
  explain();
  const at = cell();
  if (!at) {
    read = "";
    clearTimeout(timer);
    byId("readout").replaceChildren();
    return;
  }
  const { a } = slots();
  const name = [
    ...Object.values(placeOf(a)),
    view.pool,
    view.sinks,
    view.language,
    mapInWords(),
    ...Object.values(at),
  ].join();
  if (name === read) return;
  read = name;
  clearTimeout(timer);
  if (at.down * at.across > 1 || at.value === null) {
    showCell(at);
  } else if (mapInWords()) {
    showWeight({ weight: at.value, without: null, below: null }, at);
  } else {
    byId("readout").firstChild || byId("readout").append(line(nameOf("query", at.query)));
    const show = (found) => {
      if (read === name) showWeight(found, at);
    };
    timer = setTimeout(() => current.source.weight(placeOf(a), at.query, at.key).then(show, complain), PAUSE);
  }
};
export const forgetCell = () => {
  read = "";
};
