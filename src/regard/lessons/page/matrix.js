// A matrix as a table whose cells can be read, pointed at and, where they are the reader's own, changed.

export const format = (value) =>
  value === -Infinity ? "−∞" : String(Number(value.toPrecision(3))).replace("-", "−");

// Make a table once and fill it at each draw: { element, draw(values, options) }.
// options: rows, columns: labels; edit(row, column, value) where the numbers can be changed; visible: a matrix of flags.
export const makeMatrix = (name) => {
  const element = document.createElement("figure");
  element.className = "matrix";
  element.dataset.name = name;
  const table = document.createElement("table");
  const caption = table.createCaption();
  const body = table.createTBody();
  element.append(table);
  const draw = (values, { title = name, rows = [], columns = [] } = {}) => {
    element.values = values; // as they are, for whoever wants more digits than are shown
    caption.textContent = title;
    const lines = columns.length ? [["", ...columns]] : [];
    values.forEach((row, at) => lines.push([rows[at] ?? "", ...row.map(format)]));
    body.replaceChildren(
      ...lines.map((line) => {
        const tr = document.createElement("tr");
        tr.append(...line.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
        return tr;
      }),
    );
  };
  return { element, draw };
};
