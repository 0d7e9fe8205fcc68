// What the page says, in two languages. {names} are filled in; nothing here is ever read as HTML.

import { view } from "./view.js";

const WORDS = {
  en: {
    record: "text", sequence: "sequence", layer: "layer", head: "head", language: "language", text: "Text", heads: "All heads",
    pool: "a cell shows", max: "its largest weight", mean: "its mean weight", scale: "colour", linear: "linear", log: "logarithmic",
    floor: "hide below", withSinks: "show sinks", whole: "whole", single: "single weights", zoomIn: "zoom in", zoomOut: "zoom out",
    search: "search", before: "place before", next: "next place", see: "See it", keysTitle: "Keys",
    sentence: "Type a text for {model}", reading: "{model} is reading …", read: "read", nothing: "Nothing is open yet: type a text and press “See it”.",
    title: "Layer {layer} head {head}: {queries} × {keys}", mapLabel: "Map of layer {layer} head {head}, {queries} rows by {keys} columns",
    mapHint: "Rows look at columns. Drag or use the arrow keys to move, wheel or + and − to zoom, click or Enter to choose a row and a column: they are drawn below and to the right of the map.",
    cellOne: "A cell is one weight.", cellMany: "A cell spans {down} × {across} positions.", finest: "Single weights of this layer were not kept: watch with keep=\"qk\" for them.",
    unknown: "not known", missing: "Not seen, although the model computes attention there: {lines}.",
    noSinks: "This layer has no sinks: no key gets more than 0.05 of the weight of the queries that can see it and more than 4 times an even share, or twice what it would get if each query gave the same to all that it sees (mean over heads; seen by a quarter of the queries at least).",
    sinksShown: "Sinks of this layer, which get more than 0.05 of the weight of the queries that can see them and more than 4 times an even share (mean over heads): {sinks}.",
    sinksHidden: "Sinks are hidden and each row is divided by what remains, so that these are not the model's weights but p′ = p / (1 − s). Hidden: {sinks}.",
    together: "In cells of many positions, rows are divided together; grey cells hold a sink.",
    weightIs: "{query} → {key}: ", cellIs: "rows {rows}, columns {columns}: ", at: " (row {query}, column {key})", below: "at most {below}, not kept",
    without: "; without sinks, row renormalized, {without}", withThem: "; with sinks {weight}", meanOf: "{value} on average", maxOf: "{value} at most",
    ramp: "0 to {top}", rampLog: "{low} to {top}, logarithmic", none: "No row is chosen: click the map, or search.",
    hits: "{at} of {count}", noHits: "not found", headsHint: "Layers down, heads across; each the largest weights of its map, a layer on one scale. Click one, or move with the arrow keys and press Enter.",
    unreachable: "The server does not answer: was `regard open` ended?",
    care: "Read with care: a weight says how much of one token's value a head carries to another. It is not, alone, an explanation of what the model does (Jain & Wallace 2019; Wiegreffe & Pinter 2019).",
    head1: "Head 1", head2: "Head 2", show: "show", clickChooses: "A click chooses", merge: "merge pieces into words", earlier: "← earlier", later: "later →",
    stepByStep: "One of these weights, computed step by step:", finestPage: "The page does not hold the single weights of this layer; an atlas does, and `regard open` shows it.",
    headName: "layer {layer} head {head}", looksAt: "{token} (row {query}) looks at", weightsAll: "Its strongest keys; the text is shaded by all weights of its row.", weightsFew: "Its strongest keys: others were not kept.",
    wordsShown: "words {from} to {to} of {count}", tokensShown: "tokens {from} to {to} of {count}", generated: "Underlined with dots: what the model has generated itself (a prompt of {prompt} tokens, then {count} generated).",
    textHint: "Point at a word to see where it looks, or move with the arrow keys. Click it, or press Enter, to keep it.",
    cellWord: "A cell is the weight between two words: the mean over the pieces of the one that looks, the sum over those of the other.",
    holdsAll: "This page holds every weight, rounded to 1/65535; it shows four decimals.", holdsTop: "This page holds the {top} strongest keys of each token, rounded to four decimals, and pooled maps; weaker ones are not listed.",
    noInflate: "This browser cannot inflate data: one from 2023 or later can.",
    special_tokens: "mostly at special tokens", first: "mostly at the first token", previous: "mostly at the previous token", next_token: "mostly at the next token", self: "mostly at the token itself", spread: "at all tokens alike", other: "by no simple rule",
    looks: "looks {where}", comma: ", ", summary: "Of the {count} heads: {list}.", summaryPart: "{count} look {where}",
    kArrows: "move; with Shift by a whole map", kZoom: "zoom", kWhole: "the whole; single weights", kHeads: "head before, next head", kLayers: "layer before, next layer",
    kSearch: "search a token", kHits: "next place, place before", kEnter: "choose the row and column in the middle", kEscape: "choose nothing; leave a field", kMore: "largest or mean; colour; sinks",
  },
  zh: {
    record: "文本", sequence: "序列", layer: "层", head: "头", language: "语言", text: "文本", heads: "所有注意力头",
    pool: "格子显示", max: "最大权重", mean: "平均权重", scale: "颜色", linear: "线性", log: "对数",
    floor: "隐藏低于", withSinks: "显示汇点", whole: "全图", single: "单个权重", zoomIn: "放大", zoomOut: "缩小",
    search: "搜索", before: "上一处", next: "下一处", see: "查看", keysTitle: "键盘",
    sentence: "输入一段文字给 {model}", reading: "{model} 正在阅读……", read: "已读", nothing: "还没有内容：输入一段文字并按“查看”。",
    title: "第 {layer} 层第 {head} 头：{queries} × {keys}", mapLabel: "第 {layer} 层第 {head} 头的图，{queries} 行 {keys} 列",
    mapHint: "行关注列。拖动或用方向键移动，滚轮或 + 和 − 缩放，点击或按 Enter 选择一行和一列：它们画在图的下方和右方。",
    cellOne: "每格是一个权重。", cellMany: "每格包含 {down} × {across} 个位置。", finest: "这一层没有保存单个权重：请用 keep=\"qk\" 观察。",
    unknown: "未知", missing: "模型在这些地方计算了注意力，但无法看到：{lines}。",
    noSinks: "这一层没有汇点（attention sink）：没有哪个键得到能看到它的查询超过 0.05 的权重、并且超过平均份额的 4 倍、也超过每个查询均分给它所见各键时所得的 2 倍（各头平均；至少四分之一的查询能看到它）。",
    sinksShown: "这一层的汇点（attention sink），它们得到能看到它们的查询超过 0.05 的权重，并且超过平均份额的 4 倍（各头平均）：{sinks}。",
    sinksHidden: "汇点已隐藏，每行除以剩余部分，因此这里不是模型的权重，而是 p′ = p / (1 − s)。已隐藏：{sinks}。",
    together: "在包含多个位置的格子里，各行一起相除；灰色格子含有汇点。",
    weightIs: "{query} → {key}：", cellIs: "行 {rows}，列 {columns}：", at: "（行 {query}，列 {key}）", below: "至多 {below}，未保存",
    without: "；去掉汇点并重新归一化后 {without}", withThem: "；含汇点 {weight}", meanOf: "平均 {value}", maxOf: "最大 {value}",
    ramp: "0 到 {top}", rampLog: "{low} 到 {top}，对数", none: "没有选中的行：点击图，或搜索。",
    hits: "第 {at} 处，共 {count} 处", noHits: "没有找到", headsHint: "向下是层，向右是头；每个小图是其最大的权重，每层用同一刻度。点击选择，或用方向键移动后按 Enter。",
    unreachable: "服务器没有回应：`regard open` 结束了吗？",
    care: "请谨慎解读：权重说明一个头把一个词元的值向另一个词元传递多少，它本身并不是对模型行为的解释（Jain & Wallace 2019；Wiegreffe & Pinter 2019）。",
    head1: "头 1", head2: "头 2", show: "显示", clickChooses: "点击选择", merge: "把子词合并成词", earlier: "← 前面", later: "后面 →",
    stepByStep: "其中一个权重的逐步计算：", finestPage: "本页没有这一层的单个权重；可保存为 atlas，用 `regard open` 查看。",
    headName: "第 {layer} 层第 {head} 头", looksAt: "{token}（行 {query}）关注", weightsAll: "它权重最大的键；文本底色是这一行的所有权重。", weightsFew: "它权重最大的键：其余没有保存。",
    wordsShown: "第 {from} 到 {to} 个词，共 {count} 个", tokensShown: "第 {from} 到 {to} 个词元，共 {count} 个", generated: "带点下划线的是模型自己生成的部分（提示 {prompt} 个，然后生成 {count} 个）。",
    textHint: "指向一个词，看它关注哪里，或用方向键移动。点击它或按 Enter 固定。",
    cellWord: "每格是两个词之间的权重：对查询词的各子词取平均，对键词的各子词求和。",
    holdsAll: "本页保存了所有权重，精确到 1/65535；显示四位小数。", holdsTop: "本页保存了每个词元权重最大的 {top} 个键（四位小数）和汇总的图；较小的权重没有列出。",
    noInflate: "这个浏览器不能解压数据：请使用 2023 年或更新的浏览器。",
    special_tokens: "主要关注特殊词元", first: "主要关注第一个词元", previous: "主要关注前一个词元", next_token: "主要关注后一个词元", self: "主要关注词元自身", spread: "均匀关注所有词元", other: "没有简单规律",
    looks: "{where}", comma: "，", summary: "共 {count} 个头：{list}。", summaryPart: "{count} 个{where}",
    kArrows: "移动；按住 Shift 移动一整幅", kZoom: "缩放", kWhole: "全图；单个权重", kHeads: "上一个头，下一个头", kLayers: "上一层，下一层",
    kSearch: "搜索词元", kHits: "下一处，上一处", kEnter: "选择中间的行和列", kEscape: "取消选择；离开输入框", kMore: "最大或平均；颜色；汇点",
  },
};

