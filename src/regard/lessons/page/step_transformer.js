// Step 10: what is around attention in a layer, encoder and decoder, and a translation written a token at a time.

import { draw, make } from "./elements.js";
import { withIndices } from "./formula.js";
import { drawLayer, placesOf } from "./layer_diagram.js";
import { addResidual, layerNorm, momentsOf } from "./layer_numbers.js";
import { LIMITS } from "./limits.js";
import { makeMatrix } from "./matrix.js";
import { recorded } from "./recorded.js";
import { change, state } from "./state.js";
import { makePlayer } from "./translation_player.js";

const en = {
  title: "A layer, a Transformer",
  text: "Attention is half of a layer. What it gives is added to what came in (the residual), each row is normalized, and a small network, the feed-forward, works on each row by itself. A Transformer is a stack of such layers.",
  question: "Write the translation up to “深”, then choose single heads. Does every head look at “deep”?",
  answer: "No. The mean of the eight heads has its largest weight on “deep”, and nearly as much on “learning”: 深度学习 is both words. Single heads differ: some look at “deep”, some at “learning”. And for “度” the row is spread over the sentence, because after 深 the decoder hardly needs it: what it has written itself says enough. A row shows what was mixed in, no more.",
  questionOwn: "Write the translation token by token, then choose single heads. Do they all look at the same tokens of the source?",
  answerOwn: "Mostly not. Each head has its own queries and keys, so its row is its own; the mean of all heads hides that. A row shows in which proportions values were mixed, no more.",
  gap: " ",
  layerTitle: "Around attention: the shape of the vectors at each place",
  norm: "Normalization",
  post: "after each part (post-norm)",
  pre: "before each part (pre-norm)",
  postText: "Post-norm, as in the Transformer of 2017 and BERT: each part is followed by a normalization. y are the rows between the two parts, x′ those that the layer hands on.",
  preText: "Pre-norm, as in GPT-2 and most models since: each part reads normalized rows. The residual runs through all layers untouched, and one normalization follows the last layer. y are the rows between the two parts, x′ those that the layer hands on.",
  sizesOf: "Sizes of",
  lesson: "this lesson",
  base: "Transformer base (2017)",
  bert: "BERT base",
  gpt2: "GPT-2 small",
  translator: "the translator below",
  encoder: "Encoder layer, {count} of them",
  encoderOne: "Encoder layer",
  decoder: "Decoder layer, {count} of them",
  decoderOne: "Decoder layer",
  sourceVectors: "source: embeddings + positions",
  targetVectors: "written so far: embeddings + positions",
  textVectors: "text: embeddings + positions",
  selfAttention: "attention",
  maskedAttention: "attention, causal mask",
  crossAttention: "cross-attention",
  feedForward: "feed-forward",
  normalization: "LayerNorm",
  lastNormalization: "LayerNorm, after the last layer",
  residual: "what came in: {size}",
  attentionSize: "{heads} × ({rows} × {dim}), joined {joined}, out {size}",
  joinedSize: "{heads} × ({rows} × {dim}), joined {joined}, no W_O",
  noSum: "✗ cannot be added to what came in: {size}",
  crossSize: "queries {queries}; keys and values {keys}",
  feedSize: "{size} → {inner} → {size}",
  toDecoder: "to each decoder layer: keys and values",
  toNext: "to the next layer",
  toWords: "linear and softmax: probabilities",
  wordsSize: "{rows} × vocabulary",
  bothHint: "n tokens are read, m are written, and “K, V” is the same place in both pictures: what the encoder gives is what cross-attention reads. Cross-attention is a part of the decoder like the other two: added to what came in, and normalized.",
  lessonHint: "{read} tokens are read, m are written, and “K, V” is the same place in both pictures: what the encoder gives is what cross-attention reads. Cross-attention is a part of the decoder like the other two: added to what came in, and normalized.",
  sidesHint: "{read} tokens are read, {write} are written, and “K, V” is the same place in both pictures: what the encoder gives is what cross-attention reads. Cross-attention is a part of the decoder like the other two: added to what came in, and normalized.",
  encoderHint: "n tokens are read; this model has no decoder.",
  decoderHint: "m tokens are read and written on; this model has no encoder.",
  widthHint: "A row keeps its {width} numbers through the whole layer, or it could not be added.",
  misfit: "Here attention gives rows of {result} numbers and X has {width}: they cannot be added. In a model, W_O makes {width} numbers of them again. Choose a random W_O in the step “Several heads”.",
  misfitHeads: "Or have {count} heads there ({now} now): then {result} numbers of each, joined, are {width}.",
  layerNumbers: "The first half of this lesson's layer, in numbers",
  residualTitle: "x + attention",
  normalizedTitle: "LayerNorm(x + attention)",
  preTitle: "LayerNorm(x), which attention would read",
  normalizedHint: "Each row now has mean 0 and variance 1, whatever the sizes before. (Before dividing, 0.00001 is added to the variance, so that a row of equal numbers is not divided by 0. A model then multiplies by a learned gain and adds a bias, 1 and 0 at first.)",
  constantRows: "But the numbers of {tokens} are all equal: such a row has variance 0, nothing can make it 1, and it becomes a row of 0.",
  normalizedCell: "= ({value} − {mean}) / √({variance} + 0.00001)",
  models: "The sizes of some well-known models: D numbers in a row, d in each head, FFN within the feed-forward",
  model: "model",
  layers: "layers",
  hidden: "D",
  heads: "heads",
  dim: "d",
  inner: "FFN",
  normColumn: "norm",
  normPost: "after",
  normPre: "before",
  encoderDecoder: "{encoder} + {decoder}",
  sources: "Vaswani et al. 2017 (arXiv:1706.03762), Devlin et al. 2018 (arXiv:1810.04805), Radford et al. 2019.",
  translationTitle: "A translation, a token at a time",
  player: "A translation, a token at a time",
  sourceSentence: "The encoder reads: {sentence}",
  first: "To the start",
  back: "Back",
  next: "Next token",
  play: "Play",
  pause: "Pause",
  headChoice: "Cross-attention of (layers and heads from 0)",
  meanOfHeads: "mean of all {count} heads",
  headOfLayer: "layer {layer}, head {head}",
  writtenSoFar: "Written so far",
  readout: "Token {step} of {count}: “{token}”, probability {probability}. Largest weight of cross-attention ({head}): “{source}”, {weight}.",
  rowCaption: "The decoder has read “{input}” last and looks at the source before it writes “{token}”",
  sourceToken: "source",
  weight: "weight",
  likeliest: "The five likeliest tokens at step {step}, of the whole vocabulary",
  nextToken: "token",
  probability: "probability",
  matrixTitle: "Cross-attention so far",
  recordedHere: "Recorded from a translator that regard train examples/learning_machines.toml made in four minutes; this sentence is in none of its training pairs. A token is the smallest unit that it writes; in this sentence each Chinese character is one. At each step the likeliest token is taken.",
  recordedOwn: "Recorded from {model}. At each step the likeliest token is taken.",
  marks: "<s> and </s> are marks of the beginning and the end.",
  notEnded: "It was stopped after {count} tokens.",
};

