// Whether a state from an address or a file, which anybody may have written, is one that the page can show. No DOM.

import { MASK_KINDS } from "./masks.js";
import { LARGEST } from "./number_text.js";
import { compute } from "./numbers.js";
import { LENGTHS, RANGES } from "./own_ranges.js";
import { STEP_IDS } from "./step_ids.js";

const MOST = { tokens: 32, width: 512, heads: 8, characters: 64, list: 64, count: 2 ** 20 };
const FIELDS = [
  ..."step language row head tokens x keyTokens keyX valueX heads output".split(" "),
  ..."positions score scale temperature mask".split(" "),
];
const MASK_FIELDS = {
  none: [],
  causal: [],
  window: ["left", "right"],
  padding: ["hidden"],
  longformer: ["window", "globals"],
  bigbird: ["window", "globals", "table"],
  prefix: ["length"],
  drawn: ["rows"],
};
const SCORE_FIELDS = { dot: [], cosine: [], additive: ["query", "key", "vector"], bilinear: ["weight"] };

// Sentences for what `checkState` returns.
export const CHECK_WORDS = {
  en: {
    unreadable: "This is no lesson: the text is not JSON.",
    version: "It is JSON, but no lesson that this page saved: such a file has \"regard_lesson\": {version}.",
    object: "{field} must be an object with names and values, got {got}.",
    unknown: "{field} is nothing that a lesson has: leave it out.",
    missing: "{field} is missing.",
    number: "{field} must be a number between −1e70 and 1e70, got {got}.",
    positive: "{field} must be a number above 0, got {got}.",
    integer: "{field} must be a whole number from {least} to {most}, got {got}.",
    range: "{field} must be a number from {least} to {most}, got {got}.",
    odd: "{field} must be odd, got {got}: it counts a token and as many on either side.",
    even: "{field} must be even, got {got}: half of it lies on either side.",
    choice: "{field} must be one of {choices}, got {got}.",
    text: "{field} must be a text of at most {most} characters, got {got}.",
    list: "{field} must be a list, got {got}.",
    matrix: "{field} must be rows of numbers, all of one length, got {got}.",
    shape: "{field} must have {rows} rows and {columns} columns, got {got}.",
    length: "{field} must have {wanted} entries, got {got}.",
    most: "{field} may have 1 to {most} entries, got {got}.",
    twice: "{field} names {got} twice: keep one of them.",
    visible: "{field} must be {columns} characters, each 0 (hidden) or 1 (visible), got {got}.",
    together: "{field} needs a keyX, from which the keys are made.",
    type: "{field} must be of the same kind as at the start, got {got}.",
    overflow: "These numbers are too large: {field} has one that a computer's 64 bits do not hold. Make them smaller.",
  },
  zh: {
    unreadable: "这不是一份课程：内容不是 JSON。",
    version: "内容是 JSON，但不是这一页保存的课程：那样的文件里有 \"regard_lesson\": {version}。",
    object: "{field} 应当是由名称和值组成的对象，这里却是 {got}。",
    unknown: "课程里没有 {field} 这一项，请去掉。",
    missing: "缺少 {field}。",
    number: "{field} 应当是 −1e70 到 1e70 之间的数，这里却是 {got}。",
    positive: "{field} 应当是大于 0 的数，这里却是 {got}。",
    integer: "{field} 应当是 {least} 到 {most} 之间的整数，这里却是 {got}。",
    range: "{field} 应当是 {least} 到 {most} 之间的数，这里却是 {got}。",
    odd: "{field} 应当是奇数，这里却是 {got}：它数的是词元自己和两边同样多的词元。",
    even: "{field} 应当是偶数，这里却是 {got}：两边各占一半。",
    choice: "{field} 只能是 {choices} 之一，这里却是 {got}。",
    text: "{field} 应当是不超过 {most} 个字符的文字，这里却是 {got}。",
    list: "{field} 应当是列表，这里却是 {got}。",
    matrix: "{field} 应当是若干行数，每行一样长，这里却是 {got}。",
    shape: "{field} 应当有 {rows} 行 {columns} 列，这里却是 {got}。",
    length: "{field} 应当有 {wanted} 项，这里却是 {got}。",
    most: "{field} 可以有 1 到 {most} 项，这里却是 {got}。",
    twice: "{field} 里 {got} 出现了两次，请只留一个。",
    visible: "{field} 应当是 {columns} 个字符，每个是 0（遮住）或 1（可见），这里却是 {got}。",
    together: "{field} 需要 keyX：键由它算出。",
    type: "{field} 应当和开始时是同一类，这里却是 {got}。",
    overflow: "这些数太大了：{field} 里有一个数超出了 64 位浮点数的范围。请把它们改小。",
  },
};

