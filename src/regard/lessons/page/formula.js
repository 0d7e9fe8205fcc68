// Formulas whose symbols have the colours of the matrices.

// "W_Q", "K^⊤" and "d_{model}" with a lower or upper index.
export const indexed = (text) =>
  text.split(/([_^](?:\{[^}]*\}|[^\s_^]))/).map((part) => {
    if (!/^[_^]./.test(part)) return part;
    const index = document.createElement(part[0] === "_" ? "sub" : "sup");
    index.textContent = part.slice(1).replace(/^\{|\}$/g, "");
    return index;
  });

// A sentence, in which only a single letter has an index: "W_K", but not "q_len".
export const withIndices = (text) => text.split(/(?<!\w)([A-Za-z]_[A-Za-z0-9])(?!\w)/).flatMap((part, at) => (at % 2 ? indexed(part) : part));

// `parts` is an array of texts and of [text, symbol].
export const makeFormula = (parts) => {
  const element = Object.assign(document.createElement("p"), { className: "formula" });
  element.append(
    ...parts.flatMap((part) => {
      if (typeof part === "string") return indexed(part);
      const symbol = Object.assign(document.createElement("var"), { className: `symbol-${part[1]}` });
      symbol.append(...indexed(part[0]));
      return [symbol];
    }),
  );
  return element;
};