const zh = {
  title: "一层，以及整个 Transformer",
  text: "注意力只是一层的一半。它的结果要加到输入上（残差），每一行做归一化，再由一个小网络（前馈网络）对每一行单独计算。这样的层叠起来，就是 Transformer。",
  question: "把译文写到“深”，再逐个选择单独的头。每个头都看着“deep”吗？",
  answer: "不是。八个头的平均在“deep”上权重最大，在“learning”上也差不多：“深度学习”对应的是两个词。单看各个头，有的看“deep”，有的看“learning”。到了“度”，这一行就散开了：写出“深”以后，解码器靠自己写过的内容就基本知道下一个字。一行权重只说明混入了什么，不说明别的。",
  questionOwn: "把译文一个词元一个词元地写出来，再逐个选择单独的头。它们看的是源句里同样的词元吗？",
  answerOwn: "大多不是。每个头有自己的查询和键，所以各有各的一行；全部头的平均把这些差别盖住了。一行权重只说明值按什么比例混合，不说明别的。",
  gap: "",
  layerTitle: "注意力前后各处的形状",
  norm: "归一化",
  post: "在每一部分之后（post-norm）",
  pre: "在每一部分之前（pre-norm）",
  postText: "后归一化：每一部分之后做归一化，2017 年的 Transformer 和 BERT 如此。y 是两部分之间的各行，x′ 是这一层交出的各行。",
  preText: "前归一化：每一部分读入的是归一化之后的行，GPT-2 和此后的多数模型如此。残差一路穿过所有层，不受改动，最后一层之后再归一化一次。y 是两部分之间的各行，x′ 是这一层交出的各行。",
  sizesOf: "尺寸取自",
  lesson: "这一课",
  base: "Transformer base（2017）",
  bert: "BERT base",
  gpt2: "GPT-2 small",
  translator: "下面的翻译模型",
  encoder: "编码器层，共 {count} 层",
  encoderOne: "编码器层",
  decoder: "解码器层，共 {count} 层",
  decoderOne: "解码器层",
  sourceVectors: "源句：词嵌入 + 位置",
  targetVectors: "已写出的部分：词嵌入 + 位置",
  textVectors: "文本：词嵌入 + 位置",
  selfAttention: "注意力",
  maskedAttention: "注意力，因果掩码",
  crossAttention: "交叉注意力",
  feedForward: "前馈网络",
  normalization: "LayerNorm",
  lastNormalization: "LayerNorm，在最后一层之后",
  residual: "进来时的 {size}",
  attentionSize: "{heads} × ({rows} × {dim})，拼接 {joined}，输出 {size}",
  joinedSize: "{heads} × ({rows} × {dim})，拼接 {joined}，没有 W_O",
  noSum: "✗ 无法与进来时的 {size} 相加",
  crossSize: "查询 {queries}；键和值 {keys}",
  feedSize: "{size} → {inner} → {size}",
  toDecoder: "送往每个解码器层：键和值",
  toNext: "送往下一层",
  toWords: "线性层和 softmax：概率",
  wordsSize: "{rows} × 词表大小",
  bothHint: "读入 n 个词元，写出 m 个。两张图里的“K, V”是同一处：编码器给出的，就是交叉注意力读取的。交叉注意力也是解码器的一部分，和另外两部分一样：与进来的相加，再归一化。",
  lessonHint: "读入 {read} 个词元，写出 m 个。两张图里的“K, V”是同一处：编码器给出的，就是交叉注意力读取的。交叉注意力也是解码器的一部分，和另外两部分一样：与进来的相加，再归一化。",
  sidesHint: "读入 {read} 个词元，写出 {write} 个。两张图里的“K, V”是同一处：编码器给出的，就是交叉注意力读取的。交叉注意力也是解码器的一部分，和另外两部分一样：与进来的相加，再归一化。",
  encoderHint: "读入 n 个词元；这个模型没有解码器。",
  decoderHint: "读入 m 个词元并接着往下写；这个模型没有编码器。",
  widthHint: "每一行在整层里都保持 {width} 个数，否则无法相加。",
  misfit: "这里注意力给出的每行有 {result} 个数，而 X 的每行有 {width} 个，无法相加。模型里，经过 W_O 之后又是 {width} 个数。到“多个头”那一步选一个随机的 W_O，就能对上。",
  misfitHeads: "也可以在那里设 {count} 个头（现在 {now} 个）：每头 {result} 个数，拼起来正好 {width} 个。",
  layerNumbers: "本课这一层的前半部分：具体数值",
  residualTitle: "x + 注意力",
  normalizedTitle: "LayerNorm(x + 注意力)",
  preTitle: "LayerNorm(x)，注意力读的将是它",
  normalizedHint: "无论之前大小如何，现在每行均值为 0，方差为 1。（做除法之前，方差先加上 0.00001，免得各数都相同的行除以 0。模型还会乘上学到的增益、加上偏置，它们起初是 1 和 0。）",
  constantRows: "不过 {tokens} 这一行的各个数都相同：方差为 0，怎么缩放也变不成 1，结果整行都是 0。",
  normalizedCell: "= ({value} − {mean}) / √({variance} + 0.00001)",
  models: "几个著名模型的尺寸：每行 D 个数，每个头 d 个数",
  model: "模型",
  layers: "层数",
  hidden: "D",
  heads: "头数",
  dim: "d",
  inner: "前馈",
  normColumn: "归一化",
  normPost: "之后",
  normPre: "之前",
  encoderDecoder: "{encoder} + {decoder}",
  sources: "Vaswani 等，2017（arXiv:1706.03762）；Devlin 等，2018（arXiv:1810.04805）；Radford 等，2019。",
  translationTitle: "一次翻译，一个词元一个词元地写",
  player: "一次翻译，一个词元一个词元地写",
  sourceSentence: "编码器读入：{sentence}",
  first: "回到开头",
  back: "上一个",
  next: "下一个词元",
  play: "播放",
  pause: "暂停",
  headChoice: "交叉注意力取自（层和头从 0 数起）",
  meanOfHeads: "全部 {count} 个头的平均",
  headOfLayer: "层 {layer}，头 {head}",
  writtenSoFar: "已写出的部分",
  readout: "{count} 个词元中的第 {step} 个：“{token}”，概率 {probability}。交叉注意力（{head}）权重最大的是“{source}”：{weight}。",
  rowCaption: "解码器刚读过“{input}”，看一看源句，然后写出“{token}”",
  sourceToken: "源句",
  weight: "权重",
  likeliest: "第 {step} 步，整个词表中概率最大的五个词元",
  nextToken: "词元",
  probability: "概率",
  matrixTitle: "到此为止的交叉注意力",
  recordedHere: "录自 regard train examples/learning_machines.toml 用四分钟训练出的翻译模型；这句话不在它的训练句对里。词元是模型书写的最小单位，这句译文里恰好是单个汉字。每一步取概率最大的词元。",
  recordedOwn: "录自 {model}。每一步取概率最大的词元。",
  marks: "<s> 是开头标记，</s> 是结尾标记。",
  notEnded: "写到 {count} 个词元时停下。",
};


