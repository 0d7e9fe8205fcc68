// The lesson: its steps in the order of the road, drawn from the numbers of the state.

import { compute } from "./numbers.js";
import { onChange, readAddress, reset, state, undo, writeAddress } from "./state.js";
import { say, sayer } from "./words.js";
import { maskStep } from "./step_mask.js";
import { softmaxStep } from "./step_softmax.js";
import { transformerStep } from "./step_transformer.js";
import { whyStep } from "./step_why.js";

const STEPS = [whyStep, maskStep, softmaxStep, transformerStep];
const byId = (name) => document.getElementById(name);

// A section of a step: heading, text, what it shows, and a question with its answer on demand.
const section = (step) => {
  const speak = sayer(step.words);
  const element = document.createElement("section");
  element.id = `step-${step.id}`;
  const heading = document.createElement("h2");
  const text = document.createElement("p");
  const body = document.createElement("div");
  const details = document.createElement("details");
  const question = document.createElement("summary");
  const answer = document.createElement("p");
  details.append(question, answer);
  element.append(heading, text, body, details);
  byId("road").append(element);
  const shown = step.build(body, speak);
  return (numbers) => {
    heading.textContent = speak("title");
    text.textContent = speak("text");
    question.textContent = speak("question");
    answer.textContent = speak("answer");
    shown.draw(numbers);
  };
};

const sections = STEPS.map(section);

const draw = () => {
  document.documentElement.lang = state.language;
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = say(element.dataset.word);
  const numbers = compute(state);
  for (const drawSection of sections) drawSection(numbers);
  writeAddress();
  document.documentElement.dataset.ready = String(Number(document.documentElement.dataset.ready ?? 0) + 1);
};

byId("undo").addEventListener("click", undo);
byId("reset").addEventListener("click", reset);
onChange(draw);
readAddress(() => null);
draw();
