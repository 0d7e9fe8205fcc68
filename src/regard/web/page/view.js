// Where a page looks: all of it stands in the address behind the #, none of it on the server.

const WORDS = { pool: ["max", "mean"], scale: ["linear", "log"], language: ["en", "zh"] };
const COUNTS = ["record", "sequence", "layer", "head"];

// `query` and `key` are the chosen row and column, or null; x and y the centre in positions; zoom pixels a position.
export const view = {
  record: 0, sequence: 0, layer: 0, head: 0, x: null, y: null, zoom: null,
  pool: "max", scale: null, floor: 0, sinks: true, query: null, key: null,
  language: navigator.language.startsWith("zh") ? "zh" : "en",
};

const whole = (text) => (/^\d{1,9}$/.test(text ?? "") ? Number(text) : null);
const real = (text) => (/^\d{1,9}(\.\d{1,20})?(e-\d{1,2})?$/.test(text ?? "") ? Number(text) : null);

export const readAddress = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of COUNTS) view[name] = whole(given.get(name)) ?? 0;
  for (const name of ["query", "key"]) view[name] = whole(given.get(name));
  for (const name of ["x", "y", "zoom"]) view[name] = real(given.get(name));
  for (const [name, allowed] of Object.entries(WORDS)) if (allowed.includes(given.get(name))) view[name] = given.get(name);
  view.floor = Math.min(real(given.get("floor")) ?? 0, 1);
  view.sinks = given.get("sinks") !== "0";
};

export const address = () => {
  const said = new URLSearchParams();
  for (const name of COUNTS) said.set(name, view[name]);
  for (const name of ["x", "y", "zoom"]) if (view[name] !== null) said.set(name, view[name]);
  for (const name of Object.keys(WORDS)) said.set(name, view[name]);
  if (view.floor) said.set("floor", view.floor);
  said.set("sinks", view.sinks ? "1" : "0");
  for (const name of ["query", "key"]) if (view[name] !== null) said.set(name, view[name]);
  return `#${said}`;
};

let later = 0;
export const writeAddress = () => {
  clearTimeout(later);
  later = setTimeout(() => {
    if (location.hash !== address()) history.replaceState(null, "", address());
  }, 150);
};
