// All that a reader can change: numbers, choices and where the reader is. The address holds what differs from the start.

export const start = JSON.parse(document.getElementById("start").textContent);
// A value: its fields are replaced by `change`, never changed themselves.
export const state = { ...start };

const LONGEST = 8192; // bytes of an address
const VERSION = 1; // of a file
const MOST_CHANGES = 300; // that can be undone
// What is only looked at stays as it is when a change is undone.
const LOOKS = ["step", "language", "row", "head", "real"];

const past = [];
const future = [];
const listeners = [];
let gesture = null; // a drag: all its changes are one

const same = (left, right) => JSON.stringify(left) === JSON.stringify(right);
const differences = (fields = {}) =>
  Object.fromEntries(Object.entries({ ...state, ...fields }).filter(([name, value]) => !same(value, start[name])));

export const onChange = (listener) => listeners.push(listener);
const announce = () => listeners.forEach((listener) => listener());

// The row and the head that are looked at, where there are fewer than before.
const settle = () => {
  state.row = Math.max(0, Math.min(state.row, state.x.length - 1));
  state.head = Math.max(0, Math.min(state.head, (state.heads?.length ?? 1) - 1));
};
let before = null; // the last change: the state, what could be undone and what could be redone
const replace = (fields) => {
  Object.assign(state, fields);
  settle();
  announce();
};
const remember = () => {
  past.push({ ...state });
  if (past.length > MOST_CHANGES) past.shift();
  future.length = 0;
};

// Set some fields of the state. `undoable` is false for what is only looked at, such as the step.
export const change = (fields, { undoable = true } = {}) => {
  before = { state: { ...state }, past: [...past], future: [...future], changed: gesture?.changed };
  if (undoable && !gesture?.changed) remember();
  if (undoable && gesture) gesture.changed = true;
  replace(fields);
};
// Take back the last change, for a state that cannot be shown. Whether there was one.
export const takeBack = () => {
  if (!before) return false;
  const last = before;
  before = null;
  past.splice(0, past.length, ...last.past);
  future.splice(0, future.length, ...last.future);
  if (gesture) gesture.changed = last.changed;
  replace(last.state);
  return true;
};

// From here to endGesture, all changes are one to be undone.
export const beginGesture = () => {
  gesture = { changed: false };
};
export const endGesture = () => {
  gesture = null;
};
export const cancelGesture = () => {
  const { changed } = gesture ?? {};
  gesture = null;
  if (changed) replace({ ...past.pop(), ...looks() });
};

// Where the reader is, which nothing is drawn anew for.
export const setStep = (step) => Object.assign(state, { step });

const looks = () => Object.fromEntries(LOOKS.map((name) => [name, state[name]]));
const travel = (from, to) => {
  if (!from.length) return;
  to.push({ ...state });
  replace({ ...from.pop(), ...looks() });
};
export const canUndo = () => past.length > 0;
export const canRedo = () => future.length > 0;
export const undo = () => travel(past, future);
export const redo = () => travel(future, past);
export const reset = () => change({ ...start, ...looks() });
// A field that was never replaced is the one of the start, so nothing is compared number by number at each frame.
export const isChanged = () => Object.keys(state).some((name) => !LOOKS.includes(name) && state[name] !== start[name]);

// A comma and a colon may stand in an address as they are.
const encoded = (fields) => encodeURIComponent(JSON.stringify(fields)).replaceAll("%2C", ",").replaceAll("%3A", ":");
export const address = (fields = {}) => {
  const changed = differences(fields);
  return Object.keys(changed).length ? `#${encoded(changed)}` : "#";
};
export const isTooLong = (hash = address()) => hash.length > LONGEST;
// What a link to a step has, so that the step opens with all changes elsewhere too; of too many, the step alone.
export const addressOfStep = (step) => {
  const whole = address({ step });
  return whole === "#" || isTooLong(whole) ? `#step-${step}` : whole;
};
export const fileText = () => `${JSON.stringify({ regard_lesson: VERSION, ...differences() }, null, 1)}\n`;

const UNREADABLE = { key: "unreadable", filled: {} };
const parsed = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
};
const stepOf = (hash) => /^#step-(\w+)$/.exec(hash)?.[1]; // as a link within the page
const decoded = (hash) => {
  if (hash.length < 2) return "{}";
  if (stepOf(hash)) return JSON.stringify({ step: stepOf(hash) });
  try {
    return decodeURIComponent(hash.slice(1));
  } catch {
    return "";
  }
};

let known = location.hash; // the address that was last followed or written

// Follow the address. What is wrong with it is returned, as checkState does (null if nothing is), and then nothing
// changes.
export const readAddress = (check, { undoable = true } = {}) => {
  known = location.hash;
  const fields = parsed(decoded(location.hash));
  const trouble = fields === undefined ? UNREADABLE : check(fields, start);
  if (trouble) return trouble;
  const next = { ...(stepOf(location.hash) ? state : start), ...fields };
  if (!same(next, state)) change(next, { undoable });
  return null;
};
// The same of the text of a file.
export const readFileText = (text, check) => {
  const file = parsed(text);
  if (file === undefined) return UNREADABLE;
  if (file?.regard_lesson !== VERSION) return { key: "version", filled: { version: VERSION } };
  const { regard_lesson: _, ...fields } = file;
  const trouble = check(fields, start);
  if (!trouble) change({ ...start, ...fields, step: state.step, language: state.language });
  return trouble;
};

let timer = 0;
const write = (how) => {
  if (location.hash !== known) return; // another address was just opened, and the page is about to follow it
  const whole = address();
  const hash = isTooLong(whole) ? "#" : whole; // an older one would be passed on as if it were this
  if (location.hash === hash || (hash === "#" && !location.hash)) return;
  try {
    history[how](history.state, "", hash); // with the theme
    known = location.hash;
  } catch {
    /* a sandboxed frame has no address of its own */
  }
};
export const writeAddress = () => {
  clearTimeout(timer);
  timer = setTimeout(() => write("replaceState"), 150);
};
// A new entry of the history: the back button returns to what was before.
export const pushAddress = () => {
  clearTimeout(timer);
  write("pushState");
};
