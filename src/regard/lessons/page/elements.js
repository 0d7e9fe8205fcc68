// Elements of HTML and SVG with their properties, and small fields for numbers that check what is typed.

const SVG = "http://www.w3.org/2000/svg";

// make("button", { type: "button", textContent: "…" }, child, …); names with a dash become attributes.
export const make = (tag, properties = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
};

export const draw = (tag, attributes = {}, ...children) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// Only where it differs: what is written anew is laid out anew.
export const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

// A large number, with a comma between thousands from 10,000 on: 1024 is the same wherever it stands.
export const grouped = (value) => value.toLocaleString("en-US", { useGrouping: "min2" });

// A labelled field for a number of at least `least` and at most `most()`, in steps: a whole number if `step` is whole.
// What does not fit is refused by one sentence beside the field, and nothing changes.
export const numberField = ({ name, least, most, step = 1, accept }) => {
  const text = document.createTextNode("");
  const input = make("input", { type: "number", name, step: String(step), min: String(least) });
  const problem = make("span", { className: "problem", role: "alert", hidden: true });
  const element = make("label", { className: "field" }, text, input, problem);
  let sentence = "";
  const isGood = (value) =>
    input.value.trim() !== "" &&
    Number.isFinite(value) &&
    value >= least &&
    value <= most() &&
    (step === "any" || Number.isInteger((value - least) / step));
  input.addEventListener("change", () => {
    const value = Number(input.value);
    const good = isGood(value);
    problem.hidden = good;
    problem.textContent = good ? "" : sentence;
    input.setAttribute("aria-invalid", String(!good));
    if (good) accept(value);
  });
  return {
    element,
    show(value, { label, refusal }) {
      text.data = label;
      sentence = refusal;
      input.max = String(most());
      if (!problem.hidden) {
        problem.textContent = sentence;
        if (document.activeElement === input) return; // what was typed stays beside the sentence until it is changed
      }
      input.value = String(value);
      problem.hidden = true;
      input.setAttribute("aria-invalid", "false");
    },
  };
};