class Refusal {
  constructor(key, filled) {
    Object.assign(this, { key, filled });
  }
}
const refuse = (key, field, filled = {}) => {
  throw new Refusal(key, { field, ...filled });
};

// A value in a few characters, however large it is.
const short = (value) => {
  if (Array.isArray(value)) return `[${value.length}]`;
  if (typeof value === "string") return JSON.stringify(value.length > 24 ? `${value.slice(0, 24)}…` : value);
  return value !== null && typeof value === "object" ? "{…}" : String(value);
};

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
// Exactly these fields, all of the object itself: no other name, such as __proto__, comes in.
const checkFields = (field, value, names) => {
  if (!isObject(value)) refuse("object", field, { got: short(value) });
  for (const name of Object.keys(value)) if (!names.includes(name)) refuse("unknown", `${field}.${name}`.slice(0, 64));
  for (const name of names) if (!Object.hasOwn(value, name)) refuse("missing", `${field}.${name}`);
};
const checkNumber = (field, value) => {
  if (typeof value !== "number" || !(Math.abs(value) <= LARGEST)) refuse("number", field, { got: short(value) });
};
const checkInteger = (field, value, least, most) => {
  if (Number.isInteger(value) && value >= least && value <= most) return;
  refuse("integer", field, { least, most, got: short(value) });
};
const checkChoice = (field, value, choices) => {
  if (typeof value !== "string" || !choices.includes(value))
    refuse("choice", field, { choices: choices.join(", "), got: short(value) });
};
const checkList = (field, value, most) => {
  if (!Array.isArray(value)) refuse("list", field, { got: short(value) });
  if (value.length > most) refuse("most", field, { most, got: value.length });
};
const checkText = (field, value, most) => {
  if (typeof value !== "string" || value.length > most) refuse("text", field, { most, got: short(value) });
};

const shapeOf = (matrix) => `${matrix.length} × ${matrix[0].length}`;
const checkMatrix = (field, value, mostRows, mostColumns) => {
  const isMatrix = Array.isArray(value) && value.length > 0 && Array.isArray(value[0]) && value[0].length > 0;
  if (!isMatrix) refuse("matrix", field, { got: short(value) });
  if (value.length > mostRows) refuse("most", field, { most: mostRows, got: value.length });
  if (value[0].length > mostColumns) refuse("most", `${field}[0]`, { most: mostColumns, got: value[0].length });
  value.forEach((row, at) => {
    if (!Array.isArray(row) || row.length !== value[0].length) refuse("matrix", field, { got: short(row) });
    row.forEach((entry, column) => checkNumber(`${field}[${at}][${column}]`, entry));
  });
};
const checkShape = (field, matrix, rows, columns = matrix[0].length) => {
  if (matrix.length !== rows || matrix[0].length !== columns)
    refuse("shape", field, { rows, columns, got: shapeOf(matrix) });
};
const checkIndices = (field, value, count) => {
  checkList(field, value, count);
  value.forEach((index, at) => checkInteger(`${field}[${at}]`, index, 0, count - 1));
  value.forEach((index, at) => {
    if (value.indexOf(index) !== at) refuse("twice", field, { got: index });
  });
};

