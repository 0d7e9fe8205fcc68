// Step 5: which keys a query may see.

import { make, numberField } from "./elements.js";
import { withIndices } from "./formula.js";
import { makeHeadMatrix } from "./head_matrix.js";
import { makeMaskGrid } from "./mask_grid.js";
import { drawnCount, drawTable } from "./mask_patterns.js";
import { counts, makeGrowth, makePattern } from "./mask_pictures.js";
import { countVisible, MASK_KINDS, visibleOf } from "./masks.js";
import { change, state } from "./state.js";
import { scaleText, wholeFormula } from "./whole_formula.js";

const en = {
  title: "Mask: who may see whom",
  text: "A mask hides keys from a query. What goes into the softmax are the logits Z: the scaled scores, divided by the temperature T (1 until you change it in step 6), plus the mask M. M is 0 where a query may see a key and −∞ where the key is hidden; so the weight of a hidden pair is exactly 0. Choose a rule, or click on the cells.",
  question: "Choose “causal”. Why is the first weight of the first row exactly 1, whatever numbers you type anywhere?",
  answer:
    "The first token sees only itself. A softmax over a single key is e^z / e^z = 1 for every logit z, so its output is its own value, unmixed.",
  kinds: "Mask",
  "kind-none": "none",
  "kind-causal": "causal",
  "kind-window": "window",
  "kind-padding": "padding",
  "kind-longformer": "Longformer",
  "kind-bigbird": "BigBird",
  "kind-prefix": "prefix",
  "kind-drawn": "drawn by hand",
  "visible-none": "seen without a mask",
  "visible-causal": "seen with “causal”",
  "visible-window": "seen with “window”",
  "visible-padding": "seen",
  "visible-longformer": "seen with Longformer",
  "visible-bigbird": "seen with BigBird",
  "visible-prefix": "seen with “prefix”",
  "visible-drawn": "seen",
  "rule-none": "Every query sees every key, as in the encoder of a Transformer.",
  "rule-causal":
    "Key j is visible to query i if j ≤ i: a token sees itself and what came before it. A model that writes one word after another needs this, because the next words do not exist yet (Vaswani et al. 2017).",
  "rule-window":
    "Key j is visible to query i if i − {left} ≤ j ≤ i + {right}: only the neighbours. Farther words are reached through several layers.",
  "rule-padding":
    "Sentences of a batch are filled up to one length. The keys that only fill up are hidden from all queries. Choose which keys are padding.",
  "rule-longformer":
    "A window for all, and a few global tokens, which see all and are seen by all (Beltagy et al. 2020).",
  "rule-bigbird":
    "A window, global tokens at both ends, and for each row a few keys drawn by chance (Zaheer et al. 2020; here in blocks of 1 token).",
  "rule-prefix":
    "The first {length} tokens are seen by all, for instance a question; what follows is causal, as an answer is written (Raffel et al. 2020).",
  "rule-drawn":
    "You decide. Click or touch a cell, or press Space on it; drag to paint. All that you have not touched stays as it was.",
  left: "keys before",
  right: "keys after",
  window: "keys in the window, both sides together",
  windowOdd: "keys in the window, its own included",
  globalEnds: "global tokens at each end",
  randomKeys: "random keys a row",
  length: "tokens of the prefix",
  drawAgain: "Draw again",
  hiddenKeys: "Padding",
  globalTokens: "Global tokens",
  showAll: "Show all",
  hideAll: "Hide all",
  refuseWhole: "A whole number from {least} to {most}, please.",
  refuseEven: "An even number from {least} to {most}, please: as many on either side.",
  refuseOdd: "An odd number from {least} to {most}, please: the token itself and as many on either side.",
  grid: "Who may see whom: rows are queries, columns are keys",
  gridRows: "Rows are queries, columns are keys.",
  gridHelp: "Click, touch or press Space to hide or show a cell; drag to paint; the arrow keys move.",
  cell: "{query} may see {key}",
  counter: "{pairs} of {all} pairs are visible ({percent}).",
  before: "Before the softmax: hidden pairs are −∞",
  logits: "logits Z = S{scale} / T + M",
  after: "After the softmax: hidden pairs are 0",
  weights: "weights A = softmax(Z)",
  why: "Why −∞, and not a 0 afterwards? Because e^{−∞} = 0, the hidden key is missing from the sum too, and the other weights of the row still add up to 1. A 0 put in after the softmax would leave a row that adds up to less.",
  empty:
    "These rows see nothing: {names}. All their logits are −∞, so there is nothing to share out. Their weights and outputs are 0 here; the bare formula would give 0/0.",
  patternTitle: "The pattern for more tokens",
  patternLength: "The pattern for {length} tokens",
  patternHelp:
    "With few tokens many masks look alike. This picture has its own number of tokens and shows the rule that you have chosen; your example above keeps its own.",
  patternName: "The pattern among {length} tokens: {pairs} pairs are visible.",
  patternNone: "Padding and cells chosen by hand belong to the tokens above; they are no rule for other lengths.",
  patternPairs: "{pairs} of {all} pairs ({percent})",
  "part-none": "all",
  "part-causal": "itself and earlier",
  "part-window": "window",
  "part-global": "global",
  "part-random": "random",
  "part-prefix": "prefix",
  growthTitle: "How it grows",
  growthName: "Visible pairs from 1 to 4096 tokens: all pairs, and those {name}. The numbers are in the table.",
  growthAll: "All pairs from 1 to 4096 tokens. The numbers are in the table.",
  growthTable: "Pairs to compute, at three lengths",
  "growth-none":
    "Twice as many tokens are four times as many pairs. Without a mask all of them are computed, so there is one line only; choose a mask, and its own is drawn beside it.",
  "growth-causal":
    "Twice as many tokens are four times as many pairs. With “causal” that is so too: it leaves about half of all pairs at every length.",
  "growth-window": "Twice as many tokens are four times as many pairs; in a window they are only twice as many.",
  "growth-longformer":
    "Twice as many tokens are four times as many pairs; with a window and a fixed number of global tokens they are only about twice as many.",
  "growth-bigbird":
    "Twice as many tokens are four times as many pairs; with a window, and fixed numbers of global tokens and of random keys a row, they are only about twice as many.",
  "growth-prefix":
    "Twice as many tokens are four times as many pairs. With “prefix” that is nearly so too: what follows the prefix is causal, and leaves about half of all pairs.",
  growthNone: "The chosen mask has no rule for other lengths, so only all pairs are drawn.",
  axisLength: "tokens n",
  allPairs: "all pairs, n²",
  millions: "{millions} M",
  percent: "{share}\u00a0%",
  between: " ",
  share: "share of n²",
};

