// The words, and the lines from the one that is pointed at to the ones it looks at.

const PART = 400; // words shown at once
const LINES = 8; // lines a head
const FAINTEST = 0.02;
const LISTED = 10;
const LONG = 60; // words from which on the text is set smaller and scrolls

const elements = { queries: new Map(), keys: new Map() };

const sameStreams = (one, other) => one.queries === other.queries && one.keys === other.keys;
const crossing = () => meta.layers[state.a.layer].queries !== meta.layers[state.a.layer].keys;
const queryUnits = () => units(meta.layers[state.a.layer].queries, state.merge).list;
const keyUnits = () => units(meta.layers[state.a.layer].keys, state.merge).list;

const makeToken = (unit, index, looks) => {
  const element = document.createElement(looks ? "button" : "span");
  element.className = `token${unit.special ? " special" : ""}${unit.piece ? " piece" : ""}${unit.written ? " written" : ""}`;
  element.textContent = unit.text;
  element.dataset.unit = index;
  if (looks) {
    element.type = "button";
    element.tabIndex = -1;
  }
  return element;
};

const fill = (box, list, known, looks) => {
  known.clear();
  const start = state.part * PART;
  const shown = looks || !crossing() ? list.slice(start, start + PART) : list.slice(0, 4 * PART);
  const offset = looks || !crossing() ? start : 0;
  const content = document.createDocumentFragment();
  shown.forEach((unit, at) => {
    if (at && (unit.space || unit.special || shown[at - 1].special)) content.append(" ");
    else if (at) content.append(document.createElement("wbr")); // Chinese breaks without white space
    const element = makeToken(unit, offset + at, looks);
    known.set(offset + at, element);
    content.append(element);
  });
  box.replaceChildren(content);
  box.classList.toggle("long", shown.length > LONG);
};

const drawText = () => {
  const list = queryUnits();
  fill(byId("queries"), list, elements.queries, true);
  byId("keys").hidden = !crossing();
  if (crossing()) fill(byId("keys"), keyUnits(), elements.keys, false);
  byId("text").classList.toggle("flat", crossing() || list.length > LONG); // no arcs above the first line
  const parts = Math.ceil(list.length / PART);
  byId("pager").hidden = parts < 2;
  byId("where").textContent = `words ${state.part * PART + 1} to ${Math.min((state.part + 1) * PART, list.length)} of ${list.length}`;
  byId("earlier").disabled = state.part === 0;
  byId("later").disabled = state.part >= parts - 1;
};

const targets = () => (crossing() ? elements.keys : elements.queries);

const curve = (from, to, slot, box) => {
  const shift = slot === "a" ? -3 : 3;
  const x1 = from.left + from.width / 2 - box.left + shift;
  const x2 = to.left + to.width / 2 - box.left + (from === to ? 14 : shift);
  const sameLine = to.top < from.bottom && from.top < to.bottom;
  const above = sameLine ? slot === "a" : to.top < from.top;
  const y1 = (above ? from.top : from.bottom) - box.top;
  const y2 = (sameLine === above ? to.top : to.bottom) - box.top;
  const rise = Math.min(16 + Math.abs(x1 - x2) * 0.16, 62) * (above ? -1 : 1);
  const bend1 = sameLine ? y1 + rise : (y1 + y2) / 2;
  const bend2 = sameLine ? y2 + rise : (y1 + y2) / 2;
  const tip = (sameLine ? above : y2 > y1) ? -1 : 1; // where the line comes from, seen from its end
  return { path: `M${x1},${y1}C${x1},${bend1} ${x2},${bend2} ${x2},${y2 + tip * 5}`, x: x2, y: y2, tip };
};

const svg = (name, attributes) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

const drawLines = () => {
  const content = document.createDocumentFragment();
  const box = byId("text").getBoundingClientRect();
  for (const element of targets().values()) element.style.background = element.style.boxShadow = "";
  const source = elements.queries.get(state.active);
  for (const slot of shownSlots()) {
    const colour = `var(--${slot})`;
    best(row(state[slot], queryUnits()[state.active], state.merge), LINES).reverse().forEach(([key, weight]) => {
      const target = targets().get(key);
      if (!target || weight < FAINTEST) return;
      const tint = `color-mix(in srgb, ${colour} ${Math.round(weight * 60)}%, transparent)`;
      if (slot === "a") target.style.background = tint;
      else target.style.boxShadow = `inset 0 -3px 0 color-mix(in srgb, ${colour} ${Math.round(30 + weight * 70)}%, transparent)`;
      if (!source) return;
      const line = curve(source.getBoundingClientRect(), target.getBoundingClientRect(), slot, box);
      const opacity = 0.2 + 0.8 * Math.min(1, weight * 1.6);
      const wide = 1 + 5 * weight;
      content.append(svg("path", { class: `line-${slot}`, d: line.path, "stroke-width": wide, opacity, "data-weight": weight.toFixed(4) }));
      const [w, h] = [3 + wide, (5 + wide) * line.tip];
      content.append(svg("path", { class: `tip-${slot}`, d: `M${line.x},${line.y}l${-w},${h}h${2 * w}z`, opacity }));
    });
  }
  byId("lines").replaceChildren(content);
};

const listWeights = (slot) => {
  const query = queryUnits()[state.active];
  const keys = keyUnits();
  const items = best(row(state[slot], query, state.merge), LISTED).map(([key, weight]) => {
    const item = document.createElement("li");
    Object.assign(item.dataset, { query: state.active, key, weight: weight.toFixed(4) });
    const pair = document.createElement("span");
    pair.className = "pair";
    pair.append(apart(query.text), " → ", apart(keys[key].text));
    pair.title = `\u2068${query.text}\u2069 → \u2068${keys[key].text}\u2069`;
    const number = document.createElement("span");
    number.className = "number";
    number.textContent = weight.toFixed(4);
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.append(document.createElement("i"));
    bar.firstChild.style.width = `${Math.min(100, weight * 100)}%`;
    item.append(pair, number, bar);
    return item;
  });
  byId(`weights-${slot}`).replaceChildren(...items);
};

// Scroll the text, not the page, until the chosen word is in sight.
const reveal = () => {
  const [box, element] = [byId("queries"), elements.queries.get(state.active)];
  if (!element || box.scrollHeight <= box.clientHeight) return;
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - outer.height / 2;
};

const drawActive = () => {
  for (const [index, element] of elements.queries) {
    element.classList.toggle("active", index === state.active);
    element.setAttribute("aria-pressed", index === state.pinned);
    element.tabIndex = index === state.active ? 0 : -1;
  }
  if (!elements.queries.has(state.active) && elements.queries.size) elements.queries.values().next().value.tabIndex = 0;
  drawLines();
  shownSlots().forEach(listWeights);
};
