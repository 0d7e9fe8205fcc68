// The lesson: its steps in the order of the road, drawn from the numbers of the state.

import { CHECK_WORDS, checkState } from "./check_state.js";
import { copyText, selectText } from "./clipboard.js";
import { download } from "./download.js";
import { compute } from "./numbers.js";
import { makeOverview } from "./overview.js";
import { asPython } from "./python.js";
import { watchEdges } from "./scroll_edges.js";
import { makeSection } from "./section.js";
import {
  address,
  canRedo,
  canUndo,
  change,
  fileText,
  isChanged,
  isTooLong,
  onChange,
  pushAddress,
  readAddress,
  readFileText,
  redo,
  reset,
  setStep,
  state,
  takeBack,
  undo,
  writeAddress,
} from "./state.js";
import { STEP_IDS } from "./step_ids.js";
import { onTheme, printsLight, setTheme, theme } from "./theme.js";
import { glossed, glossOf, say, sayer } from "./words.js";
import { vectorsStep } from "./step_vectors.js";
import { projectionsStep } from "./step_projections.js";
import { scoresStep } from "./step_scores.js";
import { maskStep } from "./step_mask.js";
import { headsStep } from "./step_heads.js";
import { otherScoresStep } from "./step_other_scores.js";
import { softmaxStep } from "./step_softmax.js";
import { mixingStep } from "./step_mixing.js";
import { realStep } from "./step_real.js";
import { transformerStep } from "./step_transformer.js";
import { whyStep } from "./step_why.js";

const MODULES = [
  headsStep,
  maskStep,
  mixingStep,
  otherScoresStep,
  projectionsStep,
  realStep,
  scoresStep,
  softmaxStep,
  transformerStep,
  vectorsStep,
  whyStep,
];
const STEPS = STEP_IDS.map((id) => MODULES.find((step) => step.id === id));
// Steps whose tables are not about the tokens and heads that can be changed.
const OWN_ROWS = ["why", "real", "transformer"];

const LARGEST_FILE = 50e6; // bytes
const REST = 250; // milliseconds after the last change, until what is off the screen is drawn too
const SETTLED = 3000; // milliseconds, until nothing above a section grows by itself
const MARGIN = "600px"; // a section is drawn before it comes onto the screen
const KEYS = [
  ["kArrows", "← ↑ → ↓"],
  ["kType", "0–9 Enter F2"],
  ["kEscape", "Esc"],
  ["kAlt", "Alt+↑ Alt+↓"],
  ["kDrag", null],
  ["kSpace", "Space"],
  ["kPaste", "Ctrl+V"],
  ["kUndo", "Ctrl+Z Ctrl+Shift+Z"],
  ["kSteps", "k j"],
  ["kHelp", "?"],
];

const byId = (name) => document.getElementById(name);
const sayCheck = sayer(CHECK_WORDS);
const { dataset } = document.documentElement;

let spoken = null; // the language of what does not change otherwise
let numbers = null;
let trouble = null; // a function that says what is wrong, in the language of the moment
let note = null; // the same of what was done
let overflow = null; // the name of a matrix with numbers that float64 does not have

const sections = STEPS.map((step, at) => makeSection(step, at + 1, byId("road")));
const sectionOf = (id) => sections.find((section) => section.id === id);

// Sections are drawn when they are near the screen, all others when nothing else is to be done, and before printing.
const near = new Set();
let resting = 0;
const isSettled = () => sections.every((section) => !section.isStale());
const drawOthers = () => {
  const next = sections.find((section) => section.isStale());
  next?.draw(numbers);
  if (isSettled()) dataset.settled = dataset.ready;
  else resting = setTimeout(drawOthers, 0);
};
const drawAll = () => {
  if (!numbers) return;
  for (const section of sections) if (section.isStale()) section.draw(numbers);
  dataset.settled = dataset.ready;
};
const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const section = sections.find(({ element }) => element === target);
      if (!isIntersecting) near.delete(section);
      else {
        near.add(section);
        if (section.isStale() && numbers) section.draw(numbers);
      }
    }
  },
  { rootMargin: `${MARGIN} 0px` },
);

const goTo = (id) => {
  const section = sectionOf(id);
  if (!section || !numbers) return;
  for (const before of sections.slice(0, sections.indexOf(section) + 1)) if (before.isStale()) before.draw(numbers);
  section.element.scrollIntoView();
  section.heading.focus({ preventScroll: true });
  setStep(id);
  markStep();
  pushAddress();
};
const overview = makeOverview(byId("stages"), (id) => sectionOf(id)?.title() ?? null, goTo);

