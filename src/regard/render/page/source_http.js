// The source of `regard open`: a server on this machine is asked for each number. Answers are remembered for a while.

import { start } from "./main.js";

const TILE = 256; // cells a side of a tile
const COMPUTED = 512; // positions a side of a tile that the server has to compute; as in head_tiles.py
const REMEMBERED = 64;

const ask = async (path, options) => {
  let response;
  try {
    response = await fetch(path, options);
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Error("unreachable");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({ error: `${response.status}` }));
  throw new Error(answer.error);
};

const answers = new Map(); // the latest last
const get = (path, asked, kind) => {
  const name = `${path}?${new URLSearchParams(asked)}`;
  const found = answers.get(name) ?? ask(name).then((response) => response[kind]());
  found.catch(() => answers.delete(name));
  answers.delete(name);
  answers.set(name, found);
  if (answers.size > REMEMBERED) answers.delete(answers.keys().next().value);
  return found;
};
const floats = async (path, asked) => new Float32Array(await get(path, asked, "arrayBuffer"));
const flag = (sinks) => (sinks ? 1 : 0);

const httpSource = {
  digits: null, // as many as a weight needs
  cellDigits: null,
  finest: "finest",
  pause: 40, // milliseconds that the pointer rests on a word before its row is asked for
  initial: {},
  records: async () => (await ask("records")).json(),
  tokens: ({ head, ...place }) => get("tokens", place, "json"),
  head: (place) => get("head", place, "json"),
  weight: (place, query, key) => get("weight", { ...place, query, key }, "json"),
  line: (place, axis, at, sinks) => floats("line", { ...place, axis, at, sinks: flag(sinks) }),
  thumbs: async (place) => new Uint8Array(await get("thumbs", place, "arrayBuffer")),
  // Tiles are many, and kept elsewhere.
  tile: async (place, step, row, column, pool, sinks) => {
    const asked = new URLSearchParams({ ...place, step, row, column, pool, sinks: flag(sinks) });
    return new Float32Array(await (await ask(`tile?${asked}`)).arrayBuffer());
  },
  cell: (layer, step) => {
    const side = step >= layer.stored ? TILE : Math.min(TILE, Math.max(1, Math.floor(COMPUTED / step)));
    return { down: step, across: step, side };
  },
  send: async (text) => {
    const headers = { "Content-Type": "application/json" };
    return (await ask("read", { method: "POST", headers, body: JSON.stringify({ text }) })).json();
  },
};

start(httpSource);
