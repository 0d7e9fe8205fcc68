"""find_heads(): find the heads of a model that do one job, with a linear readout of their weights."""

import hashlib
import math
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from regard.capture.layers import stream_of
from regard.capture.records import Layer, Record
from regard.errors import InputError, ObservationError
from regard.heads.head_set import HeadSet, ReadoutScore
from regard.heads.jobs import LOCAL_WINDOW, HeadJob, check_job
from regard.heads.patterns import is_causal
from regard.heads.scores import PerHead, head_number, ranked
from regard.interpret.bundled import Loaded
from regard.interpret.head_examples import HeadExample, make_examples, read_examples
from regard.interpret.head_scores import Probe, default_texts, probe_scores, text_scores, watched
from regard.interpret.look import Prepared, prepare
from regard.interpret.model_loading import load_model
from regard.interpret.source_examples import make_source_examples, read_source_examples
from regard.interpret.watch import watch

__all__ = ["as_loaded", "find_heads", "fingerprint"]

Features = npt.NDArray[np.float64]  # (examples, candidates, heads)
_COUNT = {"retrieval": 24, "sources": 32}  # examples that the program makes; each of retrieval has some 200 tokens
_SHUFFLES = 20
_STEPS, _RIDGE = 300, 1e-3  # of the logistic regression
_SAMPLED = 1024  # numbers of a tensor that the fingerprint sees


