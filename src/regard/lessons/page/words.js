// The words of a lesson in the language of its state. Each step has its own, and the frame has these.

import { fill } from "../../render/page/filling.js";
import { state } from "./state.js";
import { FRAME_WORDS } from "./frame_words.js";

// `words` is { en: {name: text}, zh: {name: text} }; {names} in a text are filled in.
export const sayer =
  (words) =>
  (name, filled = {}) =>
    fill(words[state.language][name], filled);
export const say = sayer(FRAME_WORDS);
