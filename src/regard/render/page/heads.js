// The grid of all heads: small maps on one scale, to be clicked.

const HABITS = {
  special_tokens: "mostly at special tokens", first: "mostly at the first token", previous: "mostly at the previous token",
  next: "mostly at the next token", self: "mostly at the token itself", spread: "at all tokens alike", other: "by no simple rule",
};
const heads = [];
let thumbs = null;

const headName = (at) => `${meta.layers[at.layer].title} head ${at.head}`;
const numberOf = (layer) => layer.title.replace(/layer (?=\d+$)/, ""); // with its stream, where there are several
const habitOf = (at) => `looks ${HABITS[meta.layers[at.layer].habits[at.head]]}`;

const makeHeads = async () => {
  thumbs = await inflate("thumbs");
  const most = Math.max(...meta.layers.map((layer) => layer.size[0]));
  const grid = byId("heads");
  grid.style.gridTemplateColumns = `max-content repeat(${most}, minmax(1.35rem, ${meta.layers.length > 12 ? 2 : 3.6}rem))`;
  const label = (text) => { const span = document.createElement("span"); span.textContent = text; return span; };
  grid.append(label(""), ...Array.from({ length: most }, (_, head) => label(head)));
  let offset = 0;
  meta.layers.forEach((spec, layer) => {
    grid.append(label(numberOf(spec)));
    const [rows, columns] = spec.thumb;
    for (let head = 0; head < most; head++) {
      if (head >= spec.size[0]) { grid.append(label("")); continue; }
      grid.append(makeHead({ layer, head }, rows, columns, offset));
      offset += rows * columns;
    }
  });
};

const makeHead = (at, rows, columns, offset) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "head";
  button.title = `${headName(at)} ${habitOf(at)}`;
  button.setAttribute("aria-label", button.title);
  Object.assign(button.dataset, at);
  heads.push({ at, button, rows, columns, offset });
  return button;
};

const paintHeads = () => {
  const table = ramp();
  for (const { button, rows, columns, offset } of heads) {
    button.replaceChildren(bitmap(rows, columns, (i) => thumbs[offset + i], table));
  }
};

const markHeads = () => {
  const is = (at, chosen) => chosen && at.layer === chosen.layer && at.head === chosen.head;
  for (const { at, button } of heads) {
    button.classList.toggle("is-a", is(at, state.a));
    button.classList.toggle("is-b", is(at, shownSlots().includes("b") && state.b));
    button.setAttribute("aria-pressed", is(at, state[state.slot]));
    button.tabIndex = is(at, state.a) ? 0 : -1;
  }
};

const listenToHeads = () => {
  byId("heads").addEventListener("click", (event) => {
    const button = event.target.closest(".head");
    if (button) choose(state.slot, { layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
  });
  byId("heads").addEventListener("keydown", (event) => {
    const from = heads.findIndex(({ button }) => button === document.activeElement);
    const { layer, head } = from < 0 ? { layer: 0, head: 0 } : heads[from].at;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || from < 0) return;
    event.preventDefault();
    const next = heads.find(({ at }) => at.layer === layer + step[0] && at.head === head + step[1]);
    if (next) next.button.focus();
  });
};
