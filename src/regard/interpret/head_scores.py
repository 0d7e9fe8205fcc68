"""head_scores(): score every head of a model by the tests of the literature.

Some tests use sequences of random tokens that are repeated once: only a head that attends to the first copy can
predict the second.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError, ObservationError
from regard.heads.scores import HeadScores, PerHead
from regard.hub import Loaded
from regard.interpret.look import Prepared, prepare
from regard.interpret.model_loading import load_model, model_for, positions
from regard.interpret.watch import watch
from regard.observe.requested_statistics import Keep
from regard.observe.statistics import Confidence, Distance, Mass, Sink, of_weights
from regard.observe.statistics.base import Statistic
from regard.record.records import Layer, Record
from regard.record.tokenizer_adapter import adapt
from regard.record.visible import Visible, first_share, is_causal, padding_of
from regard.record.weights_on import rows_with_weight, weights_on

__all__ = [
    "CHINESE",
    "ENGLISH",
    "Probe",
    "Repeated",
    "default_texts",
    "head_scores",
    "probe_scores",
    "read",
    "repeated_tokens",
    "text_scores",
    "watched",
]


@dataclass(frozen=True)
class Probe:
    """`sequences` random sequences of `length` different tokens, each repeated once (Olsson et al. 2022,
    arXiv:2209.11895).
    """

    length: int = 32
    sequences: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.length < 2 or self.sequences < 1:
            raise InputError(
                f"`Probe` needs a length from 2 and at least 1 sequence, got {self.length} and {self.sequences}"
            )

    def __str__(self) -> str:
        return f"{self.sequences} × 2 × {self.length} random tokens"


@dataclass(frozen=True, eq=False)
class Repeated:
    """Token ids of shape (sequences, positions), with the model's special tokens around them, and the positions of the
    second copy.
    """

    ids: Int[Tensor, "sequences positions"]
    first: slice
    second: slice


def repeated_tokens(loaded: Loaded, probe: Probe) -> Repeated:
    """Draw tokens uniformly from a model's vocabulary, without special tokens and without repetition within a copy.

    Raises:
        InputError: The model has too few tokens or positions for the length.
    """
    before, after = tokens_around(loaded)
    allowed = plain_tokens(loaded)
    needed, limit = len(before) + 2 * probe.length + len(after), positions(loaded)
    if len(allowed) < probe.length:
        raise InputError(
            f"`Probe` of {probe.length} different tokens needs as many, and {loaded.name} has {len(allowed)}: choose "
            f"Probe(length={len(allowed)}) or less"
        )
    if limit is not None and needed > limit:
        raise InputError(
            f"`Probe` of twice {probe.length} tokens takes {needed} positions, and {loaded.name} has {limit}: choose "
            f"Probe(length={max(2, (limit - len(before) - len(after)) // 2)})"
        )
    generator = np.random.default_rng(probe.seed)
    rows = []
    for _ in range(probe.sequences):
        drawn = generator.choice(allowed, probe.length, replace=False).tolist()
        rows.append([*before, *drawn, *drawn, *after])
    start = len(before)
    middle = start + probe.length
    return Repeated(torch.tensor(rows, device="cpu"), slice(start, middle), slice(middle, middle + probe.length))


def tokens_around(loaded: Loaded) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer adds before and after a text."""
    tokenizer = adapt(loaded.tokenizer)
    ids = tokenizer.tokenize("a", special=True).ids
    special = tokenizer.special
    own = [at for at, one in enumerate(ids) if one not in special]
    return (ids[: own[0]], ids[own[-1] + 1 :]) if own else (ids, [])


def plain_tokens(loaded: Loaded) -> list[int]:
    tokenizer = adapt(loaded.tokenizer)
    rows = loaded.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    size = rows if tokenizer.size is None else min(tokenizer.size, rows)
    return [index for index in range(size) if index not in tokenizer.special and index != tokenizer.unknown]


ENGLISH = (
    "The animal didn't cross the street because it was too tired. Ada Lovelace wrote about the machine in 1843, and "
    "the machine, she said, would weave patterns of numbers as a loom weaves flowers and leaves. When it rains in the "
    "mountains, the river in the valley rises two days later; the people who live there know it, and wait. The old man "
    "sold his boat, bought a smaller one, and never told anybody why."
)
CHINESE = (
    "那隻動物沒有過馬路，因為牠太累了。山裡下雨的時候，山谷裡的河過兩天才漲；住在那裡的人知道，所以他們等著。"
    "老人賣了他的船，買了一條小一點的，從來沒有告訴別人為什麼。貓追老鼠，因為它餓了。"
)
Progress = Callable[[str], None]
_OF_TOKENS = ("first", "special_tokens", "separators")
_OF_ROWS = ("previous", "next", "self", "separators", "first", "special_tokens", "entropy", "distance", "confidence")
_STATISTICS: Mapping[str, Callable[[], Statistic]] = {
    **{name: lambda name=name: Mass(name) for name in ("previous", "next", "self")},  # type: ignore[misc]
    "distance": Distance,
    "confidence": Confidence,
    "sink": Sink,
}


