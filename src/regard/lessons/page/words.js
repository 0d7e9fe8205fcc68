// The words of a lesson in the language of its state. Each step has its own, and the frame has these.

import { fill } from "../../render/page/filling.js";
import { state } from "./state.js";
import { FRAME_WORDS, GLOSSES } from "./frame_words.js";

// `words` is { en: {name: text}, zh: {name: text} }; {names} in a text are filled in.
export const sayer =
  (words) =>
  (name, filled = {}) =>
    fill(words[state.language][name], filled);
export const say = sayer(FRAME_WORDS);

// What a word of the example means, for readers of another language; undefined for other words.
export const glossOf = (token) => (Object.hasOwn(GLOSSES[state.language], token) ? GLOSSES[state.language][token] : undefined);
export const glossed = (token) => (glossOf(token) ? `${token} (${glossOf(token)})` : token);
