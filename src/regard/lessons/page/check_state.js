// Whether a state from an address or a file, which anybody may have written, is one that the page can show. No DOM.

import {
  checkChoice,
  checkFields,
  checkInteger,
  checkList,
  checkNumber,
  checkText,
  isObject,
  Refusal,
  refuse,
  short,
} from "./check_values.js";
import { LIMITS } from "./limits.js";
import { MASK_KINDS } from "./masks.js";
import { compute } from "./numbers.js";
import { STEP_FIELDS } from "./step_fields.js";
import { STEP_IDS } from "./step_ids.js";

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
    between: "{field} must be a number from {least} to {most}, got {got}.",
    positive: "{field} must be a number above 0, got {got}.",
    integer: "{field} must be a whole number from {least} to {most}, got {got}.",
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
    overflow: "These numbers are too large: {field} has one that a computer's 64 bits do not hold. Make them smaller.",
  },
  zh: {
    unreadable: "这不是一份课程：内容不是 JSON。",
    version: "内容是 JSON，但不是这一页保存的课程：那样的文件里有 \"regard_lesson\": {version}。",
    object: "{field} 应当是由名称和值组成的对象，这里却是 {got}。",
    unknown: "课程里没有 {field} 这一项，请去掉。",
    missing: "缺少 {field}。",
    number: "{field} 应当是 −1e70 到 1e70 之间的数，这里却是 {got}。",
    between: "{field} 应当是 {least} 到 {most} 之间的数，这里却是 {got}。",
    positive: "{field} 应当是大于 0 的数，这里却是 {got}。",
    integer: "{field} 应当是 {least} 到 {most} 之间的整数，这里却是 {got}。",
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
    overflow: "这些数太大了：{field} 里有一个数超出了 64 位浮点数的范围。请把它们改小。",
  },
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
    checkInteger("mask.left", left, 0, LIMITS.count);
    checkInteger("mask.right", right, 0, LIMITS.count);
  },
  padding: ({ hidden }, _, keys) => checkIndices("mask.hidden", hidden, keys),
  longformer: ({ window, globals }, _, keys) => {
    checkInteger("mask.window", window, 0, LIMITS.count);
    if (window % 2) refuse("even", "mask.window", { got: window });
    checkIndices("mask.globals", globals, keys);
  },
  bigbird: ({ window, globals, table }, _, keys) => {
    checkInteger("mask.window", window, 1, LIMITS.count);
    if (window % 2 === 0) refuse("odd", "mask.window", { got: window });
    checkInteger("mask.globals", globals, 0, LIMITS.count);
    checkList("mask.table", table, keys);
    if (table.length !== keys) refuse("length", "mask.table", { wanted: keys, got: table.length });
    table.forEach((row, at) => {
      checkList(`mask.table[${at}]`, row, keys);
      if (row.length !== table[0].length)
        refuse("length", `mask.table[${at}]`, { wanted: table[0].length, got: row.length });
      row.forEach((key, column) => checkInteger(`mask.table[${at}][${column}]`, key, 0, keys - 1));
    });
  },
  prefix: ({ length }) => checkInteger("mask.length", length, 0, LIMITS.count),
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

const checkScore = (score, width, most) => {
  if (!isObject(score)) refuse("object", "score", { got: short(score) });
  checkChoice("score.kind", score.kind, Object.keys(SCORE_FIELDS));
  checkFields("score", score, ["kind", ...SCORE_FIELDS[score.kind]]);
  if (score.kind === "bilinear") {
    checkMatrix("score.weight", score.weight, most.width, most.width);
    checkShape("score.weight", score.weight, width, width);
  }
  if (score.kind === "additive") {
    checkMatrix("score.vector", [score.vector], 1, most.width);
    for (const part of ["query", "key"]) {
      checkMatrix(`score.${part}`, score[part], most.width, most.width);
      checkShape(`score.${part}`, score[part], score.vector.length, width);
    }
  }
};

// How much a page may hold: what one that opens with more has already, it keeps.
const mostOf = (start) => {
  const weights = (start.heads ?? []).flatMap(Object.values);
  const matrices = [start.x, start.keyX, start.valueX, start.output, ...weights].filter(Boolean);
  const names = [...start.tokens, ...(start.keyTokens ?? [])];
  const sizes = [...matrices.map((matrix) => matrix[0].length), ...weights.map((matrix) => matrix.length)];
  return {
    tokens: Math.max(LIMITS.tokens, start.x.length, start.keyX?.length ?? 0),
    heads: Math.max(LIMITS.heads, start.heads?.length ?? 1),
    width: Math.max(LIMITS.width, ...sizes),
    characters: Math.max(LIMITS.characters, ...names.map((name) => name.length)),
  };
};

const checkNames = (field, value, count, most) => {
  checkList(field, value, count);
  if (value.length !== count) refuse("length", field, { wanted: count, got: value.length });
  value.forEach((name, at) => checkText(`${field}[${at}]`, name, most.characters));
};

// Rows of the queries, keys and values.
const checkInputs = ({ tokens, x, keyTokens, keyX, valueX }, most) => {
  checkMatrix("x", x, most.tokens, most.width);
  checkNames("tokens", tokens, x.length, most);
  if (keyX === null) {
    if (keyTokens !== null) refuse("together", "keyTokens");
    if (valueX !== null) refuse("together", "valueX");
    return;
  }
  checkMatrix("keyX", keyX, most.tokens, most.width);
  checkNames("keyTokens", keyTokens, keyX.length, most);
  if (valueX === null) return;
  checkMatrix("valueX", valueX, most.tokens, most.width);
  checkShape("valueX", valueX, keyX.length);
};

// The heads with W_O; returns the width of queries and keys.
const checkHeads = ({ x, keyX, valueX, heads, output }, most) => {
  const inputs = { query: x, key: keyX ?? x, value: valueX ?? keyX ?? x };
  const width = heads === null ? x[0].length : checkProjections(heads, inputs, most);
  if (heads === null) checkShape("keyX", inputs.key, inputs.key.length, width);
  if (output === null) return width;
  const joined = heads === null ? inputs.value[0].length : heads.length * heads[0].value[0].length;
  checkMatrix("output", output, Math.max(joined, most.width), most.width);
  checkShape("output", output, joined);
  return width;
};
const checkProjections = (heads, inputs, most) => {
  checkList("heads", heads, most.heads);
  if (!heads.length) refuse("most", "heads", { most: most.heads, got: 0 });
  heads.forEach((head, at) => {
    checkFields(`heads[${at}]`, head, ["query", "key", "value"]);
    for (const [part, input] of Object.entries(inputs)) {
      const field = `heads[${at}].${part}`;
      checkMatrix(field, head[part], most.width, most.width);
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
  const most = mostOf(start);
  checkInputs(state, most);
  const width = checkHeads(state, most);
  checkInteger("row", state.row, 0, state.x.length - 1);
  checkInteger("head", state.head, 0, (state.heads?.length ?? 1) - 1);
  checkChoice("positions", state.positions, ["none", "sinusoidal"]);
  checkScore(state.score, width, most);
  checkScale(state.scale);
  checkNumber("temperature", state.temperature);
  if (state.temperature <= 0) refuse("positive", "temperature", { got: state.temperature });
  checkMask(state.mask, state.x.length, (state.keyX ?? state.x).length);
  for (const name of Object.keys(start)) if (!FIELDS.includes(name)) STEP_FIELDS[name](name, state[name]);
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
