"""Runs that random questions are asked of: a model, its call, and the float64 weights of each of its attention calls.

    run = drawn_run(rng, "bundled")     a bundled model on a text of words
    run.truth[site].weights             (batch, heads, queries, keys), dense, in float64

No truth comes from regard. Where a model calls F.scaled_dot_product_attention, q, k and the mask are those that the
function is given; where it computes its weights itself, they are its own (`output_attentions=True`), and where it runs
in float64, those of transformers' eager code in float64; of bare calls of regard.attention, the formula in numpy, with
the rules of masks in drawn_masks.py.

A weight may be wrong by `ROOM`, or by 2⁻²³ of the row's largest Σ |q k| where that is more: scores in float32 are
rounded, and a weight by as much as its score.
"""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from drawn_masks import FAMILIES, Place, combined
from regard import hub, masks, normalizers, positions, scores

__all__ = ["KINDS", "ROOM", "Dense", "Run", "Site", "drawn_run", "is_here"]

ROOM, STEP = 1e-6, 2.0**-23
Site = tuple[str, str, int]  # the streams of queries and keys, and the number of the layer in them
Array = np.ndarray[Any, np.dtype[Any]]

ENGLISH = (
    "the cat animal street it because was tired wide she he they tokenization zookeeper's unbelievably river of and a "
    "children garden, electroencephalograph house. yesterday internationalization small not 1984 crossed didn't"
).split()
CHINESE = "貓追老鼠 因為它餓了 人工智能 學習 注意力 這隻 那個 動物 街道 太累 ， 。 圖書館 她 魚".split()
TEXTS = {"English": (ENGLISH, " "), "Chinese": (CHINESE, ""), "mixed": (ENGLISH[:12] + CHINESE, " ")}

# Tiny models of corpus.py, by the tokenizer that gives them a vocabulary.
ENCODERS = ("BERT", "DistilBERT", "ModernBERT", "ALBERT", "RoFormer", "DeBERTa-v2")
DECODERS = ("Llama", "Mistral", "Qwen3", "Gemma-2", "GPT-OSS", "Bloom", "MPT", "GPT-2", "GPT-Neo", "OPT", "Gemma-3")
PAIRS = ("T5", "BART", "Marian")
# Norms that transformers computes in float32 also where the model is of float64: in another run of the same text they
# are rounded otherwise.
FLOAT32_NORMS = ("Llama", "Mistral", "Qwen3", "Gemma-2", "Gemma-3", "GPT-OSS", "T5")
OWN = ("BERT", "Llama", "Mistral", "GPT-2", "T5", "BART", "Marian")  # that regard.models reads
LONGEST = {"minilm": 256, "me5": 500, "smollm2": 700}


@dataclass(frozen=True, eq=False)
class Dense:
    """The weights of one attention call (batch, heads, queries, keys), and the error allowed of each row of them."""

    weights: Array
    room: Array


@dataclass(frozen=True, eq=False)
class Run:
    """A model and its call, which `watch` and `tap` run, and what every attention call of it weighs, in their order."""

    model: nn.Module
    call: Callable[[], object]
    truth: Mapping[Site, Dense]
    tokenizer: Any = None
    tokens: Sequence[str] | None = None  # of one sequence, where there is no tokenizer
    text: str = ""  # that `look` can be given
    loaded: hub.Loaded | None = None  # what it is given with
    bundled: str = ""  # its name on the command line
    keeps_qk: bool = True  # whether it calls a function with q and k
    prompt: int | None = None  # tokens of the prompt of a generation
    is_plain: bool = False  # whether streams have no names that are known
    what: Mapping[str, Any] = field(default_factory=dict)


# The formula ----------------------------------------------------------------------------------------------------------


def normalized(scores: Array, sink: Array | None = None) -> Array:
    """softmax(scores) with a learned sink (heads,); a row of −inf has weights 0."""
    peak = scores.max(-1, keepdims=True, initial=-np.inf)
    peak = peak if sink is None else np.maximum(peak, sink[:, None, None])
    exp = np.exp(scores - np.where(np.isneginf(peak), 0, peak))
    total = exp.sum(-1, keepdims=True)
    total = total if sink is None else total + np.exp(sink[:, None, None] - peak)
    return exp / np.where(total == 0, 1, total)


