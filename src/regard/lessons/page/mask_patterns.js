// Patterns of masks: what they are made of, drawings by chance, and the same rule for other numbers of tokens. No DOM.

import { random } from "./chance.js";
import { visibleOf } from "./masks.js";

// The masks that a mask is made of, by name: a pair is visible if one of them lets the query see the key.
const partsOf = (mask) => {
  if (mask.kind === "longformer") {
    const side = mask.window / 2;
    return [
      ["window", { kind: "window", left: side, right: side }],
      ["global", { kind: "longformer", window: 0, globals: mask.globals }],
    ];
  }
  if (mask.kind === "bigbird") {
    const side = (mask.window - 1) / 2;
    return [
      ["window", { kind: "window", left: side, right: side }],
      ["global", { kind: "bigbird", window: 1, globals: mask.globals, table: mask.table.map(() => []) }],
      ["random", { kind: "bigbird", window: 1, globals: 0, table: mask.table }],
    ];
  }
  if (mask.kind === "prefix") {
    return [
      ["causal", { kind: "causal" }],
      ["prefix", mask],
    ];
  }
  return [[mask.kind, mask]];
};

// For each pair of `length` tokens the name of the first part that lets it be seen, or "" where none does.
export const patternOf = (mask, length) => {
  const parts = partsOf(mask).map(([name, part]) => [name, visibleOf(part, length, length)]);
  return Array.from({ length }, (_, query) =>
    Array.from({ length }, (_, key) => parts.find(([, visible]) => visible[query][key])?.[0] ?? ""),
  );
};

// `count` keys for each of `length` rows of BigBird: of those that the row does not see already, as in the authors'
// code; where there are too few, keys that it sees (each pair counts once).
export const drawTable = ({ window, globals }, length, count, seed) => {
  const chance = random(seed);
  const nothing = Array.from({ length }, () => []);
  const visible = visibleOf({ kind: "bigbird", window, globals, table: nothing }, length, length);
  const size = Math.min(count, length);
  return visible.map((row) => {
    const keys = row.map((_, key) => key);
    const open = keys.filter((key) => !row[key]);
    const drawn = Array.from(
      { length: Math.min(size, open.length) },
      () => open.splice(Math.floor(chance() * open.length), 1)[0],
    );
    return [...drawn, ...keys.filter((key) => row[key])].slice(0, size);
  });
};

// How many keys a row of BigBird's table draws.
export const drawnCount = (mask) => mask.table[0]?.length ?? 0;

// The rule of a mask for another number of tokens, or null: padding and cells drawn by hand mean these tokens alone.
export const maskOfLength = (mask, length, seed) => {
  const within = (indices) => indices.filter((index) => index < length);
  if (mask.kind === "drawn" || mask.kind === "padding") return null;
  if (mask.kind === "longformer") return { ...mask, globals: within(mask.globals) };
  if (mask.kind === "bigbird") return { ...mask, table: drawTable(mask, length, drawnCount(mask), seed) };
  return mask;
};
