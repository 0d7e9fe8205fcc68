// The ranges of what only one step has in the state, by the names of fields: as far as the step's own controls go. No DOM.

export const RANGES = {
  "maskStep.length": { least: 3, most: 24, isWhole: true }, // tokens of the pattern
  "maskStep.random": { least: 0, most: 32, isWhole: true }, // keys a row
  "maskStep.seed": { least: 0, most: 2 ** 31, isWhole: true },
  "scoresStep.dim": { least: 1, most: 1024, isWhole: true },
  "scoresStep.seed": { least: 0, most: 2 ** 31, isWhole: true },
  "otherScores.factor": { least: 1, most: 10, isWhole: false },
};

export const MOST_SCORES = 12; // of the row that a reader types
export const LENGTHS = { "scoresStep.scores": MOST_SCORES };
