// The experiment on scores as it is shown, with what the step says.

import { grouped, make } from "./elements.js";
import { format } from "./number_text.js";
import { experiment, PAIRS, WIDTHS } from "./score_experiment.js";
import { makeBars, makePlot } from "./score_pictures.js";
import { change, state } from "./state.js";

const own = () => state.scoresStep;

// The experiment: d by a slider, what is measured as a table and two plots, and the weights of one query.
export const makeExperimentView = (speak) => {
  const heading = make("h3");
  const text = make("p");
  const terms = make("p", { className: "hint" });
  const name = document.createTextNode("");
  const most = String(WIDTHS.length - 1);
  const slider = make("input", { type: "range", name: "width", min: "0", max: most, step: "1" });
  slider.addEventListener("input", () =>
    change({ scoresStep: { ...own(), dim: WIDTHS[Number(slider.value)] } }, { undoable: false }),
  );
  const again = make("button", { type: "button" });
  again.addEventListener("click", () =>
    change({ scoresStep: { ...own(), seed: own().seed + 1 } }, { undoable: false }),
  );
  const table = make("table", { className: "measured" });
  const caption = table.createCaption();
  const head = table.createTHead().insertRow();
  const body = table.createTBody();
  const [variances, gradients] = [makePlot(), makePlot()];
  const oneQuery = make("p");
  const [plain, divided] = [makeBars("plain"), makeBars("divided")];
  const columnHead = (textContent) => make("th", { scope: "col", textContent });
  const line = (title, ...cells) => {
    const head = make("th", { scope: "row", textContent: title });
    return make("tr", {}, head, ...cells.map((textContent) => make("td", { textContent })));
  };
  const fillTable = (result) => {
    const { width } = result;
    caption.textContent = speak("measured", { width });
    head.replaceChildren(columnHead(speak("what")), columnHead(speak("plain")), columnHead(speak("divided")));
    body.replaceChildren(
      line(speak("variance"), format(result.variance), format(result.variance / width)),
      line(speak("theory"), String(width), "1"),
      line(speak("largest"), format(result.plain.largest), format(result.divided.largest)),
      line(speak("entropy"), format(result.plain.entropy), format(result.divided.entropy)),
      line(speak("gradient"), format(result.plain.gradient), format(result.divided.gradient)),
    );
    table.values = result; // as they are, for whoever wants more digits than are shown
  };
  const drawPlots = (results) => {
    const widths = results.map(({ width }) => width).join(", ");
    const list = (values) => values.map(format).join(", ");
    variances.draw({
      caption: speak("varianceChart", { width: results.at(-1).width }),
      label: speak("varianceChartLabel", { widths, values: list(results.map(({ variance }) => variance)) }),
      axis: speak("axis"),
      range: [0.5, 2048],
      ticks: [1, 32, 1024],
      line: WIDTHS.map((width) => [width, width]),
      series: [{ points: results.map(({ width, variance }) => [width, variance]), className: "plain" }],
    });
    const of = (kind) => results.map((result) => [result.width, result[kind].gradient]);
    gradients.draw({
      caption: speak("gradientChart", { width: results.at(-1).width }),
      label: speak("gradientChartLabel", {
        widths,
        plain: list(of("plain").map(([, value]) => value)),
        divided: list(of("divided").map(([, value]) => value)),
      }),
      axis: speak("axis"),
      range: [0.02, 0.6],
      ticks: [0.03, 0.1, 0.3],
      series: ["plain", "divided"].map((className) => ({ points: of(className), className })),
    });
  };
  const label = make("label", { className: "field" }, name, slider);
  return {
    element: make(
      "div",
      { className: "experiment" },
      heading,
      text,
      make("div", { className: "controls" }, label, again),
      make("div", { className: "wide", tabIndex: 0, role: "group" }, table),
      terms,
      make("div", { className: "plots" }, variances.element, gradients.element),
      oneQuery,
      make("div", { className: "plots" }, plain.element, divided.element),
    ),
    draw() {
      const { dim, seed } = own();
      const power = Math.max(0, Math.min(WIDTHS.length - 1, Math.round(Math.log2(Math.max(dim, 1)))));
      const results = experiment(seed, WIDTHS[power]);
      const result = results.at(-1);
      heading.textContent = speak("why");
      text.textContent = speak("experiment", { pairs: grouped(PAIRS) });
      name.data = speak("width", { width: result.width });
      slider.value = String(power);
      slider.setAttribute("aria-valuetext", `d = ${result.width}`);
      again.textContent = speak("again");
      fillTable(result);
      table.parentElement.setAttribute("aria-label", caption.textContent);
      drawPlots(results);
      terms.textContent = speak("terms");
      oneQuery.textContent = speak("oneQuery", { number: result.query + 1 });
      plain.draw(speak("barsPlain"), result.plain.weights);
      divided.draw(speak("barsDivided"), result.divided.weights);
    },
  };
};
