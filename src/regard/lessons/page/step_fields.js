// What single steps remember in the state under a name of their own, as lesson.py begins it, and its ranges. No DOM.

import { checkBetween, checkChoice, checkFields, checkInteger, checkList, checkNumber, refuse } from "./check_values.js";
import { LIMITS } from "./limits.js";
import { WIDTHS } from "./score_experiment.js";

// Whose sizes can be looked at; "translator" where one is recorded.
const MODELS = ["lesson", "base", "bert", "gpt2", "translator"];

const count = (field, value) => checkInteger(field, value, 0, LIMITS.count);
const checkScores = (field, value) => {
  checkList(field, value, LIMITS.scores);
  if (!value.length) refuse("most", field, { most: LIMITS.scores, got: 0 });
  value.forEach((score, at) => checkNumber(`${field}[${at}]`, score));
};

const CHECKS = {
  why: { length: count, example: count },
  real: { layer: count, head: count, query: count, key: count },
  transformer: {
    model: (field, value) => checkChoice(field, value, MODELS),
    norm: (field, value) => checkChoice(field, value, ["post", "pre"]),
    written: count,
    head: (field, value) => checkInteger(field, value, -1, LIMITS.count), // −1: the mean of all
  },
  maskStep: {
    length: (field, value) => checkInteger(field, value, ...LIMITS.patternLength),
    random: (field, value) => checkInteger(field, value, 0, LIMITS.tokens),
    seed: count,
  },
  otherScores: { factor: (field, value) => checkBetween(field, value, LIMITS.factor) },
  scoresStep: { dim: (field, value) => checkChoice(field, value, WIDTHS), seed: count, scores: checkScores },
};

// Of each of these fields, the function that refuses a value that its step cannot draw.
export const STEP_FIELDS = Object.fromEntries(
  Object.entries(CHECKS).map(([step, checks]) => [
    step,
    (field, own) => {
      checkFields(field, own, Object.keys(checks));
      for (const [name, check] of Object.entries(checks)) check(`${field}.${name}`, own[name]);
    },
  ]),
);