const KNOWN = {
  base: { encoder: 6, decoder: 6, width: 512, heads: 8, inner: 2048, norm: "post" },
  bert: { encoder: 12, decoder: 0, width: 768, heads: 12, inner: 3072, norm: "post" },
  gpt2: { encoder: 0, decoder: 12, width: 768, heads: 12, inner: 3072, norm: "pre" },
};

const translatorSizes = ({ sizes }) =>
  sizes && {
    encoder: sizes.encoder_layers ?? 0,
    decoder: sizes.decoder_layers ?? 0,
    width: sizes.hidden_size,
    heads: sizes.num_attention_heads,
    inner: sizes.intermediate_size,
    norm: sizes.norm_first ? "pre" : "post",
  };

const times = (rows, columns) => `${rows} × ${columns}`;

// The sizes of a layer, of the lesson as it is or of a model. `read` and `write` are the numbers of tokens.
const lessonSizes = (numbers) => {
  const [head] = numbers.heads;
  const rows = state.x.length;
  return {
    read: state.keyX ? state.keyX.length : rows,
    write: state.keyX ? rows : "m",
    width: state.x[0].length,
    sourceWidth: state.keyX ? state.keyX[0].length : state.x[0].length,
    heads: numbers.heads.length,
    dim: head.queries[0].length,
    joined: numbers.joined[0].length,
    result: (numbers.result ?? numbers.joined)[0].length,
    inner: 4 * state.x[0].length,
    encoder: null,
    decoder: null,
  };
};
const modelSizes = ({ width, heads, inner, encoder, decoder }) => ({
  read: "n",
  write: "m",
  width,
  sourceWidth: width,
  heads,
  dim: width / heads,
  joined: width,
  result: width,
  inner,
  encoder,
  decoder,
});

