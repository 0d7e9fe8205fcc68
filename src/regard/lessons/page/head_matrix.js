// A matrix of the head that is looked at. Each head has one of its own by its name, and the place shows that of the
// moment; it is put there when the head changes and not at each draw, so that it keeps the focus.

import { make } from "./elements.js";
import { makeMatrix } from "./matrix.js";

export const makeHeadMatrix = (name) => {
  const element = make("div", { className: "head-matrix" });
  const matrices = [];
  return {
    element,
    draw(head, values, options) {
      matrices[head] ??= makeMatrix(`${name}-${head}`);
      matrices[head].draw(values, options);
      if (element.firstChild !== matrices[head].element) element.replaceChildren(matrices[head].element);
    },
  };
};
