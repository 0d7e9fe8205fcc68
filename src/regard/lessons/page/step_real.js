// Step 9: the same steps on the queries, keys and values of a head of a real model.

import { css } from "../../render/page/colours.js";
import { grouped, make, setText } from "./elements.js";
import { withIndices } from "./formula.js";
import { makeMatrix } from "./matrix.js";
import { format } from "./number_text.js";
import { sentencesBefore } from "./real_before.js";
import { largestProducts, strongest, unpack, workHead } from "./real_numbers.js";
import { makeRealPython } from "./real_python.js";
import { REAL_WORDS } from "./real_words.js";
import { recorded } from "./recorded.js";
import { change, state } from "./state.js";

const LARGEST = 5; // products that are written out, and values that are mixed
const ROWS = 32; // of a matrix; of more tokens, those with the largest weights
const STRONGEST = 16;
const CHIPS = 64; // tokens that are buttons; longer texts are chosen from lists
const TINT = 50; // percent of colour of a weight of 1: its text stays readable in both themes

const data = recorded.real;

// --- the numbers of the chosen head

const layers = new Map(); // index → the arrays of a layer, or null where they are damaged
const inflate = async (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};
const load = async (index) => {
  const { blob, arrays } = data.layers[index];
  try {
    layers.set(index, unpack(await inflate(blob), arrays));
  } catch {
    layers.set(index, null);
  }
};

let worked = { name: "", steps: null };
const stepsOf = (index, head) => {
  const name = `${index} ${head}`;
  if (worked.name !== name) worked = { name, steps: workHead(data.layers[index], layers.get(index), head) };
  return worked.steps;
};

const within = (value, count, other) => (Number.isInteger(value) && value >= 0 && value < count ? value : other);

// Names of tokens: of those that occur again, with the number of the occurrence, as `token="it#2"` names them.
const namesOf = (texts) => {
  const counts = new Map();
  return texts.map((text) => {
    const word = text.toLowerCase();
    counts.set(word, (counts.get(word) ?? 0) + 1);
    return counts.get(word) > 1 ? `${text}#${counts.get(word)}` : text;
  });
};

// What is looked at: the state of the step, where an address has nothing else.
const place = () => {
  const wanted = state.real ?? {};
  const layer = within(wanted.layer, data.layers.length, data.start.layer);
  const { heads, sizes } = data.layers[layer];
  const head = heads.includes(wanted.head) ? wanted.head : heads[0];
  return { layer, head, query: within(wanted.query, sizes.q[1], 0), key: within(wanted.key, sizes.k[1], 0) };
};
const choose = (fields) => change({ real: { ...place(), ...fields } }, { undoable: false });

// --- parts of the page

// A labelled list of choices; `show(label, texts, numbers, chosen)`.
const makeSelect = (name) => {
  const label = make("span");
  const select = make("select", { name: `real-${name}` });
  select.addEventListener("change", () => choose({ [name]: Number(select.value) }));
  const show = (text, options, chosen) => {
    setText(label, text);
    const list = JSON.stringify(options);
    if (select.dataset.list !== list) {
      select.dataset.list = list;
      select.replaceChildren(...options.map(([value, label]) => make("option", { value: String(value), textContent: label })));
    }
    select.value = String(chosen);
  };
  return { element: make("label", { className: "field" }, label, select), show };
};

const cell = (tag, text, properties = {}) => make(tag, { textContent: text, ...properties });
const isolated = (text) => make("bdi", { textContent: text });

const makeTable = (name) => {
  const caption = make("caption");
  const head = make("thead");
  const body = make("tbody");
  const table = make("table", { className: "numbers real-table" }, caption, head, body);
  const box = make("div", { className: "scroll", tabIndex: 0, role: "region", "data-name": name }, table);
  const show = (title, columns, rows) => {
    setText(caption, title);
    box.setAttribute("aria-label", title);
    const focused = document.activeElement?.dataset?.key;
    const inside = box.contains(document.activeElement);
    const name = (column) => (column ? cell("th", column, { scope: "col" }) : make("td", {}));
    head.replaceChildren(make("tr", {}, ...columns.map(name)));
    body.replaceChildren(...rows);
    if (inside && focused !== undefined) body.querySelector(`[data-key="${focused}"]`)?.focus({ preventScroll: true });
  };
  return { element: box, show };
};

