// The lists and switches at the top of the page, filled from the view and the record.

import { view } from "./view.js";
import { current, hasWords, layer, layerName, poolNow, pools, record } from "./current.js";
import { say, summary } from "./words.js";

const byId = (name) => document.getElementById(name);

const setOptions = (select, list, value) => {
  const made = list.map(([name, text]) =>
    Object.assign(document.createElement("option"), { value: name, textContent: text }),
  );
  select.replaceChildren(...made);
  select.value = value;
};

const counted = (count) => Array.from({ length: count }, (_, at) => [at, at]);

const titleOf = (one) => [String(one.number + 1), one.model, one.title].filter(Boolean).join(" · ");

const fillHeadControls = () => {
  const { layers } = record();
  const second = { layer: view.layer2 ?? view.layer, head: view.head2 ?? view.head };
  for (const [name, at] of Object.entries({ a: view, b: second })) {
    setOptions(
      byId(`layer-${name}`),
      layers.map((one, number) => [number, layerName(one)]),
      at.layer,
    );
    setOptions(byId(`head-${name}`), layers[at.layer].heads.map((one) => [one, one]), at.head);
  }
  byId("show-b").checked = view.head2 !== null;
  byId("patterns").textContent = summary(layers);
};

export const fillControls = () => {
  const { records, name } = current.file;
  setOptions(
    byId("record"),
    records.map((one) => [one.number, titleOf(one)]),
    view.record,
  );
  setOptions(
    byId("sequence"),
    layer().size[0] > 1 ? counted(layer().size[0]).map(([at]) => [at, at + 1]) : [[0, 1]],
    view.sequence,
  );
  byId("record-label").hidden = !current.source.send && records.length === 1;
  byId("sequence-label").hidden = layer().size[0] === 1;
  fillHeadControls();
  for (const control of ["scale", "floor", "language"]) byId(control).value = view[control];
  byId("sinks").checked = view.sinks;
  byId("words").checked = view.words;
  if (document.body.classList.contains("atlas")) {
    byId("title").textContent = [name, titleOf(record())].filter(Boolean).join(" — ");
    document.title = byId("title").textContent;
  }
  byId("missing").hidden = !record().missing.length;
  byId("missing").textContent = say("missing", { lines: record().missing.join("; ") });
  byId("precision").textContent =
    current.source.digits === null ? "" : say(layer().exact ? "holdsAll" : "holdsTop", { top: layer().top });
};

export const fillTokenControls = () => {
  byId("words-label").hidden = !hasWords();
  byId("pool").value = poolNow();
  byId("pool").disabled = pools().length === 1;
};
