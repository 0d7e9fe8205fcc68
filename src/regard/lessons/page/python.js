// The lines of Python that compute what is on the screen, with torch and regard in float64. No DOM.

// Integers beyond 64 bits are written as floats; what hides a key in a bias is no number in JavaScript's spelling.
const number = (value) => {
  if (value === -Infinity) return "-torch.inf";
  return Math.abs(value) >= 1e15 ? value.toExponential() : String(value);
};
// Characters that could end a comment, or hide what follows it, are left out of names.
const comment = (text) => (text === undefined ? "" : `  # ${text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "")}`);
const rowLine = (row, indent, name) => `${indent}[${row.map(number).join(", ")}],${comment(name)}`;
const rowLines = (matrix, indent, names = []) => matrix.map((row, at) => rowLine(row, indent, names[at]));
const tensorLines = (name, lines) => [`${name} = torch.tensor([`, ...lines, "], dtype=torch.float64)"];
const matrixLines = (name, matrix, names) => tensorLines(name, rowLines(matrix, "    ", names));

// One matrix, or those of several heads above each other.
const weightLines = (name, matrices) => {
  if (matrices.length === 1) return matrixLines(name, matrices[0]);
  const block = (matrix, at) => [`    [${comment(`head ${at + 1}`)}`, ...rowLines(matrix, "        "), "    ],"];
  return tensorLines(name, matrices.flatMap(block));
};

const inputLines = ({ tokens, x, keyTokens, keyX, valueX, heads, positions }) => {
  const names = heads === null ? ["queries", "keys", "values"] : ["x", "key_x", "value_x"];
  const lines = matrixLines(names[0], x, tokens);
  const placed = (name) => {
    if (positions === "none") return [];
    return [`${name} = ${name} + sinusoidal(*${name}.shape, dtype=torch.float64)`];
  };
  lines.push(...placed(names[0]));
  if (keyX !== null) lines.push(...matrixLines(names[1], keyX, keyTokens), ...placed(names[1]));
  if (valueX !== null) lines.push(...matrixLines(names[2], valueX, keyTokens), ...placed(names[2]));
  const keys = keyX === null ? names[0] : names[1];
  return { lines, inputs: [names[0], keys, valueX === null ? keys : names[2]] };
};

const projectionLines = ({ heads }, inputs) => {
  if (heads === null) return { lines: [], inputs };
  const parts = ["query", "key", "value"];
  const names = ["queries", "keys", "values"];
  const matrices = parts.map((part) => heads.map((head) => head[part]));
  const texts = matrices.map((matrix) => JSON.stringify(matrix));
  const weights = parts.flatMap((part, at) => {
    const same = texts.indexOf(texts[at]);
    return same < at ? [`w_${part} = w_${parts[same]}`] : weightLines(`w_${part}`, matrices[at]);
  });
  const products = names.map((name, at) => `${name} = ${inputs[at]} @ w_${parts[at]}`);
  return { lines: [...weights, "", ...products], inputs: names };
};

const MASKS = {
  causal: () => ["Causal()", "Causal"],
  window: ({ left, right }) => [`Window(left=${left}, right=${right})`, "Window"],
  padding: ({ hidden }, keys) => {
    const flags = Array.from({ length: keys }, (_, key) => Number(!hidden.includes(key)));
    return [`Padding(torch.tensor([[${flags.join(", ")}]]))`, "Padding"];
  },
  longformer: ({ window, globals }) => [`longformer(${window}, [${globals.join(", ")}])`, "longformer"],
  bigbird: ({ window, globals, table }) => {
    const near = `bigbird(${window}, ${globals}, 0, block=1)`;
    if (!table[0].length) return [near, "bigbird"];
    const drawn = `[[${table.map((row) => `[${row.join(", ")}]`).join(", ")}]]`;
    return [`${near} | RandomBlocks(block=1, table=torch.tensor(${drawn}))`, "RandomBlocks, bigbird"];
  },
  prefix: ({ length }) => [`prefix_lm(${length})`, "prefix_lm"],
  drawn: ({ rows }) => {
    const lines = rows.map((row) => `    [${[...row].join(", ")}],`);
    return [["Dense(torch.tensor([", ...lines, "], dtype=torch.bool))"].join("\n"), "Dense"];
  },
};