export const say = (name, filled = {}) => WORDS[view.language][name].replace(/\{(\w+)\}/g, (_, part) => String(filled[part]));

// The same with elements in its gaps.
export const sayWith = (name, filled) =>
  WORDS[view.language][name].split(/(\{\w+\})/).flatMap((part) => (/^\{\w+\}$/.test(part) ? filled[part.slice(1, -1)] : part));

// A token beside other text, which a right-to-left name must not reorder.
export const isolated = (text) => Object.assign(document.createElement("bdi"), { textContent: text });

const KEYS = [
  ["kArrows", "← ↑ → ↓"], ["kZoom", "+ −"], ["kWhole", "0 1"], ["kHeads", "h l [ ]"], ["kLayers", "k j"],
  ["kSearch", "/"], ["kHits", "n N"], ["kEnter", "Enter"], ["kEscape", "Esc"], ["kMore", "m c s"],
];

// Where a head looks: one of the patterns that Python names.
const whereOf = (pattern) => say(pattern === "next" ? "next_token" : pattern);
export const patternName = (pattern) => say("looks", { where: whereOf(pattern) });

// How many heads follow each pattern, the most frequent first; nothing where the patterns are not known.
export const summary = (layers) => {
  const patterns = layers.flatMap((one) => one.patterns ?? []);
  const counts = new Map();
  for (const pattern of patterns) counts.set(pattern, (counts.get(pattern) ?? 0) + 1);
  const list = [...counts].sort((one, other) => other[1] - one[1]);
  const parts = list.map(([pattern, count]) => say("summaryPart", { count, where: whereOf(pattern) }));
  return parts.length ? say("summary", { count: patterns.length, list: parts.join(say("comma")) }) : "";
};

export const speak = () => {
  document.documentElement.lang = view.language === "zh" ? "zh" : "en";
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = say(element.dataset.word);
  for (const element of document.querySelectorAll("[data-title]")) {
    element.title = say(element.dataset.title);
    element.setAttribute("aria-label", element.title);
  }
  for (const option of document.querySelectorAll("#pool option, #scale option")) option.textContent = say(option.value);
  document.getElementById("help-list").replaceChildren(...KEYS.flatMap(([name, keys]) => {
    const [term, meaning] = [document.createElement("dt"), document.createElement("dd")];
    for (const key of keys.split(" ")) {
      const cap = document.createElement("kbd");
      cap.textContent = key;
      term.append(cap, " ");
    }
    meaning.textContent = say(name);
    return [term, meaning];
  }));
};
