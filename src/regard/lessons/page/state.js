// All that a reader can change: numbers, choices and where the reader stands. The address holds what differs from the start.

// The words of each step and what is looked at; numbers and choices of the computation are the rest.
export const start = JSON.parse(document.getElementById("start").textContent);
export const state = structuredClone(start);

const LONGEST = 8192; // bytes of an address
const past = [];
const listeners = [];

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const differences = () =>
  Object.fromEntries(Object.entries(state).filter(([name, value]) => !same(value, start[name])));

export const onChange = (listener) => listeners.push(listener);
const tell = () => listeners.forEach((listener) => listener());

// Set some fields of the state. `undoable` is false for what is only looked at, such as the step.
export const change = (fields, { undoable = true } = {}) => {
  if (undoable) past.push(structuredClone(state));
  Object.assign(state, structuredClone(fields));
  tell();
};

export const canUndo = () => past.length > 0;
export const undo = () => {
  if (!past.length) return;
  const { step, language } = state;
  Object.assign(state, past.pop(), { step, language });
  tell();
};
export const reset = () => {
  const { step, language } = state;
  change({ ...start, step, language });
};

export const address = () => {
  const fields = differences();
  return Object.keys(fields).length ? `#${encodeURIComponent(JSON.stringify(fields))}` : "#";
};
export const isTooLong = () => address().length > LONGEST;
export const readAddress = () => {
  if (location.hash.length < 2) return;
  Object.assign(state, structuredClone(start), JSON.parse(decodeURIComponent(location.hash.slice(1))));
  tell();
};

let timer = 0;
export const writeAddress = () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (isTooLong() || location.hash === address()) return;
    try {
      history.replaceState(null, "", address());
    } catch {
      /* a sandboxed frame has no address of its own */
    }
  }, 150);
};