const attentionBlock = (speak, name, sizes, rows) => {
  const { heads, dim, joined, result, width } = sizes;
  const fits = result === width;
  const filled = { heads, rows, dim, joined: times(rows, joined), size: times(rows, result) };
  const size = speak(fits || result !== joined ? "attentionSize" : "joinedSize", filled);
  return { kind: "attention", name: speak(name), size, noSum: fits ? null : speak("noSum", { size: times(rows, width) }) };
};
const feedBlock = (speak, { width, inner }, rows) => {
  const filled = { size: times(rows, width), inner: times(rows, inner) };
  return { kind: "feed", name: speak("feedForward"), size: speak("feedSize", filled) };
};
const layerOf = (speak, sizes, rows, width, blocks, norm, { input, output }) =>
  placesOf(blocks, norm, {
    input: { kind: "input", name: speak(input), size: times(rows, width) },
    normName: { name: speak("normalization"), size: times(rows, width) },
    addName: { name: speak("residual", { size: times(rows, width) }) },
    finalNorm: { name: speak("lastNormalization"), size: times(rows, width) },
    output,
  });

const encoderPlaces = (speak, sizes, norm) => {
  const { read, sourceWidth: width } = sizes;
  const own = { ...sizes, width };
  const blocks = [attentionBlock(speak, "selfAttention", own, read), feedBlock(speak, own, read)];
  const [input, name] = sizes.decoder === 0 ? ["textVectors", "toNext"] : ["sourceVectors", "toDecoder"];
  const output = [{ kind: "output", name: speak(name), size: times(read, width), side: name === "toDecoder" ? "out" : null }];
  return layerOf(speak, sizes, read, width, blocks, norm, { input, output });
};
const decoderPlaces = (speak, sizes, norm) => {
  const { write: rows, width } = sizes;
  const blocks = [attentionBlock(speak, "maskedAttention", sizes, rows)];
  if (sizes.encoder !== 0) {
    const filled = { queries: times(rows, width), keys: times(sizes.read, sizes.sourceWidth) };
    blocks.push({ kind: "cross", side: "in", name: speak("crossAttention"), size: speak("crossSize", filled) });
  }
  blocks.push(feedBlock(speak, sizes, rows));
  const output = [{ kind: "output", name: speak("toWords"), size: speak("wordsSize", { rows }) }];
  const input = sizes.encoder === 0 ? "textVectors" : "targetVectors";
  return layerOf(speak, sizes, rows, width, blocks, norm, { input, output });
};