const MASKS = {
  none: () => {},
  causal: () => {},
  window: ({ left, right }) => {
    checkInteger("mask.left", left, 0, MOST.count);
    checkInteger("mask.right", right, 0, MOST.count);
  },
  padding: ({ hidden }, _, keys) => checkIndices("mask.hidden", hidden, keys),
  longformer: ({ window, globals }, _, keys) => {
    checkInteger("mask.window", window, 0, MOST.count);
    if (window % 2) refuse("even", "mask.window", { got: window });
    checkIndices("mask.globals", globals, keys);
  },
  bigbird: ({ window, globals, table }, _, keys) => {
    checkInteger("mask.window", window, 1, MOST.count);
    if (window % 2 === 0) refuse("odd", "mask.window", { got: window });
    checkInteger("mask.globals", globals, 0, MOST.count);
    checkList("mask.table", table, keys);
    if (table.length !== keys) refuse("length", "mask.table", { wanted: keys, got: table.length });
    table.forEach((row, at) => {
      checkList(`mask.table[${at}]`, row, keys);
      if (row.length !== table[0].length)
        refuse("length", `mask.table[${at}]`, { wanted: table[0].length, got: row.length });
      row.forEach((key, column) => checkInteger(`mask.table[${at}][${column}]`, key, 0, keys - 1));
    });
  },
  prefix: ({ length }) => checkInteger("mask.length", length, 0, MOST.count),
  drawn: ({ rows }, queries, keys) => {
    checkList("mask.rows", rows, queries);
    if (rows.length !== queries) refuse("length", "mask.rows", { wanted: queries, got: rows.length });
    rows.forEach((row, at) => {
      if (typeof row !== "string" || row.length !== keys || /[^01]/.test(row))
        refuse("visible", `mask.rows[${at}]`, { columns: keys, got: short(row) });
    });
  },
};
const checkMask = (mask, queries, keys) => {
  if (!isObject(mask)) refuse("object", "mask", { got: short(mask) });
  checkChoice("mask.kind", mask.kind, MASK_KINDS);
  checkFields("mask", mask, ["kind", ...MASK_FIELDS[mask.kind]]);
  MASKS[mask.kind](mask, queries, keys);
};

const checkScore = (score, width) => {
  if (!isObject(score)) refuse("object", "score", { got: short(score) });
  checkChoice("score.kind", score.kind, Object.keys(SCORE_FIELDS));
  checkFields("score", score, ["kind", ...SCORE_FIELDS[score.kind]]);
  if (score.kind === "bilinear") {
    checkMatrix("score.weight", score.weight, MOST.width, MOST.width);
    checkShape("score.weight", score.weight, width, width);
  }
  if (score.kind === "additive") {
    checkMatrix("score.vector", [score.vector], 1, MOST.width);
    for (const part of ["query", "key"]) {
      checkMatrix(`score.${part}`, score[part], MOST.width, MOST.width);
      checkShape(`score.${part}`, score[part], score.vector.length, width);
    }
  }
};

const checkNames = (field, value, count) => {
  checkList(field, value, count);
  if (value.length !== count) refuse("length", field, { wanted: count, got: value.length });
  value.forEach((name, at) => checkText(`${field}[${at}]`, name, MOST.characters));
};

// Rows of the queries, keys and values. A page that opens with more than one may edit keeps what it has.
const checkInputs = ({ tokens, x, keyTokens, keyX, valueX }, start) => {
  const rows = Math.max(MOST.tokens, start.x.length, start.keyX?.length ?? 0);
  const columns = Math.max(MOST.width, ...[start.x, start.keyX, start.valueX].map((matrix) => matrix?.[0].length ?? 0));
  checkMatrix("x", x, rows, columns);
  checkNames("tokens", tokens, x.length);
  if (keyX === null) {
    if (keyTokens !== null) refuse("together", "keyTokens");
    if (valueX !== null) refuse("together", "valueX");
    return;
  }
  checkMatrix("keyX", keyX, rows, columns);
  checkNames("keyTokens", keyTokens, keyX.length);
  if (valueX === null) return;
  checkMatrix("valueX", valueX, rows, columns);
  checkShape("valueX", valueX, keyX.length);
};

