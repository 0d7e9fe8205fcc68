// State, and what changes it. `a` and `b` are the two heads; `active` the word pointed at, `pinned` the one to return to.

const state = {
  a: { ...meta.focus.looks[0] },
  b: { ...(meta.focus.looks[1] || meta.focus.looks[0]) },
  showB: meta.focus.looks.length > 1,
  slot: "a", merge: true, part: 0, active: 0, pinned: 0,
};

const shownSlots = () => (state.showB && sameStreams(meta.layers[state.a.layer], meta.layers[state.b.layer]) ? ["a", "b"] : ["a"]);

let turn = 0;
const refresh = async () => {
  const mine = ++turn;
  await Promise.all(shownSlots().map((slot) => load(state[slot].layer)));
  if (mine !== turn) return; // the reader has moved on meanwhile
  cursor = null;
  drawText();
  reveal();
  drawActive();
  drawMap();
  nameHeads();
  markHeads();
  document.documentElement.dataset.ready = String(mine);
};

const nameHeads = () => {
  const shown = shownSlots();
  byId("side-b").hidden = !shown.includes("b");
  for (const slot of ["a", "b"]) {
    byId(`layer-${slot}`).value = state[slot].layer;
    fillHeads(slot);
    byId(`head-${slot}`).value = state[slot].head;
    byId(`name-${slot}`).textContent = headName(state[slot]);
    byId(`habit-${slot}`).textContent = habitOf(state[slot]);
  }
  byId("map-title").textContent = `Heat map of ${headName(state.a)}`;
};

const options = (select, names) => {
  if (select.options.length === names.length) return;
  select.replaceChildren(...names.map((name, value) => new Option(name, value)));
};
const fillHeads = (slot) => options(byId(`head-${slot}`), Array.from({ length: meta.layers[state[slot].layer].size[0] }, (_, head) => head));

const choose = (slot, at) => {
  const before = meta.layers[state.a.layer];
  const heads = meta.layers[at.layer].size[0];
  state[slot] = { layer: at.layer, head: Math.min(at.head, heads - 1) };
  if (slot === "b") {
    state.showB = byId("show-b").checked = true;
    if (!sameStreams(meta.layers[state.a.layer], meta.layers[at.layer])) state.a = { ...state.b };
  }
  if (!sameStreams(before, meta.layers[state.a.layer])) Object.assign(state, { active: 0, pinned: 0, part: 0 });
  refresh();
};

const activate = (index) => {
  if (index === state.active) return;
  state.active = index;
  drawActive();
  drawMap();
};

const pin = (index) => {
  state.pinned = index;
  state.active = index;
  const part = Math.floor(index / PART);
  if (part !== state.part) { state.part = part; drawText(); }
  reveal();
  drawActive();
  drawMap();
};

const listenToText = () => {
  const box = byId("queries");
  const unitOf = (event) => event.target.closest("button.token")?.dataset.unit;
  box.addEventListener("pointerover", (event) => { const unit = unitOf(event); if (unit) activate(Number(unit)); });
  box.addEventListener("pointerleave", () => activate(state.pinned));
  box.addEventListener("focusin", (event) => { const unit = unitOf(event); if (unit) activate(Number(unit)); });
  box.addEventListener("click", (event) => { const unit = unitOf(event); if (unit) pin(Number(unit)); });
  box.addEventListener("scroll", drawLines);
  byId("keys").addEventListener("scroll", drawLines);
  box.addEventListener("keydown", (event) => {
    const last = queryUnits().length - 1;
    const next = { ArrowLeft: state.active - 1, ArrowRight: state.active + 1, ArrowUp: state.active - 1, ArrowDown: state.active + 1, Home: 0, End: last }[event.key];
    if (next === undefined || next < 0 || next > last) return;
    event.preventDefault();
    pin(next);
    elements.queries.get(next).focus();
  });
};

const turnPart = (step) => { state.part += step; drawText(); drawActive(); };

const listenToControls = () => {
  for (const slot of ["a", "b"]) {
    options(byId(`layer-${slot}`), meta.layers.map(numberOf));
    byId(`layer-${slot}`).addEventListener("change", (event) => choose(slot, { layer: Number(event.target.value), head: state[slot].head }));
    byId(`head-${slot}`).addEventListener("change", (event) => choose(slot, { layer: state[slot].layer, head: Number(event.target.value) }));
  }
  byId("show-b").checked = state.showB;
  byId("show-b").addEventListener("change", (event) => { state.showB = event.target.checked; refresh(); });
  for (const radio of document.getElementsByName("slot")) radio.addEventListener("change", () => { state.slot = radio.value; markHeads(); });
  byId("merge").addEventListener("change", (event) => {
    const piece = queryUnits()[state.pinned].start;
    state.merge = event.target.checked;
    select(piece);
    refresh();
  });
  byId("earlier").addEventListener("click", () => turnPart(-1));
  byId("later").addEventListener("click", () => turnPart(1));
};

const select = (piece) => {
  const index = units(meta.layers[state.a.layer].queries, state.merge).of[piece];
  Object.assign(state, { active: index, pinned: index, part: Math.floor(index / PART) });
};

const precision = () => {
  const exact = meta.layers.every((layer) => layer.exact);
  const top = Math.max(...meta.layers.map((layer) => layer.top));
  return exact
    ? "This page holds every weight, rounded to 1/65535; it shows four decimals."
    : `This page holds the ${top} strongest keys of each token, rounded to four decimals, and pooled maps; weaker ones are not listed.`;
};

const start = async () => {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot inflate data: one from 2023 or later can");
  select(meta.focus.piece);
  byId("precision").textContent = precision();
  byId("habits").textContent = meta.habits;
  byId("missing").hidden = !meta.missing.length;
  byId("missing").textContent = `Not seen, although the model computes attention there: ${meta.missing.join("; ")}.`;
  byId("written").hidden = !meta.written;
  byId("written").textContent = `Underlined with dots: what the model has written itself (${meta.written}).`;
  byId("merge-label").hidden = Object.values(meta.streams).every(({ words, texts }) => words.length === texts.length);
  listenToControls();
  listenToText();
  listenToMap();
  listenToHeads();
  await makeHeads();
  paintHeads();
  await refresh();
  new ResizeObserver(() => { drawLines(); drawMap(); }).observe(byId("text"));
  dark.addEventListener("change", () => { paintHeads(); drawMap(); });
};

start().catch((error) => {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `The picture could not be drawn: ${error.message}.`;
  throw error;
});
