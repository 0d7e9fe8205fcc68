// A recorded translation, a token at a time: the row of cross-attention from which each token was chosen.

import { make } from "./elements.js";
import { rowOfHead } from "./layer_numbers.js";
import { makeMatrix } from "./matrix.js";
import { format } from "./number_text.js";
import { change, state } from "./state.js";

const PAUSE = 1400; // milliseconds between tokens
const still = matchMedia("(prefers-reduced-motion: reduce)");

const barRows = (table, caption, headings, rows) => {
  const head = make("tr", {}, ...headings.map((text) => make("th", { scope: "col", textContent: text })));
  const lines = rows.map(({ name, value, chosen, note }) => {
    const filled = make("span");
    filled.style.width = `${100 * value}%`;
    const label = make("th", { scope: "row", textContent: name });
    if (note) label.append(" ", make("span", { className: "note", textContent: note }));
    const shown = make("td", { className: "number", textContent: format(value) });
    const bar = make("td", { className: "bar-cell", "aria-hidden": "true" }, make("span", { className: "bar" }, filled));
    const row = make("tr", { className: chosen ? "chosen" : "" }, label, shown, bar);
    row.dataset.value = String(value);
    return row;
  });
  const titles = make("thead", {}, head);
  table.replaceChildren(make("caption", { textContent: caption }), titles, make("tbody", {}, ...lines));
};

// { element, draw() }: `translation` is what regard.interpret.translation_steps records.
export const makePlayer = (translation, speak) => {
  const { steps, source } = translation;
  const [layers, heads] = [steps[0].weights.length, steps[0].weights[0].length];
  const button = (name) => make("button", { type: "button", id: `translation-${name}` });
  const [first, back, next, play] = ["first", "back", "next", "play"].map(button);
  const select = make("select", { id: "translation-head" });
  const selectLabel = make("label", { htmlFor: select.id });
  const sentence = make("p", { className: "sentence", id: "translation-source" });
  const output = make("ol", { className: "written", id: "translation-written" });
  const readout = make("p", { id: "translation-readout", "aria-live": "polite" });
  const rowTable = make("table", { className: "bars", id: "translation-row" });
  const likeliest = make("table", { className: "bars", id: "translation-likeliest" });
  const tables = make("div", { className: "two-tables" }, rowTable, likeliest);
  const matrix = makeMatrix("cross-attention");
  const controls = make("div", { className: "controls" }, first, back, next, play, selectLabel, select);
  const made = make("p", { className: "hint" });
  const element = make("div", { role: "group", className: "player" }, sentence, controls, output, readout, tables);
  element.append(matrix.element, made);

  const within = (value, most) => Math.max(0, Math.min(Math.trunc(value), most));
  const chosenStep = () => Math.max(1, within(state.transformer.written, steps.length));
  const choose = (fields) => change({ transformer: { ...state.transformer, ...fields } }, { undoable: false });
  const go = (written) => choose({ written: Math.max(1, Math.min(steps.length, written)) });

  let timer = 0;
  const stop = () => {
    clearInterval(timer);
    timer = 0;
  };
  const advance = () => {
    if (chosenStep() === steps.length - 1) stop();
    go(chosenStep() + 1);
  };
  play.addEventListener("click", () => {
    if (timer) {
      stop();
      go(chosenStep());
      return;
    }
    timer = setInterval(advance, PAUSE);
    go(chosenStep() === steps.length ? 1 : chosenStep());
  });
  const byHand = (target) => () => {
    stop();
    go(target());
  };
  first.addEventListener("click", byHand(() => 1));
  back.addEventListener("click", byHand(() => chosenStep() - 1));
  next.addEventListener("click", byHand(() => chosenStep() + 1));
  select.addEventListener("change", () => choose({ head: Number(select.value) }));
  output.addEventListener("click", (event) => {
    const token = event.target.closest("button");
    if (token) byHand(() => Number(token.dataset.step))();
  });

  const headName = (head) =>
    head < 0
      ? speak("meanOfHeads", { count: layers * heads })
      : speak("headOfLayer", { layer: Math.floor(head / heads), head: head % heads });
  const buttons = steps.map((step, at) => {
    const token = make("button", { type: "button", textContent: step.token });
    token.dataset.step = String(at + 1);
    output.append(make("li", { className: step.special ? "special" : "" }, token));
    return token;
  });

  const draw = () => {
    const written = chosenStep();
    const head = Math.max(-1, Math.min(layers * heads - 1, Math.trunc(state.transformer.head)));
    const step = steps[written - 1];
    const row = rowOfHead(step.weights, head);
    const largest = row.indexOf(Math.max(...row));
    element.setAttribute("aria-label", speak("player"));
    sentence.textContent = speak("sourceSentence", { sentence: translation.sentence });
    for (const [name, control] of Object.entries({ first, back, next })) control.textContent = speak(name);
    play.textContent = speak(timer ? "pause" : "play");
    play.hidden = still.matches;
    // not disabled: a button that has the focus would lose it
    for (const control of [first, back]) control.setAttribute("aria-disabled", String(written === 1));
    next.setAttribute("aria-disabled", String(written === steps.length));
    selectLabel.textContent = speak("headChoice");
    const choices = Array.from({ length: layers * heads + 1 }, (_, at) =>
      make("option", { value: String(at - 1), textContent: headName(at - 1) }),
    );
    select.replaceChildren(...choices);
    select.value = String(head);
    output.setAttribute("aria-label", speak("writtenSoFar"));
    buttons.forEach((token, at) => {
      token.parentElement.hidden = at >= written;
      if (at === written - 1) token.setAttribute("aria-current", "step");
      else token.removeAttribute("aria-current");
    });
    readout.textContent = speak("readout", {
      step: written,
      count: steps.length,
      token: step.token,
      probability: format(step.probability),
      source: source[largest],
      weight: format(row[largest]),
      head: headName(head),
    });
    const rowCaption = speak("rowCaption", { input: step.input, token: step.token });
    const sourceRows = source.map((name, key) => ({ name, value: row[key], chosen: key === largest }));
    barRows(rowTable, rowCaption, [speak("sourceToken"), speak("weight")], sourceRows);
    const likely = step.likeliest.map(([name, value]) => ({ name, value, chosen: name === step.token }));
    barRows(likeliest, speak("likeliest", { step: written }), [speak("nextToken"), speak("probability")], likely);
    matrix.draw(
      steps.slice(0, written).map(({ weights }) => rowOfHead(weights, head)),
      {
        title: speak("matrixTitle"),
        rows: steps.slice(0, written).map(({ token }) => token),
        columns: source,
        paint: "weight",
        symbol: "weight",
        chosen: written - 1,
        onChoose: (at) => byHand(() => at + 1)(),
      },
    );
    const sentences = [speak(translation.made ? "recordedHere" : "recordedOwn", { model: translation.model })];
    if (translation.made) sentences.push(speak("marks"));
    if (!translation.ended) sentences.push(speak("notEnded", { count: steps.length }));
    made.textContent = sentences.join(speak("gap"));
  };
  return { element, draw };
};