const markStep = () => {
  overview.mark(state.step);
  if (byId("steps").value !== state.step) byId("steps").value = state.step;
  drawLooks();
};
// The bar keeps its height: its choices are hidden where they mean nothing, and leave their place empty.
const drawLooks = () => {
  const isOwn = OWN_ROWS.includes(state.step);
  for (const name of ["row", "head"]) byId(name).closest("label").classList.toggle("idle", isOwn);
};

const setOptions = (select, list, value) => {
  const text = JSON.stringify(list);
  if (select.dataset.list !== text) {
    select.dataset.list = text;
    select.replaceChildren(
      ...list.map(([name, label]) => Object.assign(document.createElement("option"), { value: name, textContent: label })),
    );
  }
  if (select.value !== String(value)) select.value = value;
};

const drawControls = () => {
  for (const element of document.querySelectorAll("[data-word]")) {
    const text = say(element.dataset.word);
    if (element.textContent !== text) element.textContent = text;
  }
  if (spoken !== state.language) {
    spoken = document.documentElement.lang = state.language;
    document.title = say("title");
    byId("nav").setAttribute("aria-label", say("road"));
    drawKeys();
  }
  byId("language").value = state.language;
  setOptions(byId("theme"), ["system", "light", "dark"].map((name) => [name, say(name)]), theme());
  setOptions(byId("steps"), sections.map((section) => [section.id, `${section.number}. ${section.title()}`]), state.step);
  setOptions(byId("row"), state.tokens.map((token, row) => [row, `${row + 1}. ${glossed(token)}`]), state.row);
  const glosses = [...new Set([...state.tokens, ...(state.keyTokens ?? [])])].filter((token) => glossOf(token));
  byId("gloss").textContent = glosses.length ? say("gloss", { list: glosses.map(glossed).join(", ") }) : "";
  byId("gloss").hidden = !glosses.length;
  const heads = Array.from({ length: state.heads?.length ?? 1 }, (_, head) => [head, say("headName", { number: head })]);
  setOptions(byId("head"), heads, state.head);
  byId("head").closest("label").hidden = heads.length === 1;
  drawLooks();
  byId("undo").disabled = !canUndo();
  byId("redo").disabled = !canRedo();
  byId("reset").disabled = !isChanged();
};

const drawKeys = () => {
  byId("help-list").replaceChildren(
    ...KEYS.flatMap(([name, keys]) => {
      const [term, meaning] = [document.createElement("dt"), document.createElement("dd")];
      for (const key of (keys ?? say("drag")).split(" ")) {
        term.append(Object.assign(document.createElement("kbd"), { textContent: key }), " ");
      }
      meaning.textContent = say(name);
      return [term, meaning];
    }),
  );
};

const drawNotes = () => {
  const sentence = overflow ? sayCheck("overflow", { field: overflow }) : (trouble?.() ?? "");
  byId("trouble").textContent = sentence;
  byId("trouble").hidden = !sentence;
  byId("note").textContent = note?.() ?? "";
  if (byId("python").open) byId("lines").textContent = asPython(state);
};

const draw = () => {
  const next = compute(state);
  drawControls();
  if (next.overflow) {
    overflow = next.overflow;
    if (!numbers || !takeBack()) drawNotes(); // else what was before is drawn
    return;
  }
  numbers = next;
  overview.draw(numbers);
  for (const section of sections) {
    section.forget();
    if (near.has(section)) section.draw(numbers);
  }
  drawNotes();
  overflow = null; // the sentence stays until the next change
  writeAddress();
  dataset.ready = String(Number(dataset.ready ?? 0) + 1);
  clearTimeout(resting);
  clearTimeout(lengthTimer);
  resting = setTimeout(drawOthers, REST);
  lengthTimer = setTimeout(drawLength, REST);
};

// Whether the address still holds all changes is known only once they are written out, which takes a while.
let lengthTimer = 0;
const drawLength = () => {
  const isLong = isTooLong();
  byId("long").textContent = isLong ? say("tooLong") : "";
  byId("long").hidden = !isLong;
};

const fail = (problem, prefix) => {
  trouble = problem && (() => say(prefix, { sentence: sayCheck(problem.key, problem.filled) }));
  drawNotes();
};
const followAddress = (options) => {
  const problem = readAddress(checkState, options);
  fail(problem, "badAddress");
  return problem === null;
};

