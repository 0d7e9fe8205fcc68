// The head of a real model that is shown, as lines of Python: its queries, keys and values, and what is done with them.

import { copyText, selectText } from "./clipboard.js";
import { make } from "./elements.js";
import { asPython } from "./python.js";
import { say, sayer } from "./words.js";

const speak = sayer({
  en: { copy: "Copy this head as Python", lines: "This head in Python" },
  zh: { copy: "把这个头复制为 Python", lines: "这个头，用 Python" },
});

// The state whose lines compute the head. A scale of its own for each query is multiplied into the query.
const pythonState = ({ scale, softcap }, steps, queries, keys) => {
  const isEach = Array.isArray(scale);
  const isAll = steps.visible.every((row) => [...row].every(Boolean));
  const rows = () => steps.visible.map((row) => Array.from(row, (flag) => (flag ? "1" : "0")).join(""));
  return {
    tokens: queries,
    x: isEach ? steps.queries.map((row, at) => row.map((value) => value * scale[at])) : steps.queries,
    keyTokens: keys,
    keyX: steps.keys,
    valueX: steps.values,
    heads: null,
    output: null,
    positions: "none",
    score: { kind: "dot" },
    scale: isEach ? "none" : scale,
    temperature: 1,
    mask: isAll ? { kind: "none" } : { kind: "drawn", rows: rows() },
    softcap,
    bias: steps.bias,
    sink: steps.sink === -Infinity ? null : steps.sink,
  };
};

// { element, show(layer, steps, queries, keys) }: a button, and the lines where the browser does not allow copying.
export const makeRealPython = () => {
  const button = make("button", { type: "button", name: "real-python" });
  const note = make("span", { role: "status" });
  const lines = make("pre", { tabIndex: 0, hidden: true });
  let shown = null;
  let word = null; // what the note says
  button.addEventListener("click", async () => {
    const text = asPython(pythonState(...shown));
    const isCopied = await copyText(text);
    word = isCopied ? "copied" : "notCopied";
    note.textContent = say(word);
    lines.hidden = isCopied;
    if (!isCopied) selectText(lines, text);
  });
  return {
    element: make("div", { className: "real-python no-print" }, button, " ", note, lines),
    show(...head) {
      const isNew = shown?.[1] !== head[1];
      shown = head;
      button.textContent = speak("copy");
      lines.setAttribute("aria-label", speak("lines"));
      if (isNew) {
        word = null; // what was copied was another head
        lines.hidden = true;
      }
      note.textContent = word ? say(word) : "";
      button.parentElement.hidden = !head[1].values; // the lines end with the output, which needs values
    },
  };
};