const zh = {
  title: "掩码：谁能看见谁",
  text: "掩码让查询看不见某些键。送进 softmax 的数叫 logits，记作 Z：缩放后的分数除以温度 T（在第 6 步改动之前是 1），再加上掩码 M。看得见的位置，M 是 0；被遮住的位置，M 是 −∞，权重就恰好是 0。选一种规则，或者直接点格子。",
  question: "选“因果”。为什么无论你在哪里改什么数，第一行的第一个权重总是恰好等于 1？",
  answer:
    "第一个词元只看得见自己。只有一个键时，softmax 就是 e^z / e^z = 1，与 logit z 是多少无关；它的输出就是它自己的值，没有混入别的。",
  kinds: "掩码",
  "kind-none": "无",
  "kind-causal": "因果",
  "kind-window": "窗口",
  "kind-padding": "填充",
  "kind-longformer": "Longformer",
  "kind-bigbird": "BigBird",
  "kind-prefix": "前缀",
  "kind-drawn": "手绘",
  "visible-none": "不用掩码时可见",
  "visible-causal": "因果掩码下可见",
  "visible-window": "窗口掩码下可见",
  "visible-padding": "可见",
  "visible-longformer": "Longformer 中可见",
  "visible-bigbird": "BigBird 中可见",
  "visible-prefix": "前缀掩码下可见",
  "visible-drawn": "可见",
  "rule-none": "每个查询都能看见每个键，Transformer 的编码器就是这样。",
  "rule-causal":
    "j ≤ i 时，查询 i 看得见键 j：只看自己和前面的词元。逐词生成的模型必须如此，因为后面的词还没有写出来（Vaswani 等，2017）。",
  "rule-window": "i − {left} ≤ j ≤ i + {right} 时，查询 i 看得见键 j：只看邻近的词元。更远的词要经过几层才能传到。",
  "rule-padding": "一批句子要补齐到同样的长度，补上的键对所有查询都遮住。请选出哪些键是填充。",
  "rule-longformer":
    "所有词元都有一个窗口；另有少数全局词元，它们看得见所有词元，也被所有词元看见（Beltagy 等，2020）。",
  "rule-bigbird": "窗口、两端的全局词元，再加上每一行随机抽取的几个键（Zaheer 等，2020；这里每块只含 1 个词元）。",
  "rule-prefix": "前 {length} 个词元（例如问题）人人看得见；其后（例如逐词写出的回答）是因果的（Raffel 等，2020）。",
  "rule-drawn": "由你来定。点一下或触摸格子，或在格子上按空格键；拖动可以连续涂。没碰过的格子保持原样。",
  left: "前面的键数",
  right: "后面的键数",
  window: "窗口中的键数（两侧合计）",
  windowOdd: "窗口中的键数（含自己）",
  globalEnds: "两端各有几个全局词元",
  randomKeys: "每行随机抽取几个键",
  length: "前缀的词元数",
  drawAgain: "重新抽取",
  hiddenKeys: "填充",
  globalTokens: "全局词元",
  showAll: "全部可见",
  hideAll: "全部遮住",
  refuseWhole: "请输入 {least} 到 {most} 的整数。",
  refuseEven: "请输入 {least} 到 {most} 的偶数：两侧一样多。",
  refuseOdd: "请输入 {least} 到 {most} 的奇数：自己，再加两侧一样多。",
  grid: "谁能看见谁：行是查询，列是键",
  gridRows: "行是查询，列是键。",
  gridHelp: "点击、触摸或按空格键可遮住或显示一格；拖动可连续涂；方向键移动。",
  cell: "{query} 能看见 {key}",
  counter: "{all} 对中有 {pairs} 对可见（{percent}）。",
  before: "softmax 之前：被遮住的是 −∞",
  logits: "logits Z = S{scale} / T + M",
  after: "softmax 之后：被遮住的是 0",
  weights: "权重 A = softmax(Z)",
  why: "为什么用 −∞，而不是事后把权重改成 0？因为 e^{−∞} = 0，被遮住的键连分母里的那一份也没有了，这一行其余的权重加起来仍然是 1。如果 softmax 之后才改成 0，这一行的和就不到 1 了。",
  empty:
    "这些行什么也看不见：{names}。它们的 logits 全是 −∞，没有可以分配的对象。这里规定权重和输出都是 0；直接套公式会得到 0/0。",
  patternTitle: "词元更多时的图案",
  patternLength: "{length} 个词元时的图案",
  patternHelp: "词元少的时候，许多掩码看上去一样。这幅图有自己的词元数，画的是你选的规则；上面的例子不受影响。",
  patternName: "{length} 个词元之间的图案：{pairs} 对可见。",
  patternNone: "填充和手绘的格子只属于上面这些词元，不是可以推广到其他长度的规则。",
  patternPairs: "{all} 对中的 {pairs} 对（{percent}）",
  "part-none": "全部",
  "part-causal": "自己和前面",
  "part-window": "窗口",
  "part-global": "全局",
  "part-random": "随机",
  "part-prefix": "前缀",
  growthTitle: "随长度怎样增长",
  growthName: "从 1 到 4096 个词元，查询—键对的数量：全部，以及{name}的。数值见下表。",
  growthAll: "从 1 到 4096 个词元，全部查询—键对的数量。数值见下表。",
  growthTable: "三种长度下要计算多少个查询—键对",
  "growth-none": "词元的个数变成两倍，查询—键对的数量就变成四倍。不用掩码时全部都要计算，所以只有一条线；选一种掩码，旁边就会画出它的线。",
  "growth-causal": "词元的个数变成两倍，查询—键对的数量就变成四倍。因果掩码也一样：不论多长，总是留下大约一半。",
  "growth-window": "词元的个数变成两倍，全部查询—键对的数量变成四倍，窗口里的只变成两倍。",
  "growth-longformer":
    "词元的个数变成两倍，全部查询—键对的数量变成四倍；只有窗口和固定几个全局词元时，大约只变成两倍。",
  "growth-bigbird":
    "词元的个数变成两倍，全部查询—键对的数量变成四倍；只有窗口、固定几个全局词元和每行固定几个随机键时，大约只变成两倍。",
  "growth-prefix":
    "词元的个数变成两倍，查询—键对的数量就变成四倍。前缀掩码也差不多：前缀之后是因果的，大约留下一半。",
  growthNone: "所选的掩码没有推广到其他长度的规则，所以只画出全部查询—键对的数量。",
  axisLength: "词元数 n",
  allPairs: "全部，n²",
  millions: "{myriads} 万",
  percent: "{share}%",
  between: "",
  share: "占 n² 的比例",
};