const makeOwn = () => {
  const summary = make("summary");
  const [shell, python] = [make("p"), make("p")];
  const lines = [
    'regard steps "The cat sat on the mat because it was warm." --model smollm2 --out page.html',
    [
      "import regard",
      "",
      'with regard.watch(model, keep="qkv", tokenizer=tokenizer) as seen:',
      "    model(**inputs)",
      'seen.lesson(layer=5, head=11, token="it").to_html("page.html")',
    ].join("\n"),
  ];
  const [command, program] = lines.map((text) => make("pre", { tabIndex: 0 }, make("code", { textContent: text })));
  const element = make("details", { className: "real-own" }, summary, shell, command, python, program);
  element.open = Boolean(data.sample);
  const show = (speak) => {
    setText(summary, speak("ownTitle"));
    setText(shell, speak("ownShell"));
    setText(python, speak("ownPython"));
    command.setAttribute("aria-label", speak("ownShell"));
    program.setAttribute("aria-label", speak("ownPython"));
  };
  return { element, show };
};

// A text as buttons that choose a query or a key, each tinted by its weight.
const makeSentence = (side) => {
  const label = make("p", { className: "real-label" });
  const chips = make("div", { className: "real-sentence", role: "group" });
  const show = (text, tokens, weights, chosen) => {
    setText(label, text);
    chips.setAttribute("aria-label", text);
    while (chips.children.length > tokens.length) chips.lastChild.remove();
    while (chips.children.length < tokens.length) {
      const at = chips.children.length;
      const button = make("button", { type: "button" }, isolated(""));
      button.addEventListener("click", () => choose({ [side]: at }));
      chips.append(button);
    }
    tokens.forEach((token, at) => {
      const button = chips.children[at];
      setText(button.firstChild, token);
      button.setAttribute("aria-pressed", String(at === chosen));
      const share = weights ? Math.round(Math.min(1, weights[at]) * TINT) : 0;
      button.style.background = share ? `color-mix(in srgb, var(--weight) ${share}%, var(--page))` : "";
      button.title = weights ? format(weights[at]) : "";
    });
  };
  return { element: make("div", {}, label, chips), show };
};

const makeBar = (weight) => {
  if (weight === 0) return make("td", { className: "real-bars" });
  const bar = make("span", { className: "real-bar", "aria-hidden": "true" });
  bar.style.width = `${(weight * 100).toFixed(2)}%`;
  return make("td", { className: "real-bars" }, bar);
};

