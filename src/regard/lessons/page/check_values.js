// Single values from an address or a file: each check passes, or throws what `checkState` returns. No DOM.

import { LIMITS } from "./limits.js";

// Thrown at the first value that does not fit: the key of a sentence in CHECK_WORDS, and what it is filled with.
export const Refusal = class {
  constructor(key, filled) {
    Object.assign(this, { key, filled });
  }
};
export const refuse = (key, field, filled = {}) => {
  throw new Refusal(key, { field, ...filled });
};

// A value in a few characters, however large it is.
export const short = (value) => {
  if (Array.isArray(value)) return `[${value.length}]`;
  if (typeof value === "string") return JSON.stringify(value.length > 24 ? `${value.slice(0, 24)}…` : value);
  return value !== null && typeof value === "object" ? "{…}" : String(value);
};

export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
// Exactly these fields, all of the object itself: no other name, such as __proto__, comes in.
export const checkFields = (field, value, names) => {
  if (!isObject(value)) refuse("object", field, { got: short(value) });
  for (const name of Object.keys(value)) if (!names.includes(name)) refuse("unknown", `${field}.${name}`.slice(0, 64));
  for (const name of names) if (!Object.hasOwn(value, name)) refuse("missing", `${field}.${name}`);
};
export const checkNumber = (field, value) => {
  if (typeof value !== "number" || !(Math.abs(value) <= LIMITS.number)) refuse("number", field, { got: short(value) });
};
export const checkBetween = (field, value, [least, most]) => {
  if (typeof value === "number" && value >= least && value <= most) return;
  refuse("between", field, { least, most, got: short(value) });
};
export const checkInteger = (field, value, least, most) => {
  if (Number.isInteger(value) && value >= least && value <= most) return;
  refuse("integer", field, { least, most, got: short(value) });
};
export const checkChoice = (field, value, choices) => {
  if (!choices.includes(value))
    refuse("choice", field, { choices: choices.join(", "), got: short(value) });
};
export const checkList = (field, value, most) => {
  if (!Array.isArray(value)) refuse("list", field, { got: short(value) });
  if (value.length > most) refuse("most", field, { most, got: value.length });
};
export const checkText = (field, value, most) => {
  if (typeof value !== "string" || value.length > most) refuse("text", field, { most, got: short(value) });
};