// What a score needs: lines before the call, its expression, and what is imported.
const scoreParts = ({ score, softcap = null, temperature }) => {
  if (score.kind === "dot") {
    if (softcap === null) return { lines: [], score: null, imports: null };
    return { lines: [], score: `ScaledDot(softcap=${over(softcap, temperature)})`, imports: "ScaledDot" };
  }
  if (score.kind === "cosine") return { lines: [], score: "Cosine()", imports: "Cosine" };
  if (score.kind === "bilinear")
    return { lines: weightLines("w_score", [score.weight]), score: "Bilinear(w_score)", imports: "Bilinear" };
  return {
    lines: [
      ...weightLines("w_hidden_query", [score.query]),
      ...weightLines("w_hidden_key", [score.key]),
      `v = torch.tensor([${score.vector.map(number).join(", ")}], dtype=torch.float64)`,
    ],
    score: "Additive(w_hidden_query, w_hidden_key, v)",
    imports: "Additive",
  };
};

// A number that the temperature divides.
const over = (text, temperature) => (temperature === 1 ? String(text) : `${text} / ${number(temperature)}`);
const scaleText = ({ scale, score, temperature }) => {
  if (scale === "default" && temperature === 1) return null;
  if (typeof scale === "number") return over(number(scale), temperature);
  if (scale === "none") return over("1", temperature);
  return over({ dot: "queries.shape[-1] ** -0.5", cosine: "10" }[score.kind] ?? "1", temperature);
};

const resultLines = (output, input) => [
  "",
  ...matrixLines("w_output", output),
  `result = ${input} @ w_output`,
  "print(result)",
];
const callLines = (parts) => {
  const line = `output, weights = regard.attention(${parts.join(", ")})`;
  if (line.length <= 88) return [line];
  return ["output, weights = regard.attention(", ...parts.map((part) => `    ${part},`), ")"];
};

// `state` is the page's; for a head of a real model, its queries, keys and values are x, keyX and valueX, `heads` is
// null, and it may have a `softcap`, a `bias` (n × m) and a `sink`.
export const asPython = (state) => {
  const { mask, heads, output, x, keyX, temperature, bias = null, sink = null } = state;
  const { lines, inputs } = inputLines(state);
  const projected = projectionLines(state, inputs);
  const [query, key, value] = projected.inputs;
  const scored = scoreParts(state);
  const [visible, maskImports] = mask.kind === "none" ? [null, null] : MASKS[mask.kind](mask, (keyX ?? x).length);
  const scale = scaleText(state)?.replace("queries", query) ?? null;
  const options = [
    scored.score && `score=${scored.score}`,
    scale && `scale=${scale}`,
    visible && "mask=mask",
    bias && `bias=${over("bias", temperature)}`,
    sink !== null && `normalizer=Softmax(torch.tensor([${over(number(sink), temperature)}], dtype=torch.float64))`,
    "return_weights=True",
  ].filter(Boolean);
  const several = heads !== null && heads.length > 1;
  const from = [
    maskImports && `from regard.masks import ${maskImports}`,
    sink !== null && "from regard.normalizers import Softmax",
    state.positions !== "none" && "from regard.positions import sinusoidal",
    scored.imports && `from regard.scores import ${scored.imports}`,
  ].filter(Boolean);
  return [
    "import torch",
    "",
    "import regard",
    ...from,
    "",
    ...lines,
    ...projected.lines,
    ...scored.lines,
    ...(visible ? [`mask = ${visible}`] : []),
    ...(bias ? matrixLines("bias", bias) : []),
    ...callLines([query, key, value, ...options]),
    "print(weights)",
    "print(output)",
    ...(several ? ["joined = torch.cat(list(output), dim=-1)", "print(joined)"] : []),
    ...(output === null ? [] : resultLines(output, several ? "joined" : "output")),
    "",
  ].join("\n");
};
