// The section of a step: heading, text, formula, what it shows, a question with its answer on demand, and its picture.

import { setText } from "./elements.js";
import { makeFormula, withIndices } from "./formula.js";
import { savePicture } from "./picture.js";
import { watchEdges } from "./scroll_edges.js";
import { say, sayer } from "./words.js";

const KINDS = ["png", "svg"];

const setSentence = (element, sentence) => {
  if (element.sentence === sentence) return;
  element.sentence = sentence;
  element.replaceChildren(...withIndices(sentence));
};

export const makeSection = (step, number, road) => {
  const speak = sayer(step.words);
  const element = document.createElement("section");
  element.id = `step-${step.id}`;
  const heading = Object.assign(document.createElement("h2"), { id: `title-${step.id}`, tabIndex: -1 });
  element.setAttribute("aria-labelledby", heading.id);
  const text = Object.assign(document.createElement("p"), { className: "text" });
  const body = Object.assign(document.createElement("div"), { className: "body" });
  const details = Object.assign(document.createElement("details"), { className: "question" });
  const question = document.createElement("summary");
  const answer = document.createElement("p");
  details.append(question, answer);
  const pictures = Object.assign(document.createElement("p"), { className: "pictures" });
  const label = document.createElement("span");
  const buttons = KINDS.map((kind) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: kind.toUpperCase() });
    button.addEventListener("click", () => savePicture(kind, `attention-${step.id}`, speak("title"), body));
    return button;
  });
  pictures.append(label, ...buttons);
  const formula = document.createElement("div");
  // A formula and a text may follow the state: the first is a function then, the second has a name for each case.
  let formulaDrawn = "";
  const drawFormula = () => {
    const parts = typeof step.formula === "function" ? step.formula() : (step.formula ?? []);
    const key = JSON.stringify(parts);
    if (key === formulaDrawn) return;
    formulaDrawn = key;
    formula.replaceChildren(...(parts.length ? [makeFormula(parts)] : []));
  };
  drawFormula();
  element.append(heading, text, formula, body, details, pictures);
  road.append(element);
  let view = null;
  let stale = true;
  let drawnOf = null; // what it showed depends on, where the step names that

  const draw = (numbers) => {
    const parts = step.depends?.() ?? null;
    const isSame = parts !== null && drawnOf !== null && parts.every((part, at) => part === drawnOf[at]);
    drawnOf = parts;
    stale = false;
    if (isSame) return;
    view ??= step.build(body, speak);
    element.classList.add("drawn");
    setText(heading, `${number}. ${speak("title")}`);
    setSentence(text, speak(step.textName?.() ?? "text"));
    drawFormula();
    const variant = step.variant?.() ?? "";
    setSentence(question, `${say("question")}${speak(`question${variant}`)}`);
    setSentence(answer, speak(`answer${variant}`));
    setText(label, say("savePicture"));
    buttons.forEach((button, at) =>
      button.setAttribute("aria-label", say("pictureOf", { title: speak("title"), kind: KINDS[at].toUpperCase() })),
    );
    view.draw(numbers);
    watchEdges(element);
  };
  return {
    id: step.id,
    number,
    element,
    heading,
    title: () => speak("title"),
    draw,
    isStale: () => stale,
    // What it shows is of the past; `wholly` where its colours are too.
    forget: (wholly = false) => {
      stale = true;
      if (wholly) drawnOf = null;
    },
  };
};
