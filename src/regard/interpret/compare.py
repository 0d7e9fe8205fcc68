"""Compare the heads of two texts, two models or two records.

If both texts have equally many tokens, and at least half of them are equal at equal positions, rows are compared one
by one, and a head's distance is Σ_i JensenShannon(p_i, p'_i) (Clark et al. 2019, arXiv:1906.04341, section 6).
Otherwise, for example for two languages, the scores of the heads are compared. For two texts that differ in one or two
words, one head is shown for both texts, and the heads that change their preferred word are counted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.heads.change_loss_and_pairs import HeadChange
from regard.heads.scores import RULES, HeadScores, PerHead
from regard.hub import Loaded
from regard.interpret.head_scores import (
    Probe,
    by_number,
    default_texts,
    layer_numbers,
    probe_scores,
    read,
    text_scores,
    watched,
)
from regard.interpret.look import prepare
from regard.interpret.model_loading import advice
from regard.record.layers import several_streams
from regard.record.minimal_pair import MinimalPair, choose_pair
from regard.record.places import Name
from regard.record.records import Record
from regard.render.pair_page import pair_card

__all__ = ["LookPair", "compare_looks", "compare_models", "compare_records", "compare_texts", "jensen_shannon"]

Progress = Callable[[str], None]
_LONGEST = 512  # maximum number of tokens of a text; every weight is stored


@dataclass(frozen=True, eq=False)
class LookPair(MinimalPair):
    """One head over two texts, the distance of every head over all rows, and notes."""

    change: HeadChange
    warning: str | None = None

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.records[0].model

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        return pair_card(self, self.change)


def compare_looks(
    a: str,
    b: str,
    *,
    model: str | Loaded | None = None,
    token: Name | None = None,
    layer: int | None = None,
    head: int | None = None,
    words: tuple[str, str] | None = None,
    progress: Progress | None = None,
) -> LookPair:
    """Show one head of a model for two texts that differ in one or two words, and count the heads that flip.

    A head *flips* if it gives more weight to one word in the first text and more weight to the other word in the second
    text. A head is counted only if it gives both words together at least 0.1 in each text. See
    `regard.heads.head_flips`.

    Args:
        a: The first text.
        b: The second text.
        model: A bundled model, a Hugging Face folder or id, or a loaded model; by default it is chosen by the language.
        token: The word whose row is shown; by default a pronoun of both texts, or the word with the most concentrated
            row.
        layer: The layer of the head, counted from 0.
        head: The head, counted from 0 within its layer; by default the one with the largest weight in the first text.
        words: The two words that are compared; by default the word with the head's largest weight in the first text
            and, of the other content words of both texts, the one with the largest total weight over all heads.
        progress: Called with one line of text for each step.

    Raises:
        InputError: The model, word, layer or head does not exist, the model is an encoder–decoder, a text has more than
            512 tokens, or the texts share no two words to compare.
    """
    say = progress or (lambda _: None)
    loaded = read(model, f"{a}\n{b}")
    prepared = [prepare(text, model=loaded) for text in (a, b)]
    longest = max(one.inputs["input_ids"].shape[-1] for one in prepared)
    if longest > _LONGEST:
        raise InputError(f"two texts are compared up to {_LONGEST} tokens each, got {longest:,}: shorten them")
    records = []
    for number, one in enumerate(prepared, 1):
        say(f"{loaded.name} reads text {number} of 2")
        records.append(watched(one, "weights"))
    pair = choose_pair(records[0], records[1], token=token, layer=layer, head=head, words=words)
    change = compare_records(records[0], records[1], names=("text 1", "text 2"))
    return LookPair(pair.records, pair.highlights, pair.flips, change, advice(loaded, f"{a}\n{b}"))


def compare_texts(a: str, b: str, *, model: str | Loaded | None = None, progress: Progress | None = None) -> HeadChange:
    """Compare the heads of one model on two texts; by default a bundled model that supports the language of both.

    Raises:
        InputError: No such model, an encoder–decoder, or a text that is empty or too long.
    """
    say = progress or (lambda _: None)
    loaded = read(model, f"{a}\n{b}")
    records = []
    for number, text in enumerate((a, b), 1):
        say(f"{loaded.name} reads text {number} of 2")
        records.append(watched(prepare(text, model=loaded), "weights"))
    return compare_records(*records, names=("text 1", "text 2"))


def compare_models(
    a: str | Loaded,
    b: str | Loaded,
    *,
    text: str | None = None,
    probe: Probe | None = None,
    progress: Progress | None = None,
) -> HeadChange:
    """Compare the heads of two models with equal numbers of layers and heads on one text, such as two checkpoints.

    Raises:
        InputError: No such model, other numbers of layers or heads, or a text that is empty or too long.
    """
    say = progress or (lambda _: None)
    records: list[Record] = []
    probes: list[Mapping[str, PerHead]] = []
    names: list[str] = []
    for one in (a, b):
        say(f"reading {one if isinstance(one, str) else one.name}")
        loaded = read(one)
        say(f"{loaded.name} reads the text")
        records.append(watched(prepare(default_texts(loaded)[0] if text is None else text, model=loaded), "weights"))
        if len(records) == 2:
            _check_shapes(*records, names=(names[0], loaded.name))
        say(f"{loaded.name} reads random tokens")
        probes.append(probe_scores(loaded, probe or Probe()))
        names.append(loaded.name)
    return compare_records(*records, names=(names[0], names[1]), probes=(probes[0], probes[1]))


def compare_records(
    a: Record,
    b: Record,
    *,
    names: tuple[str, str],
    probes: tuple[Mapping[str, PerHead], Mapping[str, PerHead]] = ({}, {}),
) -> HeadChange:
    """Compare two records of the same layers and heads, each of one text; `probes` are further scores of each.

    Layers have the model's numbers; of those that were not recorded (`layers=`) nothing is known (NaN). Rows that were
    not recorded (`queries=`) do not count.

    Raises:
        InputError: Layers, heads or recorded rows differ, heads were chosen, there is more than one text or stream, or
            there is cross-attention.
        ObservationError: A record holds pooled maps, from which single weights cannot be computed.
    """
    _check_shapes(a, b, names=names)
    _check_layers(a, b, names=names)
    scores = [text_scores(record) | dict(probe) for record, probe in zip((a, b), probes, strict=True)]
    lengths = [record.layers[0].queries for record in (a, b)]
    first, second = (
        HeadScores(record.model or name, found, length)
        for record, name, found, length in zip((a, b), names, scores, lengths, strict=True)
    )
    comparable, why = _comparable(a, b)
    if comparable:
        recorded = _same_rows(a, b, names=names)
        change = by_number(_row_change(a, b, recorded), a)
        return HeadChange(names, change, first, second, int(recorded[0].sum()), why)
    return HeadChange(names, _score_change(first, second), first, second, 0, why)


def jensen_shannon(p: npt.NDArray[np.floating], q: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return ½ KL(p, m) + ½ KL(q, m) with m = ½ (p + q), in nats, over the last axis; the rest of a row's sum to 1
    counts as one more key.

    >>> jensen_shannon(np.array([1.0, 0.0]), np.array([0.0, 1.0])).round(4)  # ln 2: nothing in common
    np.float64(0.6931)
    """
    p, q = (_whole(np.asarray(one, dtype=np.float64)) for one in (p, q))
    middle = (p + q) / 2
    terms = [
        np.where(one > 0, one * np.log(np.where(one > 0, one, 1) / np.where(middle > 0, middle, 1)), 0)
        for one in (p, q)
    ]
    return np.asarray((terms[0] + terms[1]).sum(-1) / 2)