const isEven = { step: 2 };
const own = () => state.maskStep;
const keyNames = () => state.keyTokens ?? state.tokens;

// What a mask starts from when it is chosen, for this many keys.
const beginning = (kind, queries, keys) => {
  const { random, seed } = own();
  if (kind === "window") return { kind, left: 1, right: 1 };
  if (kind === "padding") return { kind, hidden: [keys - 1] };
  if (kind === "longformer") return { kind, window: 2, globals: [0] };
  if (kind === "prefix") return { kind, length: Math.min(2, keys) };
  if (kind === "bigbird") {
    const rule = { kind, window: 3, globals: 1 };
    return { ...rule, table: drawTable(rule, keys, random, seed) };
  }
  if (kind === "drawn") return { kind, rows: rowsOf(visibleOf(state.mask, queries, keys)) };
  return { kind };
};

const rowsOf = (visible) => visible.map((row) => row.map((flag) => (flag ? "1" : "0")).join(""));

// The masks by name, as buttons of which one is chosen.
const makeKinds = (speak, choose) => {
  const legend = make("legend");
  const radios = MASK_KINDS.map((kind) => {
    const input = make("input", { type: "radio", name: "mask-kind", value: kind });
    const text = document.createTextNode("");
    input.addEventListener("change", () => choose(kind));
    return { kind, input, text, element: make("label", {}, input, text) };
  });
  return {
    element: make("fieldset", { className: "choices" }, legend, ...radios.map(({ element }) => element)),
    draw() {
      legend.textContent = speak("kinds");
      for (const { kind, input, text } of radios) {
        text.data = speak(`kind-${kind}`);
        input.checked = kind === state.mask.kind;
      }
    },
  };
};