const hintOf = ({ encoder, decoder, read, write }) => {
  if (encoder === 0) return "decoderHint";
  if (decoder === 0) return "encoderHint";
  if (read === "n") return "bothHint";
  return write === "m" ? "lessonHint" : "sidesHint";
};

const modelTable = (table, speak, models, chosen) => {
  const columns = ["model", "layers", "hidden", "heads", "dim", "inner", "normColumn"];
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col", textContent: speak(name) })));
  const rows = Object.entries(models).map(([name, { encoder, decoder, width, heads, inner, norm }]) => {
    const layers = encoder && decoder ? speak("encoderDecoder", { encoder, decoder }) : String(encoder || decoder);
    const cells = [layers, width, heads, width / heads, inner, speak(norm === "pre" ? "normPre" : "normPost")];
    const row = make("tr", { className: name === chosen ? "chosen" : "" });
    row.append(make("th", { scope: "row", textContent: speak(name) }));
    row.append(...cells.map((value) => make("td", { textContent: String(value) })));
    return row;
  });
  const caption = make("caption", { textContent: speak("models") });
  table.replaceChildren(caption, make("thead", {}, head), make("tbody", {}, ...rows));
};

// The residual and the normalization of the lesson's own numbers, where these have the same width.
const makeLayerNumbers = (speak) => {
  const title = make("h3");
  const residual = makeMatrix("residual");
  const normalized = makeMatrix("normalized");
  const matrices = make("div", { className: "matrices" }, residual.element, normalized.element);
  const hint = make("p", { className: "hint" });
  const misfit = make("p", { className: "warning" });
  const element = make("div", {}, title, misfit, matrices, hint);
  const normalizedCell = (rows) => (row, column) => {
    const { centre, variance } = momentsOf(rows[row]);
    const [value, ...filled] = [rows[row][column], centre, variance].map((part) => String(Number(part.toPrecision(4))));
    return { text: speak("normalizedCell", { value, mean: filled[0], variance: filled[1] }) };
  };
  const draw = (numbers, norm) => {
    const result = numbers.result ?? numbers.joined;
    const fits = result[0].length === numbers.x[0].length;
    const labels = { rows: state.tokens, symbol: "output", chosen: state.row };
    title.textContent = speak("layerNumbers");
    misfit.hidden = fits;
    const [joined, width] = [result[0].length, numbers.x[0].length];
    const own = numbers.heads[0].output[0].length; // numbers of a head
    const byHeads = !numbers.result && width % own === 0 && width / own <= LIMITS.heads;
    const sentences = [speak("misfit", { result: joined, width })];
    if (byHeads) sentences.push(speak("misfitHeads", { count: width / own, now: numbers.heads.length, result: own, width }));
    misfit.replaceChildren(...withIndices(sentences.join(speak("gap"))));
    const isPost = norm === "post";
    residual.element.hidden = !isPost || !fits;
    normalized.element.hidden = isPost && !fits;
    const sums = fits ? addResidual(numbers.x, result) : numbers.x;
    const input = isPost ? sums : numbers.x;
    const name = numbers.result ? "result" : "joined";
    residual.draw(sums, {
      ...labels,
      title: speak("residualTitle"),
      parts: (row, column) => ({
        terms: [["x", numbers.x[row][column]], [name, fits ? result[row][column] : 0]],
        from: [["x", "row", row], [name, "row", row]],
      }),
    });
    normalized.draw(layerNorm(input), {
      ...labels,
      title: speak(isPost ? "normalizedTitle" : "preTitle"),
      parts: normalizedCell(input),
    });
    const constant = state.tokens.filter((_, row) => input[row].every((value) => value === input[row][0]));
    const names = constant.map((token) => `“${token}”`).join(" ");
    hint.textContent = [speak("normalizedHint"), ...(names ? [speak("constantRows", { tokens: names })] : [])].join(speak("gap"));
    hint.hidden = normalized.element.hidden;
  };
  return { element, draw };
};

