// The state of a page. All of it is kept in the address after the #, none of it on a server.

const CHOICES = { pool: ["max", "mean"], scale: ["linear", "log"], language: ["en", "zh"] };
const COUNTS = ["record", "sequence", "layer", "head", "layer2", "head2", "query", "key"];
const PLACES = ["x", "y", "zoom"];
const SWITCHES = ["sinks", "words"];

// `query` and `key` are the chosen row and column, in positions, or null; `layer2` and `head2` the second head, or
// null; x and y the centre of the map, in its rows and columns; zoom pixels a row.
export const view = {
  record: 0,
  sequence: 0,
  layer: 0,
  head: 0,
  layer2: null,
  head2: null,
  query: null,
  key: null,
  x: null,
  y: null,
  zoom: null,
  pool: "max",
  scale: null,
  floor: 0,
  sinks: true,
  words: false,
  language: navigator.language.startsWith("zh") ? "zh" : "en",
};

const initial = { ...view };
export const startWith = (changes) => {
  Object.assign(initial, changes);
};

const whole = (text) => (/^\d{1,9}$/.test(text ?? "") ? Number(text) : null);
const real = (text) => (/^\d{1,9}(\.\d{1,20})?(e-\d{1,2})?$/.test(text ?? "") ? Number(text) : null);

export const readAddress = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of COUNTS) view[name] = whole(given.get(name)) ?? initial[name];
  for (const name of PLACES) view[name] = real(given.get(name));
  for (const [name, allowed] of Object.entries(CHOICES)) {
    if (allowed.includes(given.get(name))) view[name] = given.get(name);
  }
  for (const name of SWITCHES) view[name] = given.has(name) ? given.get(name) !== "0" : initial[name];
  view.floor = Math.min(real(given.get("floor")) ?? 0, 1);
};

export const address = () => {
  const parts = new URLSearchParams();
  for (const name of [...COUNTS, ...PLACES]) if (view[name] !== null) parts.set(name, view[name]);
  for (const name of Object.keys(CHOICES)) parts.set(name, view[name]);
  for (const name of SWITCHES) parts.set(name, view[name] ? "1" : "0");
  if (view.floor) parts.set("floor", view.floor);
  return `#${parts}`;
};

let addressTimer = 0;
export const writeAddress = () => {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    if (location.hash === address()) return;
    try {
      history.replaceState(null, "", address());
    } catch {
      /* a sandboxed frame has no address of its own */
    }
  }, 150);
};