// Tokens of which some are chosen: `field` of the mask has their indices.
const makeTokens = (name, field) => {
  const legend = make("legend");
  const element = make("fieldset", { className: "choices" }, legend);
  let labels = [];
  const build = (names) => {
    labels = names.map((token, index) => {
      const input = make("input", { type: "checkbox", name: `${name}-${index}` });
      input.addEventListener("change", () => {
        const indices = state.mask[field].filter((other) => other !== index);
        const next = input.checked ? [...indices, index].sort((a, b) => a - b) : indices;
        change({ mask: { ...state.mask, [field]: next } });
      });
      return { input, element: make("label", {}, input, token) };
    });
    element.replaceChildren(legend, ...labels.map((label) => label.element));
  };
  let drawn = "";
  return {
    element,
    draw(title) {
      const names = keyNames();
      if (drawn !== JSON.stringify(names)) build(names);
      drawn = JSON.stringify(names);
      legend.textContent = title;
      labels.forEach(({ input }, index) => {
        input.checked = state.mask[field].includes(index);
      });
    },
  };
};

// The parameters of the chosen mask.
const makeParameters = (speak) => {
  const keys = () => keyNames().length;
  const set = (fields) => change({ mask: { ...state.mask, ...fields } });
  const redraw = (fields, random = own().random, seed = own().seed) => {
    const rule = { ...state.mask, ...fields };
    const table = drawTable(rule, keys(), random, seed);
    change({ mask: { ...rule, table }, maskStep: { ...own(), random, seed } });
  };
  const field = (name, options) => ({ name, ...numberField({ name: `mask-${name}`, most: keys, ...options }) });
  const fields = {
    window: [
      field("left", { least: 0, accept: (left) => set({ left }) }),
      field("right", { least: 0, accept: (right) => set({ right }) }),
    ],
    longformer: [
      field("window", {
        least: 0,
        ...isEven,
        most: () => 2 * keys(),
        accept: (window) => set({ window }),
        refusal: "refuseEven",
      }),
    ],
    bigbird: [
      field("windowOdd", {
        least: 1,
        ...isEven,
        most: () => 2 * keys() + 1,
        accept: (window) => redraw({ window }),
        refusal: "refuseOdd",
      }),
      field("globalEnds", { least: 0, accept: (globals) => redraw({ globals }) }),
      field("randomKeys", { least: 0, accept: (random) => redraw({}, random) }),
    ],
    prefix: [field("length", { least: 0, accept: (length) => set({ length }) })],
  };
  const refusals = { window: "refuseEven", windowOdd: "refuseOdd" };
  const valueOf = {
    windowOdd: () => state.mask.window,
    globalEnds: () => state.mask.globals,
    randomKeys: () => drawnCount(state.mask),
  };
  const hidden = makeTokens("mask-hidden", "hidden");
  const globals = makeTokens("mask-global", "globals");
  const again = make("button", { type: "button" });
  again.addEventListener("click", () => redraw({}, own().random, own().seed + 1));
  const all = (flag) => {
    const rows = state.mask.rows.map((row) => flag.repeat(row.length));
    return () => change({ mask: { kind: "drawn", rows } });
  };
  const showAll = make("button", { type: "button" });
  const hideAll = make("button", { type: "button" });
  showAll.addEventListener("click", () => all("1")());
  hideAll.addEventListener("click", () => all("0")());
  const groups = Object.entries({
    window: fields.window.map(({ element }) => element),
    padding: [hidden.element],
    longformer: [fields.longformer[0].element, globals.element],
    bigbird: [...fields.bigbird.map(({ element }) => element), again],
    prefix: fields.prefix.map(({ element }) => element),
    drawn: [showAll, hideAll],
  }).map(([kind, elements]) => ({ kind, element: make("div", { className: "controls" }, ...elements) }));
  return {
    element: make("div", { className: "mask-parameters" }, ...groups.map(({ element }) => element)),
    draw() {
      const { mask } = state;
      for (const { kind, element } of groups) element.hidden = kind !== mask.kind;
      const most = { window: 2 * keys(), windowOdd: 2 * keys() + 1 };
      for (const { name, show } of fields[mask.kind] ?? []) {
        const refusal = speak(refusals[name] ?? "refuseWhole", {
          least: name === "windowOdd" ? 1 : 0,
          most: most[name] ?? keys(),
        });
        show(valueOf[name]?.() ?? mask[name], { label: speak(name), refusal });
      }
      if (mask.kind === "padding") hidden.draw(speak("hiddenKeys"));
      if (mask.kind === "longformer") globals.draw(speak("globalTokens"));
      again.textContent = speak("drawAgain");
      again.disabled = mask.kind === "bigbird" && drawnCount(mask) === 0;
      showAll.textContent = speak("showAll");
      hideAll.textContent = speak("hideAll");
    },
  };
};