// A translation of the reader's own has no words of its own: its question is a general one.
const wordsOf = (words) =>
  recorded.translation.made ? words : { ...words, question: words.questionOwn, answer: words.answerOwn };

const x = ["x", "x"];
const attention = ["Attention", "output"];

const [between, next] = [["y", "output"], ["x′", "x"]];
const network = ["FFN", "w"];
const FORMULAS = {
  post: [between, " = LayerNorm(", x, " + ", attention, "(", x, ")),  ", next, " = LayerNorm(", between, " + ", network, "(", between, "))"],
  pre: [between, " = ", x, " + ", attention, "(LayerNorm(", x, ")),  ", next, " = ", between, " + ", network, "(LayerNorm(", between, "))"],
};
const formulaOf = (norm) => [
  ...FORMULAS[norm], ",  ", network, "(u) = max(0, u ", ["W_1", "w"], " + b_1) ", ["W_2", "w"], " + b_2",
];

export const transformerStep = {
  id: "transformer",
  formula: () => formulaOf(state.transformer.norm === "pre" ? "pre" : "post"),
  words: { en: wordsOf(en), zh: wordsOf(zh) },
  build(body, speak) {
    const { translation } = recorded;
    const own = translatorSizes(translation);
    const models = own ? { ...KNOWN, translator: own } : KNOWN;
    const choose = (fields) => change({ transformer: { ...state.transformer, ...fields } }, { undoable: false });

    const layerTitle = make("h3");
    const legend = make("legend");
    const radios = ["post", "pre"].map((norm) => {
      const input = make("input", { type: "radio", name: "norm", value: norm });
      input.addEventListener("change", () => choose({ norm }));
      const text = make("span");
      return { norm, input, text, element: make("label", {}, input, text) };
    });
    const norms = make("fieldset", { className: "choices" }, legend, ...radios.map(({ element }) => element));
    const select = make("select", { id: "transformer-model" });
    const selectLabel = make("label", { htmlFor: select.id });
    select.addEventListener("change", () => choose({ model: select.value, norm: models[select.value]?.norm ?? "post" }));
    const controls = make("div", { className: "controls" }, selectLabel, select, norms);
    const normText = make("p", { className: "hint", "aria-live": "polite" });
    const sides = ["encoder", "decoder"].map((side) => {
      const heading = make("h4");
      const svg = draw("svg", { class: "layer-picture", role: "group" });
      const element = make("div", { className: "layer-side" }, heading, svg);
      element.dataset.side = side;
      return { side, heading, svg, element };
    });
    const pictures = make("div", { className: "layer-sides" }, ...sides.map(({ element }) => element));
    const diagramHint = make("p", { className: "hint" });
    const layerNumbers = makeLayerNumbers(speak);
    const table = make("table", { className: "numbers model-table" });
    const box = make("div", { className: "scroll", tabIndex: 0, role: "region" }, table);
    const sources = make("p", { className: "hint" });
    const translationTitle = make("h3");
    const player = makePlayer(translation, speak);
    const layer = [layerTitle, controls, normText, pictures, diagramHint, layerNumbers.element, box, sources];
    const written = [translationTitle, player.element];
    // who made a page of a translation sees it first
    body.append(...(translation.made ? [...layer, ...written] : [...written, ...layer]));

    return {
      draw(numbers) {
        const model = Object.hasOwn(models, state.transformer.model) ? state.transformer.model : "lesson";
        const norm = state.transformer.norm === "pre" ? "pre" : "post";
        const sizes = model === "lesson" ? lessonSizes(numbers) : modelSizes(models[model]);
        layerTitle.textContent = speak("layerTitle");
        legend.textContent = speak("norm");
        for (const radio of radios) {
          radio.text.textContent = speak(radio.norm);
          radio.input.checked = radio.norm === norm;
        }
        selectLabel.textContent = speak("sizesOf");
        const names = ["lesson", ...Object.keys(models)];
        select.replaceChildren(...names.map((name) => make("option", { value: name, textContent: speak(name) })));
        select.value = model;
        normText.textContent = speak(`${norm}Text`);
        for (const { side, heading, svg, element } of sides) {
          const count = sizes[side];
          element.hidden = count === 0;
          heading.textContent = count === null ? speak(`${side}One`) : speak(side, { count });
          const places = side === "encoder" ? encoderPlaces : decoderPlaces;
          drawLayer(svg, places(speak, sizes, norm), heading.textContent);
        }
        diagramHint.textContent = `${speak(hintOf(sizes), sizes)}${speak("gap")}${speak("widthHint", sizes)}`;
        layerNumbers.draw(numbers, norm);
        modelTable(table, speak, models, model);
        box.setAttribute("aria-label", speak("models"));
        sources.textContent = speak("sources");
        translationTitle.textContent = speak("translationTitle");
        player.draw();
      },
    };
  },
};
