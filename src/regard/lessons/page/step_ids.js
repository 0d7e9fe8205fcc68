// The steps in the order of the road, by the names that an address has for them.

export const STEP_IDS =
  "why vectors projections scores mask softmax mixing heads real transformer other_scores".split(" ");