def _whole(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the rows with one more key that completes their sum to 1, where a sink left more than float32 rounds."""
    rest = 1 - rows.sum(-1, keepdims=True)
    return np.concatenate([rows, np.where(rest > 1e-6, rest, 0)], -1)


def _check_shapes(before: Record, after: Record, *, names: tuple[str, str]) -> None:
    shapes = [[layer.heads for layer in record.layers] for record in (before, after)]
    if shapes[0] != shapes[1]:
        told = [f"{len(one)} layers of {one[0]} heads" for one in shapes]
        raise InputError(
            f"heads are compared one by one, so both need the same layers and heads, got {told[0]} ({names[0]}) and "
            f"{told[1]} ({names[1]}): score each with regard heads"
        )
    for record, name in zip((before, after), names, strict=True):
        if record.layers[0].batch != 1:
            raise InputError(f"{name} holds {record.layers[0].batch} texts: compare records of one text each")


def _comparable(before: Record, after: Record) -> tuple[bool, str]:
    """Return whether row i of one record corresponds to row i of the other, and the reason."""
    lengths = [record.layers[0].queries for record in (before, after)]
    if lengths[0] != lengths[1]:
        return False, f"the texts have {lengths[0]} and {lengths[1]} tokens, so that rows do not correspond"
    exact = all(layer.exact is not None for record in (before, after) for layer in record.layers)
    if not exact:
        return False, "the records hold pooled maps, not every weight"
    if not (before.tokens and after.tokens):
        return True, f"both have {lengths[0]} positions with unknown tokens"
    texts = [[token.text for token in one.stream(one.layers[0].query_tokens)] for one in (before, after)]
    equal = sum(one == other for one, other in zip(*texts, strict=True))
    if 2 * equal < lengths[0]:
        return (
            False,
            f"only {equal} of {lengths[0]} tokens are equal at equal positions, so rows do not correspond",
        )
    return True, f"{equal} of {lengths[0]} tokens are equal at equal positions"


def _check_layers(before: Record, after: Record, *, names: tuple[str, str]) -> None:
    """Raise unless both have every head of the same layers."""
    for record, name in zip((before, after), names, strict=True):
        if several_streams(record.layers):
            raise InputError(f"{name} has layers of several streams, in which numbers of heads repeat: compare one")
        chosen = next((layer.head_numbers for layer in record.layers if layer.head_numbers is not None), None)
        if chosen is not None:
            raise InputError(
                f"{name} has some heads only (head {', '.join(map(str, chosen))} of a layer), and nothing of the "
                "others: record both without `heads=`"
            )
    first, second = map(layer_numbers, (before, after))
    if first != second:
        told = [", ".join(map(str, one)) for one in (first, second)]
        raise InputError(
            f"heads are compared one by one, so both need the same layers, got {told[0]} ({names[0]}) and {told[1]} "
            f"({names[1]})"
        )


def _same_rows(before: Record, after: Record, *, names: tuple[str, str]) -> npt.NDArray[np.bool_]:
    """Return which rows of each layer (layers, queries) were recorded: they give weight to some key in some head."""
    first, second = (
        np.stack([(layer.top_weights[0] > 0).any((0, 2)) for layer in record.layers]) for record in (before, after)
    )
    if not np.array_equal(first, second):
        counts = [int(one[0].sum()) for one in (first, second)]
        raise InputError(
            f"rows are compared one by one, and other rows were recorded, {counts[0]} ({names[0]}) and {counts[1]} "
            f"({names[1]}): record both with the same `queries=`, or all"
        )
    return first


def _row_change(before: Record, after: Record, recorded: npt.NDArray[np.bool_]) -> PerHead:
    most = max(layer.heads for layer in before.layers)
    change = np.full((len(before.layers), most), np.nan)
    for number, (one, other) in enumerate(zip(before.layers, after.layers, strict=True)):
        assert one.exact is not None and other.exact is not None  # noqa: PT018  comparable records have them
        rows = recorded[number]
        if not rows.any():
            continue
        found = jensen_shannon(one.exact[0][:, rows], other.exact[0][:, rows]).mean(-1) / np.log(2)
        change[number, : one.heads] = np.clip(found, 0, 1)
    return change


def _score_change(before: HeadScores, after: HeadScores) -> PerHead:
    names = [name for name in RULES if name in before.scores and name in after.scores]
    far = np.stack([np.abs(after.scores[name] - before.scores[name]) for name in names])
    return np.where(np.isfinite(far).any(0), np.nan_to_num(far, nan=-1.0).max(0), np.nan)