const openFile = async ({ target }) => {
  const [file] = target.files;
  target.value = ""; // the same file can be opened again
  if (!file) return;
  const text = file.size > LARGEST_FILE ? "" : await file.text();
  fail(readFileText(text, checkState), "badFile");
};

const copyPython = async () => {
  const text = asPython(state);
  const isCopied = await copyText(text);
  note = () => say(isCopied ? "copied" : "notCopied");
  if (!isCopied) {
    byId("python").open = true;
    selectText(byId("lines"), text);
  }
  drawNotes();
};

// The step that is read: the last one that has come to the upper third of the window.
let scrolling = 0;
const followScroll = () => {
  scrolling = 0;
  const line = innerHeight / 3;
  const passed = sections.filter(({ element }) => element.getBoundingClientRect().top <= line);
  const step = (passed.at(-1) ?? sections[0]).id;
  if (step === state.step) return;
  setStep(step);
  markStep();
  writeAddress();
};

const typing = ({ target }) => target.closest("input:not([type=checkbox]):not([type=radio]), select, textarea") !== null;
const moveStep = (by) => {
  const at = sections.findIndex(({ id }) => id === state.step) + by;
  if (sections[at]) goTo(sections[at].id);
};
const showHelp = () => {
  byId("help").open = true;
  byId("help").scrollIntoView();
  byId("help").querySelector("summary").focus({ preventScroll: true });
};
const onKey = (event) => {
  if (event.isComposing || event.altKey || typing(event)) return;
  const key = event.key.toLowerCase();
  if (event.ctrlKey || event.metaKey) {
    if (key === "z") (event.shiftKey ? redo : undo)();
    else if (key === "y") redo();
    else return;
  } else if (key === "j") moveStep(1);
  else if (key === "k") moveStep(-1);
  else if (key === "?") showHelp();
  else return;
  event.preventDefault();
};

const listen = () => {
  byId("undo").addEventListener("click", undo);
  byId("redo").addEventListener("click", redo);
  byId("reset").addEventListener("click", reset);
  byId("copy").addEventListener("click", copyPython);
  byId("save").addEventListener("click", () =>
    download(new Blob([fileText()], { type: "application/json" }), "attention-lesson.json"),
  );
  byId("keys").addEventListener("click", showHelp);
  byId("open").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", openFile);
  byId("python").addEventListener("toggle", drawNotes);
  byId("language").addEventListener("change", ({ target }) => change({ language: target.value }, { undoable: false }));
  byId("theme").addEventListener("change", ({ target }) => setTheme(target.value));
  byId("steps").addEventListener("change", ({ target }) => goTo(target.value));
  byId("row").addEventListener("change", ({ target }) => change({ row: Number(target.value) }, { undoable: false }));
  byId("head").addEventListener("change", ({ target }) => change({ head: Number(target.value) }, { undoable: false }));
  document.addEventListener("keydown", onKey);
  addEventListener("scroll", () => (scrolling ||= requestAnimationFrame(followScroll)), { passive: true });
  addEventListener("hashchange", () => {
    if (location.hash === address()) return;
    const { step } = state;
    if (followAddress() && state.step !== step) sectionOf(state.step)?.element.scrollIntoView();
  });
  const answers = [...document.querySelectorAll("details.question")];
  let closed = [];
  addEventListener("beforeprint", () => {
    printsLight(true);
    drawAll();
    closed = answers.filter(({ open }) => !open);
    for (const answer of closed) answer.open = true;
  });
  addEventListener("afterprint", () => {
    for (const answer of closed) answer.open = false;
    printsLight(false);
  });
};

// A section that the page opens with stays in sight while sections above it, whose numbers are unpacked, grow.
const keepInSight = (element) => {
  element.scrollIntoView();
  const observer = new ResizeObserver(() => element.scrollIntoView());
  const end = () => observer.disconnect();
  observer.observe(byId("road"));
  for (const act of ["wheel", "touchstart", "pointerdown", "keydown"]) addEventListener(act, end, { once: true });
  setTimeout(end, SETTLED);
};

listen();
watchEdges(document.querySelector("footer"));
onTheme(() => {
  for (const section of sections) section.forget(true);
  draw();
});
followAddress({ undoable: false });
onChange(draw);
draw();
for (const { element } of sections) watcher.observe(element);
if (state.step !== STEPS[0].id) {
  drawAll();
  const opened = sectionOf(state.step);
  if (opened) keepInSight(opened.element);
}