export const realStep = {
  id: "real",
  formula: [
    ["s_j", "score"], " = ", ["q", "query"], " · ", ["k_j", "key"], ",  ", ["z_j", "score"], " = ", ["s_j", "score"], " · scale,  ",
    ["a", "weight"], " = softmax(", ["z", "score"], "),  ", ["o", "output"], " = Σ_j ", ["a_j", "weight"], " ", ["v_j", "value"],
  ],
  words: REAL_WORDS,
  build(body, speak) {
    const source = make("p", { className: "real-source" });
    const sample = make("p");
    const own = makeOwn();
    const selects = Object.fromEntries(["layer", "head", "query", "key"].map((name) => [name, makeSelect(name)]));
    const controls = make("div", { className: "controls real-controls" }, ...Object.values(selects).map((one) => one.element));
    const trouble = make("p", { className: "warning", role: "alert", hidden: true });
    const [sentence, keySentence] = [makeSentence("query"), makeSentence("key")];
    const [beforeTitle, productsTitle, rowTitle, mixedTitle] = [0, 1, 2, 3].map(() => make("h3"));
    const before = make("ul");
    const part = make("p", { hidden: true });
    const [notes, colours] = [0, 1].map(() => make("p", { className: "hint" }));
    const matrices = Object.fromEntries(
      ["queries", "keys", "weights", "values", "mixed", "output"].map((name) => [name, makeMatrix(`real-${name}`)]),
    );
    const products = makeTable("real-products");
    const row = makeTable("real-row");
    const [summary, sink, checked] = [make("p", { className: "counter" }), make("p", { hidden: true }), make("p")];
    summary.setAttribute("aria-live", "polite");
    const noValues = make("p", { className: "real-missing", hidden: true });
    const mixed = make("div", {}, matrices.values.element, mixedTitle, matrices.mixed.element, matrices.output.element);
    const python = makeRealPython();
    const shown = make(
      "div",
      { className: "real-shown", hidden: true },
      sentence.element,
      keySentence.element,
      notes,
      beforeTitle,
      before,
      part,
      colours,
      matrices.queries.element,
      matrices.keys.element,
      make(
        "div",
        { className: "real-tables" },
        make("div", {}, productsTitle, products.element),
        make("div", {}, rowTitle, summary, row.element, sink),
      ),
      matrices.weights.element,
      checked,
      noValues,
      mixed,
      python.element,
    );
    const omitted = make("ul", { className: "real-omitted" });
    body.append(source, sample, controls, trouble, shown, own.element, omitted);

    const nameOf = ({ stream, number }) => speak(stream ? "layerIn" : "layerName", { stream, number });
    const fail = (name) => {
      setText(trouble, speak(name));
      trouble.hidden = shown.hidden = false;
      shown.hidden = true;
    };

    const drawControls = (at, layer, queries, keys) => {
      const numbered = (texts) => texts.map((text, index) => [index, `${index + 1}. ${text}`]);
      selects.layer.show(speak("layer"), data.layers.map((each, index) => [index, nameOf(each)]), at.layer);
      selects.head.show(speak("head"), layer.heads.map((head) => [head, String(head)]), at.head);
      selects.query.show(speak("query"), numbered(queries), at.query);
      selects.key.show(speak("key"), numbered(keys), at.key);
    };

    // One text, whose words look at each other, or two: queries and keys of cross-attention.
    const drawSentences = (at, steps, layer, queries, keys) => {
      const isOne = layer.tokens[0] === layer.tokens[1];
      const weights = steps.weights[at.query];
      sentence.element.hidden = queries.length > CHIPS;
      keySentence.element.hidden = isOne || keys.length > CHIPS;
      if (!sentence.element.hidden) {
        sentence.show(speak(isOne ? "sentence" : "queryText"), queries, isOne ? weights : null, at.query);
      }
      if (!keySentence.element.hidden) keySentence.show(speak("keyText"), keys, weights, at.key);
    };

    // What is no word of the text, and which of the same words.
    const drawNotes = (layer) => {
      const streams = [...new Set(layer.tokens)].map((name) => data.streams[name]);
      const marks = new Set(streams.flatMap(({ texts, special }) => special.map((at) => texts[at]).filter((text) => text !== "␣")));
      const sentences = [];
      if (marks.size) sentences.push(speak("marks", { marks: [...marks].join(speak("comma")) }));
      if (streams.some(({ texts }) => texts.some((text) => text.includes("␣")))) sentences.push(speak("space"));
      const repeated = streams.flatMap(({ texts }) => {
        const names = namesOf(texts);
        return texts.map((word, at) => ({ word, token: names[at] })).filter(({ word, token }) => word !== token);
      });
      if (repeated.length) sentences.push(speak("again", { ...repeated[0], number: repeated[0].token.split("#").at(-1) }));
      notes.hidden = !sentences.length;
      setText(notes, sentences.join(speak("gap")));
    };

    const drawVectors = (at, steps, queries, keys) => {
      const rows = strongest(steps.weights[at.query], keys.length <= ROWS ? ROWS : STRONGEST, at.key);
      const all = queries.length <= ROWS;
      part.hidden = rows.length === keys.length;
      setText(part, speak("partNote", { all: keys.length, count: rows.length }));
      matrices.queries.draw(all ? steps.queries : [steps.queries[at.query]], {
        title: all ? speak("queriesTitle") : speak("queriesPart", { token: queries[at.query] }),
        rows: all ? queries : [queries[at.query]],
        paint: "signed",
        symbol: "query",
        chosen: all ? at.query : 0,
        onChoose: all ? (query) => choose({ query }) : null,
      });
      const keyRows = { rows: rows.map((key) => keys[key]), chosen: rows.indexOf(at.key), onChoose: (at) => choose({ key: rows[at] }) };
      matrices.keys.draw(rows.map((key) => steps.keys[key]), { ...keyRows, title: speak("keysTitle"), paint: "signed", symbol: "key" });
      if (!steps.values) return;
      matrices.values.draw(rows.map((key) => steps.values[key]), { ...keyRows, title: speak("valuesTitle"), paint: "signed", symbol: "value" });
    };

    const drawProducts = (at, steps, query, key) => {
      const { largest, others, rest, total } = largestProducts(steps.queries[at.query], steps.keys[at.key], LARGEST);
      setText(productsTitle, speak("productsTitle", { query, key, count: steps.queries[0].length }));
      const line = (name, cells, className = "") =>
        make("tr", { className }, cell("th", name, { scope: "row" }), ...cells.map((text) => cell("td", text)));
      products.show(
        speak("productsCaption"),
        [
          speak("component"),
          speak("vectorOf", { vector: "q", token: query }),
          speak("vectorOf", { vector: "k", token: key }),
          speak("product"),
        ],
        [
          ...largest.map((term) => line(String(term.at + 1), [term.query, term.key, term.product].map(format))),
          ...(others ? [line(speak("others", { count: others }), ["", "", format(rest)])] : []),
          line(speak("sum"), ["", "", format(total)], "total"),
        ],
      );
      products.element.values = { largest, rest, total };
    };

    const drawRow = (at, layer, steps, query, keys) => {
      const scale = Array.isArray(layer.scale) ? layer.scale[at.query] : layer.scale;
      const dim = steps.queries[0].length;
      const isRoot = Math.abs(scale * Math.sqrt(dim) - 1) < 1e-6;
      const written = isRoot ? speak("scaleRoot", { scale: format(scale), dim }) : format(scale);
      const stages = [[speak("scaled", { scale: written }), steps.scaled]];
      if (steps.capped) stages.push([speak("capped", { cap: format(layer.softcap) }), steps.capped]);
      if (steps.bias) stages.push([speak("bias"), steps.bias], [speak("logit"), steps.logits]);
      const formula = steps.bias ? null : stages.at(-1)[0]; // of the last stage, too long for a column of a phone
      if (formula) stages.at(-1)[0] = speak("logit");
      stages.unshift([speak("score"), steps.scores]);
      const weights = steps.weights[at.query];
      const lines = keys.map((token, key) => {
        const button = make("button", { type: "button", title: speak("choose", { token }) }, isolated(token));
        button.dataset.key = String(key);
        button.setAttribute("aria-pressed", String(key === at.key));
        button.addEventListener("click", () => choose({ key }));
        const sees = steps.visible[at.query][key];
        return make(
          "tr",
          { className: `${key === at.key ? "chosen" : ""}${sees ? "" : " real-hidden"}` },
          make("th", { scope: "row" }, button),
          ...stages.map(([, values]) => cell("td", format(values[at.query][key]))),
          cell("td", sees ? format(weights[key]) : speak("hidden"), { className: "real-weight" }),
          makeBar(weights[key]),
        );
      });
      if (steps.sink !== -Infinity) {
        const left = 1 - weights.reduce((sum, weight) => sum + weight, 0);
        const empty = stages.slice(1).map(() => cell("td", ""));
        lines.push(
          make(
            "tr",
            { className: "total" },
            cell("th", speak("sink"), { scope: "row" }),
            ...empty,
            cell("td", format(steps.sink)),
            cell("td", format(left)),
            makeBar(left),
          ),
        );
      }
      setText(rowTitle, speak("rowTitle", { query }));
      const caption = speak("rowCaption", { query });
      const title = formula ? speak("rowFormula", { caption, formula }) : caption;
      row.show(title, [speak("token"), ...stages.map(([name]) => name), speak("weight"), ""], lines);
      row.element.values = weights;
      sink.hidden = steps.sink === -Infinity;
      setText(sink, speak("sinkNote"));
      const key = keys[at.key];
      const sentence = () => {
        if (!steps.visible[at.query].some(Boolean)) return speak("nothing", { query });
        if (!steps.visible[at.query][at.key]) return speak("weightHidden", { query, key });
        return speak("weightOf", { query, key, weight: format(weights[at.key]) });
      };
      setText(summary, sentence());
    };

    const drawWeights = (at, layer, steps, queries, keys) => {
      const small = queries.length <= ROWS && keys.length <= ROWS;
      matrices.weights.element.hidden = !small;
      if (small) {
        matrices.weights.draw(steps.weights, {
          title: speak("allWeights"),
          rows: queries,
          columns: keys,
          paint: "weight",
          symbol: "weight",
          chosen: at.query,
          hidden: (query, key) => !steps.visible[query][key],
          onChoose: (query, key) => choose(key === null ? { query } : { query, key }),
        });
      }
      const count = steps.weights.length * steps.weights[0].length;
      const difference = steps.difference === 0 ? "0" : steps.difference.toExponential(1).replace("-", "−");
      setText(checked, speak("checked", { count: grouped(count), stored: layer.stored, difference }));
      checked.dataset.difference = String(steps.difference);
    };

    const drawMixed = (at, steps, query, keys) => {
      mixed.hidden = !steps.values;
      noValues.hidden = Boolean(steps.values);
      setText(noValues, speak("noValues"));
      if (!steps.values) return;
      const weights = steps.weights[at.query];
      const order = weights.map((_, key) => key).filter((key) => weights[key] > 0).sort((one, other) => weights[other] - weights[one]);
      const [largest, others] = [order.slice(0, LARGEST), order.slice(LARGEST)];
      const times = (key) => steps.values[key].map((value) => weights[key] * value);
      const rest = steps.output[0].map((_, column) => others.reduce((sum, key) => sum + weights[key] * steps.values[key][column], 0));
      const terms = (column) => order.map((key) => [keys[key], weights[key], steps.values[key][column]]);
      setText(mixedTitle, speak("mixedTitle", { query }));
      const rows = [...largest.map(times), ...(others.length ? [rest] : [])];
      matrices.mixed.element.hidden = !rows.length;
      if (rows.length) {
        matrices.mixed.draw(rows, {
          ownScales: true, // the weights, which the rows have in their names, would leave most of them without colour
          title: speak("mixedParts"),
          rows: [
            ...largest.map((key) => `${format(weights[key])} · ${keys[key]}`),
            ...(others.length ? [speak("mixedRest", { count: others.length })] : []),
          ],
          paint: "signed",
          symbol: "value",
          parts: (line, column) =>
            line < largest.length ? { terms: [terms(column)[line]], from: [["real-values", "column", column]] } : null,
        });
      }
      matrices.output.draw([steps.output[at.query]], {
        title: speak("output", { query }),
        rows: [query],
        paint: "signed",
        symbol: "output",
        parts: (_, column) => (order.length ? { terms: terms(column), from: [["real-mixed", "column", column]] } : null),
      });
    };

    // Nothing here depends on the numbers of the other steps, so their changes draw nothing again.
    let drawn = "";
    const draw = () => {
      const at = place();
      const key = JSON.stringify([at, state.language, css("--page"), layers.get(at.layer) !== undefined]);
      if (drawn === key) return;
      drawn = key;
      drawAt(at);
    };

    const drawAt = (at) => {
      own.show(speak);
      sample.hidden = !data.sample;
      setText(sample, speak("sample"));
      const layer = data.layers[at.layer];
      const [queries, keys] = layer.tokens.map((name) => namesOf(data.streams[name].texts));
      drawControls(at, layer, queries, keys);
      setText(source, speak("source", { model: data.model, layer: nameOf(layer), head: at.head, count: layer.sizes.q[2] }));
      omitted.replaceChildren(
        ...data.left_out.map(([name, reason]) => make("li", { textContent: speak("leftOut", { name, reason }) })),
        ...(data.too_large ? [make("li", { textContent: speak("tooLarge", { count: data.too_large }) })] : []),
      );
      if (typeof DecompressionStream === "undefined") {
        fail("noInflate");
        return;
      }
      if (!layers.has(at.layer)) {
        if (shown.hidden) fail("loading");
        load(at.layer).then(draw);
        return;
      }
      if (layers.get(at.layer) === null) {
        fail("broken");
        return;
      }
      trouble.hidden = true;
      shown.hidden = false;
      const steps = stepsOf(at.layer, at.head);
      const [query, key] = [queries[at.query], keys[at.key]];
      drawSentences(at, steps, layer, queries, keys);
      drawNotes(layer);
      setText(colours, speak("colours"));
      setText(beforeTitle, speak("beforeTitle"));
      before.replaceChildren(
        ...sentencesBefore(data.positions, layer, speak).map((text) => make("li", {}, ...withIndices(text))),
      );
      drawVectors(at, steps, queries, keys);
      drawProducts(at, steps, query, key);
      drawRow(at, layer, steps, query, keys);
      drawWeights(at, layer, steps, queries, keys);
      drawMixed(at, steps, query, keys);
      python.show(layer, steps, queries, keys);
      body.dataset.shown = `${at.layer} ${at.head} ${at.query} ${at.key}`;
    };
    return { draw };
  },
};