def room_of(q: Array, k: Array, scale: float) -> Array:
    """The error allowed of each row: of rounded scores, whose terms may cancel."""
    return np.maximum(ROOM, STEP * (np.abs(q * scale) @ np.abs(k).swapaxes(-1, -2)).max(-1, initial=0))


def _f64(x: Tensor) -> Array:
    return x.detach().to(torch.float64).numpy()


def _kernel_weights(
    q: Tensor, k: Tensor, mask: Tensor | None, *, is_causal: bool = False, scale: float | None = None, **_: Any
) -> Dense:
    """What F.scaled_dot_product_attention weighs; −9,000 and less hides, as minus infinity does."""
    shape = (*(1,) * (4 - q.ndim), *q.shape)
    query, key = _f64(q).reshape(shape), _f64(k).reshape((*(1,) * (4 - k.ndim), *k.shape))
    key = key.repeat(query.shape[1] // key.shape[1], 1)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    found = factor * query @ key.swapaxes(-1, -2)
    if is_causal:
        found = np.where(np.tri(*found.shape[-2:], dtype=bool), found, -np.inf)
    if mask is not None:
        added = np.where(mask.numpy(), 0, -np.inf) if mask.dtype == torch.bool else _f64(mask)
        found = found + np.where(added <= -9000, -np.inf, added)
    return Dense(normalized(found), room_of(query, key, factor))


@contextlib.contextmanager
def _kernel_calls(wanted: frozenset[int] | None) -> Iterator[dict[int, Dense]]:
    """The weights of each call of the fused kernel, from what it is given; of the calls with these numbers."""
    kernel, weights, count = functional.scaled_dot_product_attention, dict[int, Dense](), [0]

    def spy(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **given: Any) -> Tensor:
        if wanted is None or count[0] in wanted:
            weights[count[0]] = _kernel_weights(query, key, attn_mask, **given)
        count[0] += 1
        return kernel(query, key, value, attn_mask, **given)

    functional.scaled_dot_product_attention = spy
    try:
        yield weights
    finally:
        functional.scaled_dot_product_attention = kernel


# Texts ----------------------------------------------------------------------------------------------------------------


def drawn_text(rng: np.random.Generator, language: str, length: int, tokenizer: Any) -> str:
    """Words, some of them again and again, of about so many tokens."""
    words, space = TEXTS[language]
    some = [str(word) for word in rng.choice(words, min(len(words), 4 + length // 8), replace=False)]
    chosen = [str(rng.choice(some)) for _ in range(3)]
    while len(tokenizer(space.join(chosen), verbose=False)["input_ids"]) < length:
        chosen += [str(rng.choice(some)) for _ in range(1 + length // 20)]
    return space.join(chosen)


def _padded(rows: Sequence[Sequence[int]], side: str, pad: int) -> dict[str, Tensor]:
    longest = max(map(len, rows))
    before = [longest - len(row) if side == "left" else 0 for row in rows]
    ids, mask = torch.full((len(rows), longest), pad), torch.zeros(len(rows), longest, dtype=torch.long)
    for at, row in enumerate(rows):
        here = slice(before[at], before[at] + len(row))
        ids[at, here], mask[at, here] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask}


def _drawn_inputs(rng: np.random.Generator, tokenizer: Any, what: Mapping[str, Any]) -> tuple[str, dict[str, Tensor]]:
    text = drawn_text(rng, what["language"], what["length"], tokenizer)
    rows = [tokenizer(text, verbose=False)["input_ids"][: what["most"]]]
    for _ in range(what["batch"] - 1):
        other = drawn_text(rng, what["language"], max(3, what["length"] // int(rng.integers(1, 5))), tokenizer)
        rows.append(tokenizer(other, verbose=False)["input_ids"][: what["most"]])
    return text, _padded(rows, what["padding"], tokenizer.pad_token_id or 0)


# Models ---------------------------------------------------------------------------------------------------------------


def is_here(kind: str) -> bool:
    """Return whether the bundled models are, on whose tokenizers all but bare modules depend."""
    return kind == "plain" or all(map(hub.is_installed, hub.BUNDLED))


@functools.cache
def _bundled(name: str) -> hub.Loaded:
    return regard.load_model(name)


@functools.cache
def _tiny(name: str, dtype: torch.dtype) -> nn.Module:
    """A model of corpus.py with the vocabulary of a tokenizer, for texts of up to 1,024 tokens."""
    import transformers

    import corpus

    entry = corpus.MODELS[name]
    sizes = {one: 1024 for one in ("max_position_embeddings", "n_positions", "max_seq_len") if one in entry.options}
    given = entry.options | sizes | {"vocab_size": len(_tokenizer_of(name))}
    given |= {"max_position_embeddings": 1024} if name in ("DistilBERT", "GPT-Neo") else {}
    given |= {"eos_token_id": 2} if name in PAIRS else {}
    config = getattr(transformers, f"{entry.kind}Config")(**given)
    head = "ForConditionalGeneration" if name in PAIRS else "LMHeadModel" if name == "GPT-2" else "ForCausalLM"
    kind = entry.kind.removesuffix("Text")
    head = {"Marian": "MTModel"}.get(name, "Model" if name in ENCODERS else head)
    model = corpus.randomized(getattr(transformers, kind + head)(config)).to(dtype)
    if name == "GPT-OSS":
        model.set_experts_implementation("eager")  # the others have no float64
    if entry.only_eager:
        corpus.set_attention(model, "eager")
    return model


def _tokenizer_of(name: str) -> Any:
    return _bundled("smollm2" if name in DECODERS else "minilm").tokenizer


@functools.cache
def _own(name: str) -> tuple[nn.Module, nn.Module]:
    """A checkpoint as transformers reads it, and as regard.models does, in float64."""
    with tempfile.TemporaryDirectory() as folder:
        made: Any = _tiny(name, torch.float64)
        made.save_pretrained(folder)
        theirs = type(made).from_pretrained(folder, dtype=torch.float64).eval()
        return theirs, regard.models.Transformer.from_pretrained(folder).double().eval()


def _eager(model: nn.Module, given: Mapping[str, Tensor], room: float = ROOM) -> dict[Site, Dense]:
    """The weights that transformers' own code gives; 0 where a query sees padding alone, which it weighs evenly."""
    import corpus

    found = {}
    for streams, weights in corpus.eager_weights(model, **given).items():
        queries, keys = streams.split()
        for number, one in enumerate(weights):
            dense = np.nan_to_num(_f64(one))
            if keys != "target" and "attention_mask" in given:
                padding = given["attention_mask"].numpy() == 0
                dense = dense * ((dense * padding[:, None, None]).sum(-1, keepdims=True) == 0)
            found[queries, keys, number] = Dense(dense, np.full(dense.shape[:3], room))
    return found


def _room_of_another_run(name: str) -> float:
    return 10 * ROOM if name in FLOAT32_NORMS else ROOM


def _sites(model: nn.Module, kind: str) -> list[Site]:
    """The sites of attention of a model of transformers, in the order of its calls."""
    config: Any = model.config
    if kind != "encoder-decoder":
        return [("text", "text", number) for number in range(config.num_hidden_layers)]
    first = getattr(config, "encoder_layers", None) or config.num_layers
    second = getattr(config, "decoder_layers", None) or config.num_decoder_layers
    sites: list[Site] = [("source", "source", number) for number in range(first)]
    for number in range(second):
        sites += [("target", "target", number), ("target", "source", number)]
    return sites


def _kernel_truth(model: nn.Module, call: Callable[[], object], kind: str, layers: Sequence[int] | None) -> Any:
    sites = _sites(model, kind)
    wanted = None if layers is None else frozenset(at for at, site in enumerate(sites) if site[2] in layers)
    with _kernel_calls(wanted) as calls:
        call()
    assert wanted is not None or len(calls) == len(sites), f"{len(calls)} calls of the kernel, {len(sites)} sites"
    return {sites[at]: dense for at, dense in calls.items()}


def _drawn_length(rng: np.random.Generator, most: int, long: float = 0.3) -> int:
    if rng.random() < long:
        return int(rng.integers(min(300, most), most + 1))
    return int(rng.choice([5, 8, 13, 20, 40, 90]))


def _bundled_run(rng: np.random.Generator) -> Run:
    name = str(rng.choice(["minilm", "me5", "smollm2"], p=[0.5, 0.3, 0.2]))
    loaded = _bundled(name)
    most = LONGEST[name]
    language = "English" if name != "me5" else str(rng.choice(["English", "Chinese", "mixed"]))
    batch = 2 if rng.random() < 0.2 else 1
    what = {"name": name, "language": language, "length": _drawn_length(rng, most, 0.25), "most": most, "batch": batch}
    what |= {"padding": str(rng.choice(["right", "left"]) if name == "smollm2" else "right")}
    text, given = _drawn_inputs(rng, loaded.tokenizer, what)
    count = loaded.model.config.num_hidden_layers
    long = given["input_ids"].shape[1] > 150 or name == "smollm2"
    layers = sorted(int(one) for one in rng.choice(count, 2, replace=False)) if long else None
    what |= {"layers": layers}

    def call() -> object:
        with torch.inference_mode():
            more = {"use_cache": False, "logits_to_keep": 1} if loaded.kind == "decoder" else {}
            return loaded.model(**given, **more)

    truth = _kernel_truth(loaded.model, call, loaded.kind, layers)
    is_whole = len(loaded.tokenizer(text, verbose=False)["input_ids"]) <= most and batch == 1
    return Run(
        loaded.model, call, truth, loaded.tokenizer, what=what,
        text=text if is_whole else "", loaded=loaded, bundled=name,
    )  # fmt: skip


def _tiny_run(rng: np.random.Generator, name: str | None = None, *, generates: bool = False) -> Run:
    name = name or str(rng.choice([*ENCODERS, *DECODERS, *PAIRS]))
    import corpus

    entry = corpus.MODELS[name]
    dtype = torch.float64 if generates or rng.random() < 0.5 else torch.float32
    model, tokenizer = _tiny(name, dtype), _tokenizer_of(name)
    kind = "decoder" if name in DECODERS else "encoder-decoder" if name in PAIRS else "encoder"
    # A query that sees padding alone is NaN in transformers' own code in float64, and so is what it reaches; one of
    # GPT-Neo, whose window is another mask, weighs evenly what is no padding.
    is_alone = generates or name == "GPT-Neo" or (dtype == torch.float64 and entry.only_eager and kind == "decoder")
    batch = 1 if is_alone else int(rng.choice([1, 1, 2]))
    what = {"name": name, "dtype": str(dtype).removeprefix("torch."), "batch": batch, "most": 700}
    what |= {"language": str(rng.choice(["English", "mixed"])), "length": _drawn_length(rng, 690, 0.4)}
    what |= {"padding": str(rng.choice(["right", "left"])) if kind == "decoder" else "right"}
    text, given = _drawn_inputs(rng, tokenizer, what)
    if generates:
        new = int(rng.integers(2, 6))
        prompt = given["input_ids"].shape[1]

        def generate() -> Tensor:
            return model.generate(
                given["input_ids"], attention_mask=given["attention_mask"], max_new_tokens=new, min_new_tokens=new,
                do_sample=False, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip

        final = generate()[:, :-1]
        with torch.no_grad():
            truth = _eager(model, {"input_ids": final}, _room_of_another_run(name))
        what |= {"generates": new}
        return Run(model, generate, truth, tokenizer, keeps_qk=not entry.only_eager, prompt=prompt, what=what)
    if kind == "encoder-decoder":
        other = drawn_text(rng, "English", max(4, what["length"] // 2), tokenizer)
        ids = torch.tensor([tokenizer(other, verbose=False)["input_ids"][:500]]).repeat(batch, 1)
        given["decoder_input_ids"] = ids

    def call() -> object:
        with torch.no_grad():
            return model(**given, **({} if kind == "encoder" else {"use_cache": False}))

    if entry.only_eager or (dtype == torch.float64 and name not in FLOAT32_NORMS):
        with torch.no_grad():
            truth = _eager(model, given)
    else:
        truth = _kernel_truth(model, call, kind, None)
    loaded = hub.Loaded(f"tiny {name}", model, tokenizer, kind)
    can_look = batch == 1 and kind != "encoder-decoder" and len(tokenizer(text, verbose=False)["input_ids"]) <= 700
    return Run(
        model, call, truth, tokenizer, what=what, keeps_qk=not entry.only_eager,
        text=text if can_look else "", loaded=loaded if can_look else None,
    )  # fmt: skip


def _own_run(rng: np.random.Generator) -> Run:
    """A model of regard.models, whose weights transformers has computed."""
    name = str(rng.choice(OWN))
    (theirs, model), tokenizer = _own(name), _tokenizer_of(name)
    # In float64, a query of transformers whose window has padding alone is NaN, and what it reaches.
    batch = 1 if name == "Mistral" else int(rng.choice([1, 1, 2]))
    what = {"name": name, "batch": batch, "most": 700, "language": "English", "padding": "right"}
    what |= {"length": _drawn_length(rng, 690, 0.25)}
    _, given = _drawn_inputs(rng, tokenizer, what)
    if name in PAIRS:
        other = drawn_text(rng, "English", max(4, what["length"] // 2), tokenizer)
        given["decoder_input_ids"] = torch.tensor([tokenizer(other, verbose=False)["input_ids"][:500]]).repeat(batch, 1)

    def call() -> object:
        with torch.no_grad():
            return model(**given)

    with torch.no_grad():
        truth = _eager(theirs, given, _room_of_another_run(name))
    return Run(model, call, truth, tokenizer, what=what)


# Bare calls -----------------------------------------------------------------------------------------------------------


class Bare(nn.Module):
    """One attention call of given vectors."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(q, k, v)


class Layers(nn.Module):
    """Several, one after the other."""

    def __init__(self, layers: Sequence[Bare]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, vectors: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
        return [layer(*one) for layer, one in zip(self.layers, vectors, strict=True)]


def _slopes(heads: int) -> Array:
    assert heads & (heads - 1) == 0, "slopes of a power of two"
    return 2.0 ** (-8 * np.arange(1, heads + 1) / heads)


@dataclass(frozen=True, eq=False)
class _Sizes:
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int


def _bare_layer(rng: np.random.Generator, s: _Sizes, dtype: torch.dtype) -> tuple[Bare, Any, Dense, str]:
    """A call, its vectors, what it weighs, and what it is."""
    q, k = (
        torch.tensor(rng.normal(size=(s.batch, heads, count, s.dim))).to(dtype)
        for heads, count in ((s.heads, s.queries), (s.kv_heads, s.keys))
    )
    q = q * float(rng.choice([0.5, 1, 3]))
    v = torch.tensor(rng.normal(size=(*k.shape[:3], 4))).to(dtype)
    query, key = _f64(q), _f64(k).repeat(s.heads // s.kv_heads, 1)
    way = str(rng.choice(["regard", "kernel", "by hand"], p=[0.7, 0.2, 0.1]))
    if way == "kernel":
        return _kernel_layer(rng, s, q, k, v)
    if way == "by hand":
        return _layer_by_hand(rng, q, k, v)
    scale = float(rng.choice([s.dim**-0.5, 0.3]))
    options, parts, found = _scored(rng, s, query, key, scale, dtype)
    sizes = np.abs(query * scale) @ np.abs(key).swapaxes(-1, -2)
    bias = _biased(rng, s, dtype, options, parts)
    found, sizes = found + bias, sizes + np.abs(bias)
    found = np.where(_masked(rng, s, options, parts), found, -np.inf)
    weights = _normalized(rng, s, dtype, options, parts, found)
    room = np.maximum(ROOM, STEP * np.where(weights > 1e-12, sizes, 0).max(-1))
    attend = functools.partial(regard.attention, **options)
    return Bare(attend), (q, k, v), Dense(np.broadcast_to(weights, found.shape), room), " ".join(parts)


def _scored(
    rng: np.random.Generator, s: _Sizes, query: Array, key: Array, scale: float, dtype: torch.dtype
) -> tuple[dict[str, Any], list[str], Array]:
    """The options of a score, its name, and the scores."""
    options: dict[str, Any] = {"scale": scale}
    products = query @ key.swapaxes(-1, -2)
    kind = str(rng.choice(["dot", "dot", "dot", "cosine", "additive"]))
    if kind == "cosine":
        options["score"] = scores.Cosine(0.5)
        lengths = [np.linalg.norm(one, axis=-1) for one in (query, key)]
        products = products / lengths[0][..., None] / lengths[1][:, :, None]
    elif kind == "additive":
        tensors = [torch.tensor(rng.normal(size=shape)) for shape in ((6, s.dim), (6, s.dim), (6,))]
        w, u, vector = (one.to(dtype) for one in tensors)
        options["score"] = scores.Additive(w, u, vector)
        hidden = np.tanh((query @ _f64(w).T)[:, :, :, None] + (key @ _f64(u).T)[:, :, None])
        products = hidden @ _f64(vector)
    found = products * scale
    if kind == "dot" and rng.random() < 0.25:
        cap = float(rng.choice([2.0, 20.0]))
        options["score"] = scores.ScaledDot(softcap=cap)
        return options, [kind, "softcap"], cap * np.tanh(found / cap)
    return options, [kind], found


def _biased(
    rng: np.random.Generator, s: _Sizes, dtype: torch.dtype, options: dict[str, Any], parts: list[str]
) -> Array:
    """What is added to the scores."""
    kind = str(rng.choice(["none", "none", "tensor", "alibi"]))
    if kind == "none":
        return np.zeros(())
    parts.append(kind)
    if kind == "tensor":
        heads = s.heads if rng.random() < 0.5 else 1
        options["bias"] = torch.tensor(rng.normal(size=(1, heads, s.queries, s.keys))).to(dtype)
        return _f64(options["bias"])
    both = bool(rng.random() < 0.5)
    options["bias"] = positions.ALiBi(s.heads, bidirectional=both)
    distance = s.keys - s.queries + np.arange(s.queries)[:, None] - np.arange(s.keys)
    return -_slopes(s.heads)[:, None, None] * (abs(distance) if both else distance)


def _masked(rng: np.random.Generator, s: _Sizes, options: dict[str, Any], parts: list[str]) -> Array:
    """Which pairs are seen."""
    kind = str(rng.choice(["none", "causal", "causal", "family", "combined"]))
    start = s.keys - s.queries
    if kind == "none":
        return np.ones((1, 1, s.queries, s.keys), bool)
    if kind == "causal":
        options["mask"] = masks.Causal()
        parts.append("causal")
        return np.tri(s.queries, s.keys, start, dtype=bool)
    place = Place(rng, s.batch, s.heads, s.queries, s.keys, start)
    names = [str(one) for one in rng.choice(sorted(FAMILIES), 1 if kind == "family" else 2, replace=False)]
    parts += names
    options["mask"], seen = combined(place, names)
    return np.asarray(seen)


def _normalized(
    rng: np.random.Generator, s: _Sizes, dtype: torch.dtype, options: dict[str, Any], parts: list[str], found: Array
) -> Array:
    """The weights of scores, −inf where a pair is hidden."""
    kind = str(rng.choice(["softmax", "softmax", "sink", "sigmoid"]))
    parts.append(kind)
    if kind == "softmax":
        return normalized(found)
    if kind == "sink":
        learned = torch.tensor(rng.normal(size=s.heads) * 2).to(dtype)
        options["normalizer"] = normalizers.Softmax(learned)
        return normalized(found, _f64(learned))
    shift = float(rng.choice([0.0, -2.0]))
    options["normalizer"] = normalizers.Sigmoid(shift)
    return np.where(np.isneginf(found), 0, 1 / (1 + np.exp(-np.where(np.isneginf(found), 0, found + shift))))


def _kernel_layer(rng: np.random.Generator, s: _Sizes, q: Tensor, k: Tensor, v: Tensor) -> Any:
    given: dict[str, Any] = {"enable_gqa": True} if s.heads != s.kv_heads else {}
    how = str(rng.choice(["plain", "causal", "boolean", "added"]))
    if how == "causal" and s.queries == s.keys:
        given["is_causal"] = True
    elif how == "boolean":
        given["attn_mask"] = torch.tensor(rng.random((s.batch, 1, s.queries, s.keys)) < 0.7)
    elif how == "added":
        given["attn_mask"] = torch.tensor(rng.normal(size=(s.heads, s.queries, s.keys))).to(q.dtype)
    mask = given.get("attn_mask")
    options = {name: one for name, one in given.items() if name != "attn_mask"}
    dense = _kernel_weights(q, k, mask, **options)
    return Bare(functools.partial(functional.scaled_dot_product_attention, **given)), (q, k, v), dense, f"kernel {how}"


def _layer_by_hand(rng: np.random.Generator, q: Tensor, k: Tensor, v: Tensor) -> Any:
    group, scale = q.shape[1] // k.shape[1], float(rng.choice([q.shape[-1] ** -0.5, 0.2]))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (one.repeat_interleave(group, 1) for one in (k, v))
        return torch.softmax(scale * (q @ k.transpose(-1, -2)), -1) @ v

    # The model's own weights, as it rounds them.
    weights = torch.softmax(scale * (q @ k.repeat_interleave(group, 1).transpose(-1, -2)), -1)
    return Bare(attend), (q, k, v), Dense(_f64(weights), np.full(q.shape[:3], ROOM)), "by hand"


def _plain_run(rng: np.random.Generator) -> Run:
    keys = _drawn_length(rng, 700)
    queries = keys if rng.random() < 0.7 else int(rng.integers(1, keys + 1))
    kv_heads = int(rng.choice([1, 2]))
    sizes = _Sizes(int(rng.choice([1, 1, 2])), kv_heads * int(rng.choice([1, 2])), kv_heads, queries, keys, 8)
    dtype = [torch.float32, torch.float32, torch.float64, torch.bfloat16][rng.integers(4)]
    made = [_bare_layer(rng, sizes, dtype) for _ in range(int(rng.integers(1, 4)))]
    layers, vectors, truths, what = zip(*made, strict=True)
    model = Layers(layers).eval()

    def call() -> object:
        with torch.no_grad():
            return model(vectors)

    truth = {("", "", number): one for number, one in enumerate(truths)}
    words = [str(rng.choice(ENGLISH + CHINESE)) for _ in range(keys)]
    about = {"sizes": sizes, "dtype": str(dtype), "layers are": what}
    return Run(
        model, call, truth, what=about, is_plain=True, keeps_qk="by hand" not in what,
        tokens=words if sizes.batch == 1 and queries == keys else None,
    )  # fmt: skip


KINDS: Mapping[str, Callable[[np.random.Generator], Run]] = {
    "bundled": _bundled_run,
    "tiny": _tiny_run,
    # MPT reads the whole text in each step: a pass for each.
    "generation": lambda rng: _tiny_run(
        rng, str(rng.choice([one for one in DECODERS if one != "MPT"])), generates=True
    ),
    "own": _own_run,
    "plain": _plain_run,
}


def drawn_run(rng: np.random.Generator, kind: str) -> Run:
    """Draw a run of a kind."""
    return KINDS[kind](rng)
