// What a model did before attention, as sentences: what was measured (observe/before_attention.py), what is concluded
// from names and says so, and what is unknown.

const sideOf = (name) => name.split(".").find((part) => part === "encoder" || part === "decoder");

// A table of the other side of a translator is none of this layer's: its name says so.
const isOfLayer = (table, { name, kind }) =>
  kind === "cross" || !sideOf(table) || !sideOf(name) || sideOf(table) === sideOf(name);

const positionSentences = (positions, layer, speak) => {
  if (!Object.keys(positions).length) return [speak("noPositions")];
  const tables = Object.entries(positions).filter(([name]) => isOfLayer(name, layer));
  return tables.length ? [...tables.map(([name, kind]) => speak(kind, { name })), speak("positionsAdded")] : [];
};

const projection = ([symbol, input, side]) => `${symbol} = ${input} W_${symbol.toUpperCase()}${side.bias ? " + b" : ""}`;

const CHANGES = { rotated: "rotated", turned: "turned", scaled: "multiplied" };

const followed = (side, sides, speak) => {
  if (!("then" in side)) return [speak("notCompared", { sides })];
  if (side.then === null) return [speak("otherwise", { sides })];
  if (!side.then.length) return [speak("plain", { sides })];
  return side.then.map((change) =>
    Array.isArray(change) ? speak("headNorm", { sides, name: change[1] }) : speak(CHANGES[change], { sides }),
  );
};

const joinedNames = (names, speak) => {
  const [a, b, c] = names;
  return speak(`sides${names.length}`, { a, b, c });
};

// What followed the projections, with one sentence for all sides that it followed.
const afterProjection = (formulas, speak) => {
  const groups = new Map();
  for (const [symbol, , side] of formulas) {
    const then = JSON.stringify("then" in side ? side.then : "unknown");
    if (!groups.has(then)) groups.set(then, { side, names: [] });
    groups.get(then).names.push(symbol);
  }
  return [...groups.values()].flatMap(({ side, names }) => followed(side, joinedNames(names, speak), speak));
};

const biasSentences = (layer, speak) => {
  if (!layer.sizes.bias) return [];
  return [layer.before?.bias_table ? speak("biasTable", { name: layer.before.bias_table }) : speak("biasUnknown")];
};

// `positions` are the tables that were read, null where the record does not say; `layer` is one of the data.
export const sentencesBefore = (positions, layer, speak) => {
  const { before, kind } = layer;
  if (!positions) return [speak("beforeUnknown")];
  const sentences = [...positionSentences(positions, layer, speak), ...biasSentences(layer, speak)];
  if (!before?.query && !before?.key) return [...sentences, speak("layerUnknown")];
  sentences.push(before.input ? speak("norm", { name: before.input }) : speak("normUnknown"));
  const other = kind === "cross" ? "y" : "x";
  const formulas = [["q", "x", before.query], ["k", other, before.key], ["v", other, before.value]].filter(
    ([, , side]) => side,
  );
  sentences.push(speak("projected", { formulas: formulas.map(projection).join(", ") }));
  if (formulas.some(([, , side]) => side.bias)) sentences.push(speak("biases"));
  if (kind === "cross") sentences.push(speak("twoTexts"));
  if (before.class) return [...sentences, speak("ofClass", { name: before.class })];
  return [...sentences, ...afterProjection(formulas, speak)];
};