def head_scores(
    model: str | Loaded | None = None,
    text: str | None = None,
    *,
    probe: Probe | None = None,
    progress: Progress | None = None,
) -> HeadScores:
    """Score every head of a model by the tests of the literature.

    There are two kinds of scores. The first kind is computed on a text, as means over the rows of a head: the weight on
    the previous, the next and the own position, on separators, on the first token and on special ones, and the entropy,
    the distance and the largest weight of a row. The rows of special tokens are left out, and a special token is no
    previous, next or first one (`regard.record.visible`). For a causal model the first row is left out too, because it
    sees only itself, but not for the first token. For the weight on the first position (sink) all rows count, as in Gu
    et al. 2024.

    The second kind is computed on random tokens that are repeated once, as a mean over the rows of the second copy: the
    weight on the same token in the first copy, and on the token after it (induction). `RULES` and `MEASURES` of
    regard.heads.scores contain the formulas and sources.

    Args:
        model: A bundled model, a Hugging Face folder or id, or a loaded model; by default it is chosen by the text's
            language.
        text: The input text; by default a few English sentences, for `me5` a few Chinese ones too.
        probe: Number and length of the sequences of random tokens.
        progress: Called with one line of text for each step.

    Raises:
        InputError: The model does not exist or is an encoder–decoder, or the text is empty or too long.
    """
    loaded = read(model, text)
    say = progress or (lambda _: None)
    probe = probe or Probe()
    texts = default_texts(loaded) if text is None else (text,)
    rows: list[Mapping[str, PerHead]] = []
    tokens = 0
    for number, one in enumerate(texts, 1):
        say(f"{loaded.name} reads the text" + (f" ({number} of {len(texts)})" if len(texts) > 1 else ""))
        record = watched(prepare(one, model=loaded))
        rows.append(text_rows(record))
        tokens += record.layers[0].queries
    say(f"{loaded.name} reads {probe}")
    scores = _mean(rows) | probe_scores(loaded, probe)
    return HeadScores(loaded.name, scores, tokens, str(probe))


def read(model: str | Loaded | None, text: str | None = None, *, otherwise: str = "minilm") -> Loaded:
    """Load a model whose heads can be scored; without a name it is chosen by the language of the text, and without a
    text it is `otherwise`.
    """
    if model is None:
        return load_model(otherwise) if text is None else model_for(text)
    loaded = load_model(model) if isinstance(model, str) else model
    if loaded.kind == "encoder-decoder":
        raise InputError(
            f"the heads of {loaded.name} belong to an encoder, a decoder and what is between them, for which these "
            'tests are not made: watch it with regard.watch(model, statistics=["distance", "confidence"])'
        )
    return loaded


def default_texts(loaded: Loaded) -> tuple[str, ...]:
    """Return the texts that are used if none is given."""
    return (ENGLISH, CHINESE) if loaded.name == "me5" else (ENGLISH,)


def watched(prepared: Prepared, keep: Keep = "maps") -> Record:
    """Run the model once on a prepared text, and return the record with every statistic of a text."""
    asked: list[str | Statistic] = [*(make() for make in _STATISTICS.values()), *_OF_TOKENS]
    loaded = prepared.loaded
    with watch(loaded.model, keep=keep, tokenizer=loaded.tokenizer, statistics=asked) as seen:
        prepared.run()
    return dataclasses.replace(seen.record, tokens=prepared.tokens, model=loaded.name)


def text_scores(*records: Record) -> dict[str, PerHead]:
    """Return the scores of texts, from records that hold the statistics or every weight."""
    return _mean([text_rows(one) for one in records])


def text_rows(record: Record) -> dict[str, PerHead]:
    """Return each score of each row that counts, of shape (layers, heads, rows). Of a sink only the mean over the
    recorded rows is known: it is taken for each of them, so that it counts by its rows beside other texts.
    """
    if any(layer.kind == "cross" for layer in record.layers):
        raise InputError("heads are scored by their self-attention, and this record has cross-attention: leave it")
    layers = record.layers
    visible = Visible.of(record.tokens, layers[0])
    hidden, _ = padding_of(layers[0], 0)
    causal = all(map(is_causal, layers))
    recorded = np.any([rows_with_weight(layer, 0) for layer in layers], 0) & ~hidden
    if not (recorded & visible.rows("self", causal=causal)).any():
        raise InputError("the text has no row to score: write a sentence")
    found: dict[str, PerHead] = {}
    for name in _OF_ROWS:
        rows = np.flatnonzero(recorded & visible.rows(name, causal=causal))
        found[name] = _stack([_of_rows(record, layer, name)[:, rows] for layer in layers])
    sink = _stack([first_share(layer, _of_layer(layer, "sink")[0], 0)[:, None] for layer in layers])
    found["sink"] = np.repeat(sink, int(recorded.sum()), -1)
    if causal:  # a causal model cannot see the next token
        found["next"] = np.full_like(found["next"], np.nan)
    return {name: by_number(one, record) for name, one in found.items()}


