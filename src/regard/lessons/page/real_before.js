// What a model did before attention, as sentences: what was measured (observe/before_attention.py), and what is unknown.

const isRelative = (name) => name.includes("relative");

const sideOf = (name) => name.split(".").find((part) => part === "encoder" || part === "decoder") ?? null;
// Whether a table of the model is one of this layer: not that of the other side, and a relative one only where it biases.
const concerns = (table, { name, kind, arrays }) => {
  const isOther = sideOf(table) && sideOf(name) && sideOf(table) !== sideOf(name);
  if (isRelative(table)) return !isOther && arrays.some(([array]) => array === "bias");
  return !isOther || kind === "cross";
};

const positionSentences = (positions, layer, speak) => {
  if (!Object.keys(positions).length) return [speak("noPositions")];
  const tables = Object.entries(positions).filter(([name]) => concerns(name, layer));
  if (!tables.length) return [speak("noPositions")];
  return tables.map(([name, kind]) => speak(isRelative(name) ? "relative" : kind, { name }));
};

const projection = (symbol, input, side) => `${symbol} = ${input} W_${symbol.toUpperCase()}${side.bias ? " + b" : ""}`;

const SENTENCES = { rotated: "rotated", scaled: "scaled" };
const followed = ({ then }, sides, speak) => {
  if (then === null) return [speak("otherwise", { sides })];
  if (!then.length) return [speak("plain", { sides })];
  return then.map((change) =>
    Array.isArray(change) ? speak("headNorm", { sides, name: change[1] }) : speak(SENTENCES[change], { sides }),
  );
};

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// `positions` are the tables that were looked up, null where the record does not say; `kind` is "self" or "cross".
export const sentencesBefore = (positions, layer, speak) => {
  const { before, kind } = layer;
  if (!positions) return [speak("beforeUnknown")];
  const sentences = positionSentences(positions, layer, speak);
  if (!before?.query && !before?.key) return [...sentences, speak("layerUnknown")];
  sentences.push(before.input ? speak("norm", { name: before.input }) : speak("normUnknown"));
  const { query, key, value } = before;
  const other = kind === "cross" ? "y" : "x";
  const formulas = [["q", "x", query], ["k", other, key], ["v", other, value]].filter(([, , side]) => side);
  sentences.push(speak("projected", { formulas: formulas.map((formula) => projection(...formula)).join(", ") }));
  if (formulas.some(([, , side]) => side.bias)) sentences.push(speak("biases"));
  if (kind === "cross") sentences.push(speak("twoTexts"));
  if (query && key && same(query.then, key.then)) return [...sentences, ...followed(query, speak("sides2"), speak)];
  return [
    ...sentences,
    ...(query ? followed(query, speak("sides1q"), speak) : []),
    ...(key ? followed(key, speak("sides1k"), speak) : []),
  ];
};