def find_heads(
    model: nn.Module | Loaded | str,
    tokenizer: Any = None,
    job: str = "retrieval",
    *,
    examples: str | os.PathLike[str] | None = None,
    num_heads: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> HeadSet:
    """Find the heads of a model that do one job, and fit a linear readout of their weights.

    The jobs are "sources", "retrieval", "induction", "previous", "alignment", "sink" and "local". A head is chosen by
    its measure, the mean weight that it gives the right keys (`regard.heads.JOBS` has formulas, thresholds and papers;
    those of previous, induction and sink are the scores of `regard.head_scores`, on the same inputs). A readout, a
    weight for each head, is then fitted on half of the examples, so that the candidate with the largest weighted sum is
    the right one (multinomial logistic regression), and scored on the other half. The same is done with shuffled
    labels, 20 times: there the readout must be at chance, and `HeadSet.control_failed` shows if it is not, because the
    right candidate can be told without the model.

    Args:
        model: A model of transformers or regard with its `tokenizer`, a loaded model, or the name of a model.
        tokenizer: The tokenizer of a model that is given as a module; for two, a pair (source, target).
        job: The job.
        examples: A file of JSON Lines instead of the program's examples, at least 10: for retrieval and sources with
            the keys `documents`, `question` and `answer` (and for sources `source`, the number of the right document),
            for alignment with `source`, `target` and `pairs` ("cat>貓, dog>狗"),
            else with `text`. The measure is then that of the first half of them.
        num_heads: How many of the heads with the largest measure; by default all above the job's threshold, for sources
            the best three of them.
        seed: Seed of the program's examples and of the shuffles.
        progress: Called with one line of text for each step.

    Raises:
        InputError: There is no such job, or the model cannot have heads for it; the examples are too few, or no such.
        ObservationError: No head is above the threshold.
    """
    loaded = as_loaded(model, tokenizer)
    causal = loaded.kind != "encoder-decoder" and _is_causal(loaded)
    kind = loaded.kind if loaded.kind == "encoder-decoder" else "decoder" if causal else "encoder"
    chosen = check_job(job, kind, loaded.name)
    say = progress or (lambda _: None)
    if num_heads is not None and num_heads < 1:
        raise InputError(f"`num_heads` must be at least 1, got {num_heads}")
    say(f"{loaded.name} does {job}: the examples")
    if job == "sources" and examples is None:
        made = make_source_examples(loaded, _COUNT[job], seed=seed)
    elif job == "sources" and examples is not None:
        made = read_source_examples(examples, loaded)
    elif examples is None:
        made = make_examples(job, loaded, _COUNT.get(job, 32), seed=seed, causal=causal)
    else:
        made = read_examples(job, examples, loaded, seed=seed, causal=causal)
    draw = np.random.default_rng(seed)
    made = _usable(made, draw)
    seen = _measured(loaded, made, say)
    half = len(made) // 2
    own = examples is None and job in ("induction", "previous", "sink", "local")
    if own:
        measure = _on_texts(job, loaded)
    else:
        measure = _stack(seen.heads, (seen.margins if job == "sources" else seen.right)[:half].mean(0))
    heads = _above(measure, chosen, job, loaded.name, num_heads)
    at = [seen.heads.index(one) for one in heads]
    features, labels = seen.features[:, :, at], seen.labels
    weights, correct = _readout(features, labels, half)
    shuffled = _shuffled(features, labels, half, draw)
    threshold, error_rate = _calibrated(loaded, made, features @ weights, at, weights, say)
    return HeadSet(
        heads=heads,
        weights=tuple(weights.tolist()),
        job=job,
        stream=seen.stream,
        head_scores=tuple(float(measure[one]) for one in heads),
        method=_method(chosen, examples, len(made), seed, num_heads, own=own),
        model=loaded.name,
        fingerprint=fingerprint(loaded.model),
        held_out=ReadoutScore.of(correct, len(made) - half),
        shuffled_labels=ReadoutScore.of(shuffled, len(made) - half),
        chance=1 / features.shape[1],
        threshold=threshold,
        error_rate=error_rate,
    )


def fingerprint(model: nn.Module) -> str:
    """Return a fingerprint of a model: the names and shapes of its tensors, and up to 1,024 numbers of each, evenly
    spaced, to the precision of bfloat16, so that a model loaded in another precision is the same model.
    """
    found = hashlib.sha256()
    for name, one in sorted(model.state_dict().items()):
        flat = one.detach().flatten()
        some = flat[:: max(1, math.ceil(flat.numel() / _SAMPLED))]
        some = some.to(torch.bfloat16) if some.is_floating_point() else some
        numbers = some.contiguous().cpu().view(torch.uint8).numpy()
        found.update(f"{name} {tuple(one.shape)} {zlib.crc32(numbers)}\n".encode())
    return found.hexdigest()[:16]


def as_loaded(model: nn.Module | Loaded | str, tokenizer: Any) -> Loaded:
    """Return a model given as a module with its tokenizer, loaded, or by name, as a loaded one."""
    if isinstance(model, str):
        return load_model(model)
    if not isinstance(model, nn.Module):
        return model
    if tokenizer is None:
        raise InputError("`tokenizer` must be that of the model: find_heads(model, tokenizer, job)")
    config = getattr(model, "config", None)
    if config is None:
        raise InputError(
            f"`model` must be a model of transformers or regard, with a `config`, got {type(model).__name__}"
        )
    name = str(getattr(config, "_name_or_path", "") or type(model).__name__)
    source, target = tokenizer if isinstance(tokenizer, tuple) else (tokenizer, None)
    kind: Any = "encoder-decoder" if getattr(config, "is_encoder_decoder", False) else "encoder"
    return Loaded(name, model.eval(), source, kind, target)


def _is_causal(loaded: Loaded) -> bool:
    """Return whether no query of a short text attends to a later key."""
    prepared = prepare("one two three four five", model=loaded)
    with watch(loaded.model, keep="weights") as seen:
        prepared.run()
    return all(map(is_causal, _of_stream(seen.records[0], "text")))


def _usable(made: list[HeadExample], draw: np.random.Generator) -> list[HeadExample]:
    """Return examples with equally many candidates, in their order: of all, as many as the fewest have."""
    if not 10 <= len(made) <= 1000:
        raise InputError(f"`examples` must be from 10 to 1,000, got {len(made)}: 10 to 50 are usual")
    fewest = min(len(one.candidates) for one in made)
    cut = []
    for one in made:
        wrong = draw.permutation([at for at in range(len(one.candidates)) if at != one.label])[: fewest - 1]
        kept = sorted([one.label, *wrong.tolist()])
        few = tuple(one.candidates[at] for at in kept)
        cut.append(HeadExample(one.inputs, one.rows, one.right, few, kept.index(one.label), one.absent))
    return cut


@dataclass(frozen=True, eq=False)
class _Seen:
    """The weights of every head: on the right keys (examples, heads), and on each candidate (examples, candidates,
    heads).
    """

    heads: list[tuple[int, int]]
    stream: str | tuple[str, str]
    right: npt.NDArray[np.float64]
    features: Features
    labels: npt.NDArray[np.int_]

    @property
    def margins(self) -> npt.NDArray[np.float64]:
        """The mass on the right candidate minus the largest on another, (examples, heads)."""
        others = self.features.copy()
        others[np.arange(len(others)), self.labels] = -np.inf
        return np.asarray(self.right - others.max(1))


def _measured(loaded: Loaded, made: Sequence[HeadExample], say: Callable[[str], None]) -> _Seen:
    stream = ("target", "source") if loaded.kind == "encoder-decoder" else "text"
    heads: list[tuple[int, int]] = []
    right, features = [], []
    for number, one in enumerate(made, 1):
        say(f"{loaded.name} reads example {number} of {len(made)}")
        with watch(loaded.model, keep="weights") as seen:
            Prepared(loaded, dict(one.inputs), {}).run()
        record = seen.records[0]
        layers = _of_stream(record, stream)
        weights = np.concatenate([layer.weights[0][:, list(one.rows)] for layer in layers if layer.weights is not None])
        heads = [(record.number(layer), head) for layer in layers for head in range(layer.heads)]
        right.append(_mass(weights, one.right))
        features.append([_mass(weights, keys) for keys in one.candidates])
    return _Seen(heads, stream, np.array(right), np.array(features), np.array([one.label for one in made]))


def _of_stream(record: Record, stream: str | tuple[str, str]) -> list[Layer]:
    found = [layer for layer in record.layers if stream_of(layer) == stream]
    if not found:
        there = ", ".join(sorted({str(stream_of(layer)) for layer in record.layers}))
        raise ObservationError(f"the model must attend in the stream {stream}, and was seen to attend in {there}")
    return found


def _mass(weights: npt.NDArray[Any], keys: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    """Return the mean over rows of the weight on each row's keys, of shape (heads,)."""
    each = [weights[:, row, list(some)].sum(-1, dtype=np.float64) for row, some in enumerate(keys)]
    return np.asarray(np.mean(each, axis=0))


def _on_texts(job: str, loaded: Loaded) -> PerHead:
    """Return the measure of a job on the inputs of `regard.head_scores`."""
    if job == "induction":
        return probe_scores(loaded, Probe())["induction"]
    if job == "local":
        return _local(loaded)
    records = [watched(prepare(text, model=loaded)) for text in default_texts(loaded)]
    return text_scores(*records)["first" if job == "sink" else job]


def _local(loaded: Loaded) -> PerHead:
    """Return the mean mass on the nearest keys, over the rows that see four times as many."""
    prepared = prepare(default_texts(loaded)[0], model=loaded)
    with watch(loaded.model, keep="weights") as seen:
        prepared.run()
    record = seen.records[0]
    found: dict[tuple[int, int], float] = {}
    for layer in _of_stream(record, "text"):
        weights, n = layer.exact, layer.queries
        assert weights is not None
        i, j = np.arange(n)[:, None], np.arange(layer.keys)[None]
        near = np.abs(i - j) < LOCAL_WINDOW
        rows = [row for row in range(4 * LOCAL_WINDOW, n) if not prepared.tokens["text"][0][row].special]
        means = (weights[0] * near).sum(-1, dtype=np.float64)[:, rows].mean(-1)
        found |= {(record.number(layer), head): float(one) for head, one in enumerate(means)}
    return _stack(list(found), np.array(list(found.values())))


def _stack(heads: list[tuple[int, int]], values: npt.NDArray[np.float64]) -> PerHead:
    """Return one number per head as (layers, heads), NaN where there is none."""
    found = np.full((1 + max(layer for layer, _ in heads), 1 + max(head for _, head in heads)), np.nan)
    for (layer, head), value in zip(heads, values.tolist(), strict=True):
        found[layer, head] = value
    return found


def _above(measure: PerHead, chosen: HeadJob, job: str, name: str, count: int | None) -> tuple[tuple[int, int], ...]:
    best = ranked(measure)
    found = best[:count] if count is not None else [one for one in best if one[2] > chosen.threshold][: chosen.few]
    if not found:
        layer, head, most = best[0]
        raise ObservationError(
            f"no head of {name} does {job}: its measure must be above {chosen.threshold}, and the largest is "
            f"{most:.2f}, of {head_number(layer, head)}; take the best with `num_heads` (--top)"
        )
    return tuple((layer, head) for layer, head, _ in found)


def _readout(features: Features, labels: npt.NDArray[np.int_], half: int) -> tuple[npt.NDArray[np.float64], int]:
    """Return the weights fitted on the first half, with Σ |w| = 1, and how many of the second half they get right."""
    weights = _fit(features[:half], labels[:half])
    scores = features[half:] @ weights
    return weights, int((scores.argmax(1) == labels[half:]).sum())


def _fit(features: Features, labels: npt.NDArray[np.int_]) -> npt.NDArray[np.float64]:
    """Fit a multinomial logistic regression by gradient ascent; a head alone keeps the weight 1."""
    heads = features.shape[2]
    weights = np.zeros(heads)
    right = features[np.arange(len(labels)), labels].mean(0)
    rate = 4.0 / max(float((features**2).sum(2).max()), 1e-9)  # below 2 / the largest curvature
    for _ in range(_STEPS):
        scores = features @ weights
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        expected = np.einsum("ec,ech->h", shares, features) / len(labels)
        weights += rate * (right - expected - _RIDGE * weights)
    size = np.abs(weights).sum()
    return weights / size if size > 0 else np.full(heads, 1 / heads)


def _shuffled(features: Features, labels: npt.NDArray[np.int_], half: int, draw: np.random.Generator) -> float:
    """Return how many held-out examples a readout of shuffled labels gets right, as the mean over 20 shuffles."""
    found = []
    for _ in range(_SHUFFLES):
        mixed = np.concatenate([draw.permutation(labels[:half]), draw.permutation(labels[half:])])
        found.append(_readout(features, mixed, half)[1])
    return float(np.mean(found))


def _calibrated(
    loaded: Loaded,
    made: Sequence[HeadExample],
    present: npt.NDArray[np.float64],
    at: list[int],
    weights: npt.NDArray[np.float64],
    say: Callable[[str], None],
) -> tuple[float | None, float | None]:
    """Return the threshold of the largest score that best tells examples from those without what makes them right, on
    the first half of the pairs, and its error rate on the second; None without such pairs.
    """
    absent = [one.absent for one in made if one.absent is not None]
    if len(absent) < len(made):
        return None, None
    there, gone = present.max(1), (_measured(loaded, absent, say).features[:, :, at] @ weights).max(1)
    half = len(made) // 2
    ends = np.sort(np.concatenate([there[:half], gone[:half]]))
    middles = (ends[1:] + ends[:-1]) / 2
    errors = np.array([(there[:half] < one).mean() + (gone[:half] >= one).mean() for one in middles])
    best = np.flatnonzero(errors == errors.min())
    threshold = float(middles[best[len(best) // 2]])
    return threshold, float(((there[half:] < threshold).mean() + (gone[half:] >= threshold).mean()) / 2)


def _method(chosen: HeadJob, examples: object, count: int, seed: int, num_heads: int | None, *, own: bool) -> str:
    where = "the inputs of head_scores" if own else "half of the examples"
    limit = f"above {chosen.threshold}" if num_heads is None else f"the {num_heads} largest"
    made = f"{count} examples, seed {seed}" if examples is None else f"{count} examples of {os.fspath(str(examples))}"
    return f"{chosen.test.formula}, {limit}, on {where}; {made}"
