// The record, layer, heads and tokens that the view names, and its lines of weights by token or by word.

import { view } from "./view.js";

const MOST_WORDS = 512; // rows and columns up to which a map is drawn by words: every weight is loaded for it
const LONGEST = 80; // characters of a name; one of thousands would push all else off the page

// Where the numbers come from: an inline or an HTTP source, with the same functions.
export const current = { source: null, file: { name: "", model: null, records: [] }, tokens: null, info: {} };
// Weights of the chosen row and column, by the rows and columns of the map.
export const chosenLines = { row: null, column: null };

export const loadRecords = async () => {
  current.file = await current.source.records();
};
export const record = () => current.file.records.find((one) => one.number === view.record);
export const layer = (at = view.layer) => record().layers[at];
// The recorded head that is nearest from `head` on, or before it; the others have no numbers.
export const nearHead = (at, head, before = false) => {
  const { heads } = layer(at);
  const found = before ? heads.findLast((one) => one <= head) : heads.find((one) => one >= head);
  return found ?? (before ? heads[0] : heads.at(-1));
};
export const matrixSize = () => ({ queries: layer().size[2], keys: layer().size[3] });
// A layer's own number, with its stream where there are several.
export const layerName = (one) => (one.stream ? `${one.number} (${one.stream})` : String(one.number));

// The heads that are shown, the second only where it looks at the same texts.
export const slots = () => {
  const a = { layer: view.layer, head: view.head };
  if (view.head2 === null) return { a };
  const b = { layer: view.layer2 ?? view.layer, head: view.head2 };
  const alike = (one) => String([one.streams, one.size.slice(2)]);
  return alike(layer(a.layer)) === alike(layer(b.layer)) ? { a, b } : { a };
};
export const placeOf = ({ layer: at, head }) => ({ record: view.record, layer: at, head, batch_index: view.sequence });
const streams = new Map();
// The tokens of a layer; layers of the same streams share them.
export const loadTokens = () => {
  const name = [view.record, view.sequence, layer().streams, ...layer().size.slice(2)].join();
  if (!streams.has(name)) {
    if (streams.size > 7) streams.delete(streams.keys().next().value);
    const found = current.source.tokens(placeOf(slots().a));
    found.catch(() => streams.delete(name));
    streams.set(name, found);
  }
  return streams.get(name);
};
export const pools = () => current.source.pools?.(layer()) ?? ["max", "mean"];
export const poolNow = () => (pools().includes(view.pool) ? view.pool : pools()[0]);

// Units are what is shown as one thing: tokens, or the words that they spell.
const streamOf = (side) => (side === "key" && !current.tokens.same ? current.tokens.keys : current.tokens.queries);

const makeUnits = ({ texts, marks, words, prompt }, inWords) => {
  const mark = (at, bit) => (Number(marks[at]) & bit) > 0;
  const unit = (start, stop, text, piece) => ({
    text,
    start,
    stop,
    piece,
    space: mark(start, 1),
    special: mark(start, 2),
    generated: prompt != null && start >= prompt,
  });
  const list = [];
  let next = 0;
  for (const [start, stop, text] of [...words, [texts.length, texts.length, ""]]) {
    for (; next < start; next++) list.push(unit(next, next + 1, texts[next], false));
    if (inWords && stop > start) list.push(unit(start, stop, text, false));
    else for (; next < stop; next++) list.push(unit(next, next + 1, texts[next], true));
    next = stop;
  }
  const of = new Int32Array(texts.length);
  list.forEach(({ start, stop }, index) => of.fill(index, start, stop));
  return { list, of };
};

const unitsOf = (side, inWords) => {
  const stream = streamOf(side);
  const name = inWords ? "words" : "tokens";
  stream.units ??= {};
  stream.units[name] ??= makeUnits(stream, inWords);
  return stream.units[name];
};

export const hasWords = () => streamOf("query").words.length + streamOf("key").words.length > 0;
export const mapInWords = () => {
  const { queries, keys } = matrixSize();
  return view.words && hasWords() && current.info.a?.finest === 1 && Math.max(queries, keys) <= MOST_WORDS;
};
export const textUnits = (side) => unitsOf(side, view.words);
export const mapUnits = (side) => unitsOf(side, mapInWords());
export const mapSize = () => ({ queries: mapUnits("query").list.length, keys: mapUnits("key").list.length });
export const promptRow = () => {
  const { prompt } = streamOf("query");
  return prompt == null ? null : (mapUnits("query").of[prompt] ?? null);
};

const short = (text) => (text.length > LONGEST ? `${Array.from(text.slice(0, 160)).slice(0, 79).join("")}…` : text);
// The name of a row or a column of the map.
export const nameOf = (side, index) => short(mapUnits(side).list[index]?.text ?? String(index));
// A name with the four before and after it.
export const around = (side, index) => {
  const { list } = mapUnits(side);
  const join = (part) =>
    part
      .map(({ space, text }) => (space ? " " : "") + short(text))
      .join("")
      .trim();
  return {
    name: nameOf(side, index),
    before: join(list.slice(Math.max(index - 4, 0), index)),
    after: join(list.slice(index + 1, index + 5)),
  };
};

// Weights by unit: the sum over the pieces of a key, the mean over those of a query.
const gather = (lines, ownIsQuery, others) =>
  Float32Array.from(others, ({ start, stop }) => {
    let [sum, known] = [0, false];
    for (const line of lines) {
      for (let at = start; at < stop; at++)
        if (!Number.isNaN(line[at])) {
          sum += line[at];
          known = true;
        }
    }
    return known ? sum / (ownIsQuery ? lines.length : stop - start) : NaN;
  });

const loadLine = async (at, axis, index, inWords) => {
  const sides = axis === "row" ? ["query", "key"] : ["key", "query"];
  const { start, stop } = unitsOf(sides[0], inWords).list[index];
  const positions = Array.from({ length: stop - start }, (_, i) => start + i);
  const lines = await Promise.all(positions.map((one) => current.source.line(placeOf(at), axis, one, view.sinks)));
  return inWords ? gather(lines, axis === "row", unitsOf(sides[1], true).list) : lines[0];
};
// What a unit of the text gives to each unit, in one head.
export const loadTextRow = (at, index) => loadLine(at, "row", index, view.words);

export const loadChosenLines = async () => {
  const load = (axis, side) => {
    const position = view[side];
    return position === null ? null : loadLine(slots().a, axis, mapUnits(side).of[position], mapInWords());
  };
  const [row, column] = await Promise.all([load("row", "query"), load("column", "key")]);
  return { row, column };
};

// Every weight of a head as one tile, by words.
export const loadWordTile = async (place, sinks) => {
  const { source } = current;
  const { queries, keys } = matrixSize();
  const [rows, columns] = [mapUnits("query"), mapUnits("key")];
  const { side } = source.cell(layer(), 1);
  const values = new Float32Array(rows.list.length * columns.list.length);
  for (let row = 0; row * side < queries; row++) {
    for (let column = 0; column * side < keys; column++) {
      const tile = await source.tile(place, 1, row, column, "max", sinks);
      const width = Math.min(side, keys - column * side);
      tile.forEach((weight, i) => {
        const [query, key] = [row * side + Math.floor(i / width), column * side + (i % width)];
        const { start, stop } = rows.list[rows.of[query]];
        values[rows.of[query] * columns.list.length + columns.of[key]] += weight / (stop - start);
      });
    }
  }
  return values;
};
