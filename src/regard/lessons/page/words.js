// The words of a lesson in the language of its state. Each step has its own, and the frame has these.

import { state } from "./state.js";

const FRAME = {
  en: { language: "Language", undo: "Undo", reset: "Reset", question: "A question", answer: "Show the answer" },
  zh: { language: "语言", undo: "撤销", reset: "复位", question: "想一想", answer: "看答案" },
};

const fill = (text, filled) => text.replace(/\{(\w+)\}/g, (_, name) => String(filled[name]));
// `words` is { en: {name: text}, zh: {name: text} }; {names} in a text are filled in.
export const sayer =
  (words) =>
  (name, filled = {}) =>
    fill(words[state.language][name], filled);
export const say = sayer(FRAME);