// The picture for a number of tokens of its own.
const makeLengthPattern = (speak) => {
  const heading = make("h3");
  const help = make("p", { className: "hint" });
  const text = document.createTextNode("");
  const slider = make("input", { type: "range", name: "mask-pattern-length", min: "3", max: "24" });
  const pattern = makePattern();
  slider.addEventListener("input", () =>
    change({ maskStep: { ...own(), length: Number(slider.value) } }, { undoable: false }),
  );
  return {
    element: make("div", {}, heading, help, make("label", { className: "field" }, text, slider), pattern.element),
    draw() {
      const { length, seed } = own();
      heading.textContent = speak("patternTitle");
      help.textContent = speak("patternHelp");
      text.data = speak("patternLength", { length });
      slider.value = String(length);
      slider.setAttribute("aria-valuetext", text.data);
      pattern.draw(state.mask, length, seed, speak, state.language);
    },
  };
};

export const maskStep = {
  id: "mask",
  formula: () => [
    ["Z", "score"],
    " = ",
    ["S", "score"],
    `${scaleText()} / T + `,
    ["M", "mask"],
    ",  ",
    ["M_{ij}", "mask"],
    " ∈ {0, −∞}",
    wholeFormula(["mask"]),
  ],
  words: { en, zh },
  build(body, speak) {
    const kinds = makeKinds(speak, (kind) => {
      const [queries, keys] = [state.tokens.length, keyNames().length];
      change({ mask: beginning(kind, queries, keys) });
    });
    const rule = make("p", { className: "mask-rule" });
    const parameters = makeParameters(speak);
    const grid = makeMaskGrid({
      paint(row, column, isVisible) {
        const { mask } = state;
        const rows =
          mask.kind === "drawn" ? [...mask.rows] : rowsOf(visibleOf(mask, state.tokens.length, keyNames().length));
        rows[row] = `${rows[row].slice(0, column)}${Number(isVisible)}${rows[row].slice(column + 1)}`;
        change({ mask: { kind: "drawn", rows } });
      },
    });
    grid.element.dataset.name = "mask-cells";
    const help = make("p", { className: "hint" });
    const counter = make("p", { className: "counter", "aria-live": "polite" });
    const [beforeText, afterText] = [make("p", { className: "hint" }), make("p", { className: "hint" })];
    const [logitMatrix, weightMatrix] = [makeHeadMatrix("logits"), makeHeadMatrix("weights")];
    const why = make("p");
    const empty = make("p", { className: "warning", "aria-live": "polite" });
    const pattern = makeLengthPattern(speak);
    const growthHeading = make("h3");
    const growth = makeGrowth();
    body.append(
      kinds.element,
      // The grid is above or beside all that a click on it changes, so that it stays under the pointer.
      make(
        "div",
        { className: "mask-and-count" },
        grid.element,
        make("div", {}, counter, rule, parameters.element, help),
      ),
      make(
        "div",
        { className: "matrices" },
        make("div", {}, beforeText, logitMatrix.element),
        make("div", {}, afterText, weightMatrix.element),
      ),
      why,
      empty,
      make("div", { className: "mask-pictures" }, pattern.element, make("div", {}, growthHeading, growth.element)),
    );
    return {
      draw(numbers) {
        const { logits, weights, visible } = numbers.heads[state.head];
        const [rows, columns] = [state.tokens, keyNames()];
        kinds.draw();
        rule.textContent = speak(`rule-${state.mask.kind}`, state.mask);
        parameters.draw();
        grid.draw(visible, {
          rows,
          columns,
          title: speak("grid"),
          chosen: state.row,
          name: (query, key) => speak("cell", { query: rows[query], key: columns[key] }),
        });
        help.textContent = [speak("gridRows"), speak("gridHelp")].join(speak("between"));
        counter.textContent = speak("counter", counts(countVisible(visible), rows.length * columns.length, speak));
        const options = {
          rows,
          columns,
          hidden: (row, column) => !visible[row][column],
          chosen: state.row,
          onChoose: (row) => change({ row }, { undoable: false }),
        };
        const shown = logits.map((row, query) => row.map((value, key) => (visible[query][key] ? value : -Infinity)));
        logitMatrix.draw(state.head, shown, { ...options, title: speak("logits", { scale: scaleText() }), paint: "signed", symbol: "score" });
        weightMatrix.draw(state.head, weights, {
          ...options,
          title: speak("weights"),
          paint: "weight",
          symbol: "weight",
        });
        beforeText.textContent = speak("before");
        afterText.textContent = speak("after");
        why.replaceChildren(...withIndices(speak("why")));
        const blind = rows.filter((_, row) => !visible[row].some(Boolean));
        empty.hidden = !blind.length;
        empty.textContent = blind.length
          ? speak("empty", { names: blind.join(state.language === "zh" ? "、" : ", ") })
          : "";
        pattern.draw();
        growthHeading.textContent = speak("growthTitle");
        growth.draw(state.mask, speak, state.language);
      },
    };
  },
};
