// Which keys each query may see: the masks of regard.masks as matrices of 1 (visible) and 0. No DOM.
// Query i of n stands at position i + m − n among m keys: of fewer queries than keys, they are the last ones.

const isNear = (position, key, left, right) => position - key <= left && key - position <= right;

// Each rule gives, for n queries and m keys, a function of a query's position and a key.
const RULES = {
  none: () => () => true,
  causal: () => (position, key) => key <= position,
  window: ({ left, right }) => (position, key) => isNear(position, key, left, right),
  padding: ({ hidden }) => {
    const padding = new Set(hidden);
    return (_, key) => !padding.has(key);
  },
  longformer: ({ window, globals }) => {
    const global = new Set(globals);
    return (position, key) => isNear(position, key, window / 2, window / 2) || global.has(position) || global.has(key);
  },
  // BigBird in blocks of one token. `table` has a row for each position of a key: the keys drawn for it.
  bigbird: ({ window, globals, table }, keys) => {
    const side = (window - 1) / 2;
    const isGlobal = (position) =>
      position >= 0 && position < keys && (position < globals || position >= keys - globals);
    return (position, key) =>
      isNear(position, key, side, side) ||
      isGlobal(position) ||
      isGlobal(key) ||
      (position >= 0 && table[position].includes(key));
  },
  prefix: ({ length }) => (position, key) => key <= position || key < length,
  drawn: ({ rows }, keys) => {
    const first = keys - rows.length;
    return (position, key) => rows[position - first][key] === "1";
  },
};

// The kinds of masks, in the order in which they are offered.
export const MASK_KINDS = Object.keys(RULES);

// A matrix (queries × keys) of 1 where the query may see the key, else 0.
export const visibleOf = (mask, queries, keys) => {
  const sees = RULES[mask.kind](mask, keys);
  return Array.from({ length: queries }, (_, query) =>
    Array.from({ length: keys }, (_, key) => Number(sees(query + keys - queries, key))),
  );
};

// Pairs of a query and a key that the mask leaves.
export const countVisible = (visible) => visible.flat().reduce((total, flag) => total + flag, 0);

// The mask, as it was meant, over other numbers of queries and keys: indices that are gone are left out, rows drawn by
// hand are cut, and new cells of them are visible; new rows of BigBird's table see key 0 as often as the others draw.
export const fitMask = (mask, queries, keys) => {
  const within = (indices) => indices.filter((index) => index < keys);
  if (mask.kind === "padding") return { ...mask, hidden: within(mask.hidden) };
  if (mask.kind === "longformer") return { ...mask, globals: within(mask.globals) };
  if (mask.kind === "bigbird") {
    const count = Math.min(mask.table[0].length, keys);
    const row = (_, position) => {
      const drawn = (mask.table[position] ?? []).filter((key) => key < keys);
      return [...drawn, ...Array(count).fill(drawn[0] ?? 0)].slice(0, count);
    };
    return { ...mask, table: Array.from({ length: keys }, row) };
  }
  if (mask.kind === "drawn") {
    const row = (_, query) => (mask.rows[query] ?? "").slice(0, keys).padEnd(keys, "1");
    return { ...mask, rows: Array.from({ length: queries }, row) };
  }
  return mask;
};

const renumbered = (indices, kept) => indices.map((index) => kept.indexOf(index)).filter((index) => index >= 0);

// The mask where only some queries and keys are kept, by their indices: what it says of them stays so.
export const keepOfMask = (mask, keptQueries, keptKeys) => {
  if (mask.kind === "padding") return { ...mask, hidden: renumbered(mask.hidden, keptKeys) };
  if (mask.kind === "longformer") return { ...mask, globals: renumbered(mask.globals, keptKeys) };
  if (mask.kind === "drawn") {
    return { ...mask, rows: keptQueries.map((query) => keptKeys.map((key) => mask.rows[query][key]).join("")) };
  }
  if (mask.kind !== "bigbird") return mask;
  const count = Math.min(mask.table[0].length, keptKeys.length);
  const row = (position) => {
    const drawn = renumbered(mask.table[position], keptKeys);
    return [...drawn, ...Array(count).fill(drawn[0] ?? 0)].slice(0, count);
  };
  return { ...mask, table: keptKeys.map(row) };
};

// Keys that a row of n tokens sees, from 0 to n − 1, as runs of keys that may overlap: [first, last].
const runs = (mask, row, length) => {
  const near = (left, right) => [Math.max(0, row - left), Math.min(length - 1, row + right)];
  const all = [0, length - 1];
  const each = (keys) => keys.filter((key) => key < length).map((key) => [key, key]);
  if (mask.kind === "none") return [all];
  if (mask.kind === "causal") return [[0, row]];
  if (mask.kind === "window") return [near(mask.left, mask.right)];
  if (mask.kind === "prefix") return [[0, Math.min(Math.max(row, mask.length - 1), length - 1)]];
  if (mask.kind === "longformer") {
    if (mask.globals.includes(row)) return [all];
    return [near(mask.window / 2, mask.window / 2), ...each(mask.globals)];
  }
  const { globals, window } = mask;
  if (row < globals || row >= length - globals) return [all];
  const ends = globals ? [[0, globals - 1], [length - globals, length - 1]] : [];
  return [near((window - 1) / 2, (window - 1) / 2), ...ends];
};

const covered = (parts) => {
  let [count, end] = [0, -1];
  for (const [first, last] of parts.sort((a, b) => a[0] - b[0])) {
    count += Math.max(0, last - Math.max(first - 1, end));
    end = Math.max(end, last);
  }
  return count;
};

// Pairs that a rule leaves among n tokens, or null of masks that mean these tokens alone (padding, drawn by hand).
// Where BigBird draws keys at random, each row is counted with as many more as it draws, none of them visible already.
export const pairsAt = (mask, length) => {
  if (mask.kind === "padding" || mask.kind === "drawn") return null;
  const random = mask.kind === "bigbird" ? mask.table[0].length : 0;
  let pairs = 0;
  for (let row = 0; row < length; row += 1) pairs += Math.min(length, covered(runs(mask, row, length)) + random);
  return pairs;
};