// The heads with W_O; returns the width of queries and keys.
const checkHeads = ({ x, keyX, valueX, heads, output }, start) => {
  const most = Math.max(MOST.width, start.heads?.[0].query.length ?? 0, start.output?.length ?? 0);
  const inputs = { query: x, key: keyX ?? x, value: valueX ?? keyX ?? x };
  const width = heads === null ? x[0].length : checkProjections(heads, inputs, most);
  if (heads === null) checkShape("keyX", inputs.key, inputs.key.length, width);
  if (output === null) return width;
  const joined = heads === null ? inputs.value[0].length : heads.length * heads[0].value[0].length;
  checkMatrix("output", output, Math.max(joined, most), most);
  checkShape("output", output, joined);
  return width;
};
const checkProjections = (heads, inputs, most) => {
  checkList("heads", heads, MOST.heads);
  if (!heads.length) refuse("most", "heads", { most: MOST.heads, got: 0 });
  heads.forEach((head, at) => {
    checkFields(`heads[${at}]`, head, ["query", "key", "value"]);
    for (const [part, input] of Object.entries(inputs)) {
      const field = `heads[${at}].${part}`;
      checkMatrix(field, head[part], most, most);
      const like = part === "value" ? heads[0].value : heads[0].query;
      checkShape(field, head[part], input[0].length, like[0].length);
    }
  });
  return heads[0].query[0].length;
};

const checkScale = (scale) => {
  if (typeof scale === "number") checkNumber("scale", scale);
  else checkChoice("scale", scale, ["default", "none"]);
};

// What a step keeps under its own name has the same kinds of values as at the start.
const checkLike = (field, value, like) => {
  if (isObject(like)) {
    checkFields(field, value, Object.keys(like));
    for (const [name, part] of Object.entries(like)) checkLike(`${field}.${name}`, value[name], part);
  } else if (Array.isArray(like)) {
    checkList(field, value, LENGTHS[field] ?? Math.max(MOST.list, like.length));
    if (like.length && !value.length) refuse("most", field, { most: MOST.list, got: 0 });
    if (like.length) value.forEach((part, at) => checkLike(`${field}[${at}]`, part, like[0]));
    else value.forEach((part, at) => checkPlain(`${field}[${at}]`, part));
  } else if (like === null || value === null) {
    if (value !== null) checkPlain(field, value);
    else if (like !== null) refuse("type", field, { got: "null" });
  } else {
    if (typeof value !== typeof like) refuse("type", field, { got: short(value) });
    checkPlain(field, value);
    if (Object.hasOwn(RANGES, field)) checkRange(field, value, RANGES[field]);
  }
};
const checkRange = (field, value, { least, most, isWhole }) => {
  if (isWhole) checkInteger(field, value, least, most);
  else if (value < least || value > most) refuse("range", field, { least, most, got: short(value) });
};
const checkPlain = (field, value) => {
  if (typeof value === "number") checkNumber(field, value);
  else if (typeof value === "string") checkText(field, value, 4096);
  else if (typeof value !== "boolean") refuse("type", field, { got: short(value) });
};

// A state of which only some fields are given, as an address holds it, is the start with these fields instead. Each
// field is replaced whole.
export const completed = (candidate, start) => ({ ...start, ...candidate });

const check = (candidate, start) => {
  if (!isObject(candidate)) refuse("object", "state", { got: short(candidate) });
  for (const name of Object.keys(candidate))
    if (!FIELDS.includes(name) && !Object.hasOwn(start, name)) refuse("unknown", name.slice(0, 64));
  const state = completed(candidate, start);
  checkChoice("step", state.step, STEP_IDS);
  checkChoice("language", state.language, ["en", "zh"]);
  checkInputs(state, start);
  const width = checkHeads(state, start);
  checkInteger("row", state.row, 0, state.x.length - 1);
  checkInteger("head", state.head, 0, (state.heads?.length ?? 1) - 1);
  checkChoice("positions", state.positions, ["none", "sinusoidal"]);
  checkScore(state.score, width);
  checkScale(state.scale);
  checkNumber("temperature", state.temperature);
  if (state.temperature <= 0) refuse("positive", "temperature", { got: state.temperature });
  checkMask(state.mask, state.x.length, (state.keyX ?? state.x).length);
  for (const name of Object.keys(start)) if (!FIELDS.includes(name)) checkLike(name, state[name], start[name]);
  const { overflow } = compute(state);
  if (overflow !== null) refuse("overflow", overflow);
};

// Null if the page can show the state; else { key, filled } of a sentence in CHECK_WORDS, about what is wrong first.
export const checkState = (candidate, start) => {
  try {
    check(candidate, start);
    return null;
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return { key: error.key, filled: error.filled };
  }
};