def probe_scores(loaded: Loaded, probe: Probe) -> dict[str, PerHead]:
    """Return the scores of repeated random tokens."""
    repeated = repeated_tokens(loaded, probe)
    inputs = {"input_ids": repeated.ids, "attention_mask": torch.ones_like(repeated.ids)}
    with watch(loaded.model, statistics=["duplicate_token", "induction"]) as seen:
        Prepared(loaded, inputs, {}).run()
    found = {}
    for name in ("duplicate_token", "induction"):
        each = [layer.statistics[name][:, :, repeated.second].mean((0, 2)) for layer in seen.record.layers]
        found[name] = by_number(_stack([one[:, None] for one in each])[..., 0], seen.record)
    return found


def layer_numbers(record: Record) -> list[int]:
    """Return the model's number of each layer, which names its heads; several modules of one layer are counted."""
    numbers = [record.number(layer) for layer in record.layers]
    return numbers if len(set(numbers)) == len(numbers) else list(range(len(numbers)))


def by_number(found: PerHead, record: Record) -> PerHead:
    """Return what is known of each (layer, head) with each layer at its number, NaN where no layer was recorded."""
    numbers = layer_numbers(record)
    if numbers == list(range(len(numbers))):
        return found
    whole = np.full((max(numbers) + 1, *found.shape[1:]), np.nan)
    whole[numbers] = found
    return whole


def _mean(texts: Sequence[Mapping[str, PerHead]]) -> dict[str, PerHead]:
    """Return the mean over the rows of all texts, or NaN if there are none."""
    joined = {name: np.concatenate([one[name] for one in texts], -1) for name in texts[0]}
    return {name: one.mean(-1) if one.shape[-1] else np.full(one.shape[:2], np.nan) for name, one in joined.items()}


def _of_rows(record: Record, layer: Layer, name: str) -> npt.NDArray[np.float64]:
    """Return one number per row, of shape (heads, queries)."""
    if name in ("first", "special_tokens"):
        return _of_columns(record, layer, name)
    found = layer.entropy if name == "entropy" else _of_layer(layer, name)
    return np.asarray(found[0], dtype=np.float64)


def _of_columns(record: Record, layer: Layer, name: str) -> npt.NDArray[np.float64]:
    """Return the weight of each row on the first token or on special ones (heads, queries), NaN where there is none."""
    visible = Visible.of(record.tokens, layer)
    if name == "first":
        keys = [] if visible.first is None else [visible.first]
    else:
        keys = np.flatnonzero(visible.special).tolist()
    if not keys:
        return np.full((layer.heads, layer.queries), np.nan)
    if name in layer.statistics:
        return np.asarray(layer.statistics[name][0], dtype=np.float64)
    weights = weights_on(layer, 0, range(layer.heads), range(layer.queries), keys)
    return np.asarray(weights.sum(-1, dtype=np.float64))


def _of_layer(layer: Layer, name: str) -> npt.NDArray[np.float64]:
    """Return a recorded statistic, or compute it from the weights if these are available; NaN if it needs unknown
    tokens.

    Raises:
        ObservationError: Neither was recorded.
    """
    if name in layer.statistics:
        return np.asarray(layer.statistics[name], dtype=np.float64)
    if name == "separators":
        return np.full(layer.entropy.shape, np.nan)
    if layer.exact is None:
        raise ObservationError(
            f"{name!r} of {layer.name or 'a layer'} cannot be told from a pooled map of {layer.queries} × "
            f'{layer.keys}: make the record with keep="weights" or statistics=[{name!r}]'
        )
    weights = np.array(layer.exact)  # an atlas is memory-mapped and read-only
    return np.asarray(of_weights(_STATISTICS[name](), weights)[name], dtype=np.float64)


def _stack(layers: Sequence[npt.NDArray[np.float64]]) -> PerHead:
    """Return layers with different numbers of heads as one array, with NaN where a layer has fewer."""
    most = max(len(one) for one in layers)
    return np.stack([np.pad(one, ((0, most - len(one)), (0, 0)), constant_values=np.nan) for one in layers])
