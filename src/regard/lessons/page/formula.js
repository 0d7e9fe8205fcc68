// Formulas whose symbols have the colours of the matrices.

// "W_Q", "K^⊤" and "d_{model}" with a lower or upper index.
export const indexed = (text) =>
  text.split(/([_^](?:\{[^}]*\}|[^\s_^]))/).map((part) => {
    if (!/^[_^]./.test(part)) return part;
    const index = document.createElement(part[0] === "_" ? "sub" : "sup");
    index.textContent = part.slice(1).replace(/^\{|\}$/g, "");
    return index;
  });

// A sentence, in which only a single letter has an index: "W_K", "K^⊤" and "e^{−∞}", but not "q_len".
const INDEXED = /(?<!\w)([A-Za-z](?:_[A-Za-z0-9]|_\{[^}]*\}|\^[A-Za-z0-9⊤]|\^\{[^}]*\})+)(?!\w)/;
export const withIndices = (text) => text.split(INDEXED).flatMap((part, at) => (at % 2 ? indexed(part) : part));

const nodesOf = (part) => {
  if (typeof part === "string") return indexed(part);
  const [tag, className, parts] = Array.isArray(part)
    ? ["var", `symbol-${part[1]}`, [part[0]]]
    : [part.tag ?? "span", part.className ?? "", part.parts];
  const element = Object.assign(document.createElement(tag), { className });
  element.append(...parts.flatMap(nodesOf));
  return [element];
};

// `parts` is an array of texts, of [text, symbol], and of groups { tag, className, parts }.
export const makeFormula = (parts) => {
  const element = Object.assign(document.createElement("p"), { className: "formula" });
  element.append(...parts.flatMap(nodesOf));
  return element;
};
