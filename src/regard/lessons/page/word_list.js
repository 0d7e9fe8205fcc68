// The names of rows: renamed, added, removed, exchanged.

import { make, setText } from "./elements.js";

const LONGEST = 24; // characters of a name that is typed

// `actions` has rename(row, text), which is false for a name that is refused, remove(row), add(text) and exchange(row, row).
export const makeWordList = (actions) => {
  const title = make("h3", {});
  const list = make("ol", { className: "words" });
  const add = make("button", { type: "button", className: "add" });
  const most = make("span", { className: "hint" });
  const selects = [make("select", {}), make("select", {})];
  const labels = [make("span", {}), make("span", {})];
  const swap = make("button", { type: "button", className: "swap" });
  const exchange = make("div", { className: "field-row no-print" });
  exchange.append(make("label", {}, labels[0], " ", selects[0]), make("label", {}, labels[1], " ", selects[1]), swap);
  const element = make("div", { className: "word-list" });
  element.append(title, list, make("p", { className: "field-row no-print" }, add, most), exchange);
  let rows = [];
  let names = [];
  let chosen = [0, 1];
  let words = null; // those of the step

  const makeRow = (row) => {
    const input = make("input", { type: "text", maxLength: LONGEST, spellcheck: false });
    const remove = make("button", { type: "button", className: "remove", textContent: "×" });
    input.addEventListener("change", () => {
      if (!actions.rename(row, input.value)) input.value = names[row];
    });
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") input.blur();
      if (event.key === "Escape") input.value = names[row];
    });
    remove.addEventListener("click", () => {
      actions.remove(row);
      rows[Math.min(row, rows.length - 1)].input.focus();
    });
    return { input, remove, item: make("li", {}, input, remove) };
  };

  const fillSelect = (select, value) => {
    const options = names.map((name, row) => make("option", { value: String(row), textContent: `${row + 1}. ${name}` }));
    select.replaceChildren(...options);
    select.value = String(value);
  };

  add.addEventListener("click", () => {
    actions.add(words("newWord", { number: names.length + 1 }));
    rows.at(-1).input.focus();
    rows.at(-1).input.select();
  });
  selects.forEach((select, at) =>
    select.addEventListener("change", () => {
      chosen[at] = Number(select.value);
      swap.disabled = chosen[0] === chosen[1];
    }),
  );
  swap.addEventListener("click", () => actions.exchange(...chosen));

  return {
    element,
    draw(texts, { title: heading, most: limit, speak }) {
      names = texts;
      words = speak;
      if (rows.length !== texts.length) {
        rows = texts.map((_, row) => makeRow(row));
        list.replaceChildren(...rows.map(({ item }) => item));
      }
      setText(title, heading);
      rows.forEach(({ input, remove }, row) => {
        if (input.value !== texts[row]) input.value = texts[row];
        input.setAttribute("aria-label", speak("rename", { number: row + 1 }));
        input.size = Math.max(3, Math.min(14, [...texts[row]].length * 2));
        remove.setAttribute("aria-label", speak("remove", { token: texts[row] }));
        remove.disabled = texts.length === 1;
      });
      setText(add, speak("add"));
      add.disabled = texts.length >= limit;
      setText(most, texts.length >= limit ? speak("most", { count: limit }) : "");
      chosen = chosen.map((row, at) => Math.min(row, Math.max(0, texts.length - 2 + at)));
      exchange.hidden = texts.length < 2;
      setText(labels[0], speak("exchange"));
      setText(labels[1], speak("and"));
      setText(swap, speak("doExchange"));
      swap.disabled = chosen[0] === chosen[1];
      fillSelect(selects[0], chosen[0]);
      fillSelect(selects[1], chosen[1]);
    },
  };
};
