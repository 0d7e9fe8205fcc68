// Step 6: softmax, with a temperature.

import { makeMatrix } from "./matrix.js";
import { state } from "./state.js";

export const softmaxStep = {
  id: "softmax",
  words: {
    en: {
      title: "Softmax",
      text: "Each score becomes a power of e, and each row is divided by its sum: its weights add up to 1.",
      question: "What happens to the weights if the temperature falls?",
      answer: "They close on the largest score.",
    },
    zh: {
      title: "Softmax",
      text: "每个分数变成 e 的幂，每一行再除以它的和：每行权重之和为 1。",
      question: "温度降低时，权重会怎样？",
      answer: "它们集中到最大的分数上。",
    },
  },
  build(body) {
    const weights = makeMatrix("weights");
    body.append(weights.element);
    return {
      draw(numbers) {
        weights.draw(numbers.heads[state.head].weights, { rows: state.tokens, columns: state.tokens });
      },
    };
  },
};
