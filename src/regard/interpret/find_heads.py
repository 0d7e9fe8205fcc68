"""find_heads(): find the heads of a model that do one job, with a linear readout of their weights."""

import hashlib
import math
import os
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from regard.errors import InputError, ObservationError
from regard.heads.head_set import HeadSet, ReadoutScore
from regard.heads.jobs import LOCAL_WINDOW, HeadJob, check_job
from regard.heads.patterns import is_causal
from regard.heads.scores import PerHead, head_number, ranked
from regard.hub import Loaded
from regard.interpret.head_examples import HeadExample, make_examples, read_examples
from regard.interpret.head_measures import Features, layers_of_stream, measured, per_head
from regard.interpret.head_scores import Probe, default_texts, probe_scores, text_scores, watched
from regard.interpret.look import prepare
from regard.interpret.model_loading import load_model
from regard.interpret.source_examples import make_source_examples, read_source_examples
from regard.interpret.source_readout import ABLATIONS, find_source_heads
from regard.interpret.watch import watch
from regard.record.tokenizer_adapter import adapt

__all__ = ["as_loaded", "find_heads", "fingerprint"]

_COUNT = {"retrieval": 24, "sources": 32}  # examples that the program makes, of some 200 tokens each
_IN_ONE_ROW = ("induction", "previous", "sink", "local")  # which examples show in one row, and head_scores in all
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

    The heads for sources are chosen by their readout: a regression of the log-probability of the answer, in prompts
    that keep each document with probability 1/2, on the heads' weights on the documents that are kept, without
    negative coefficients and with a ridge (after AT2, Cohen-Wang et al. 2025, arXiv:2504.13752).

    Args:
        model: A model of transformers or regard with its `tokenizer`, a loaded model, or the name of a model.
        tokenizer: The tokenizer of a model that is given as a module; for two, a pair (source, target).
        job: The job.
        examples: A file of JSON Lines instead of the program's examples, at least 10: for retrieval and sources with
            the keys `documents`, `question` and `answer` (and for sources, where it is known, `source`, the number of
            the right document), for alignment with `source`, `target` and `pairs` ("cat>貓, dog>狗"), else with `text`.
            The measure is then that of the first half of them, for previous, sink, local and induction in one row of
            each, drawn by the seed: give many.
        num_heads: How many of the heads with the largest measure; by default all above the job's threshold, for sources
            those with at least a hundredth of the sum of the readout's weights.
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
    if num_heads is not None and (type(num_heads) is not int or num_heads < 1):
        raise InputError(f"`num_heads` must be a whole number from 1, got {num_heads!r}")
    if examples is not None and not isinstance(examples, (str, os.PathLike)):
        raise InputError(f"`examples` must be the name of a file of JSON Lines, got {type(examples).__name__}")
    say(f"{loaded.name} does {job}: the examples")
    if job == "sources":
        return _for_sources(loaded, chosen, examples, num_heads, seed, say)
    if examples is None:
        made = make_examples(job, loaded, _COUNT.get(job, 32), seed=seed, causal=causal)
    else:
        made = read_examples(job, examples, loaded, seed=seed, causal=causal)
    draw = np.random.default_rng(seed)
    made = _usable(made, draw)
    seen = measured(loaded, made, say)
    half = len(made) // 2
    own = examples is None and job in _IN_ONE_ROW
    measure = _on_texts(job, loaded) if own else per_head(seen.heads, seen.right[:half].mean(0))
    heads = _above(measure, chosen, job, loaded.name, num_heads)
    at = [seen.heads.index(one) for one in heads]
    features, labels = seen.features[:, :, at], seen.labels
    weights, correct = _readout(features, labels, half)
    shuffled = _shuffled(features, labels, half, draw)
    return HeadSet(
        heads=heads,
        weights=tuple(weights.tolist()),
        job=job,
        stream=seen.stream,
        head_scores=tuple(float(measure[one]) for one in heads),
        method=_method(chosen, examples, len(made), seed, num_heads, job=job, own=own),
        model=loaded.name,
        fingerprint=fingerprint(loaded.model),
        held_out=ReadoutScore.of(correct, len(made) - half),
        shuffled_labels=ReadoutScore.of(shuffled, len(made) - half),
        chance=1 / features.shape[1],
    )


def _for_sources(
    loaded: Loaded,
    chosen: HeadJob,
    examples: str | os.PathLike[str] | None,
    num_heads: int | None,
    seed: int,
    say: Callable[[str], None],
) -> HeadSet:
    """Return the heads whose weights predict what answers lose without documents."""
    if examples is None:
        made = make_source_examples(loaded, _COUNT["sources"], seed=seed)
    else:
        made = read_source_examples(examples, loaded)
    found = find_source_heads(loaded, made, num_heads=num_heads, seed=seed, say=say)
    where = "" if examples is None else f" of {os.fspath(examples)}"
    return HeadSet(
        **found,
        job="sources",
        method=(
            f"a regression, without negative weights, of what answers lose in {ABLATIONS} prompts that keep each "
            f"document with probability 1/2, on half of {len(made)} examples{where}, seed {seed}; head_scores: "
            f"{chosen.test.formula}"
        ),
        model=loaded.name,
        fingerprint=fingerprint(loaded.model),
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
    if not isinstance(model, nn.Module):
        if tokenizer is not None and tokenizer is not getattr(model, "tokenizer", None):
            raise InputError(
                f"`tokenizer` goes with a module, and {getattr(model, 'name', model)} has its own: leave it out, and "
                f"give what follows by name (job=, prompt=); got {type(tokenizer).__name__} {tokenizer!r:.60}"
            )
        return load_model(model) if isinstance(model, str) else model
    if tokenizer is None or isinstance(tokenizer, str):
        raise InputError(
            f"`tokenizer` must be that of the model, got {tokenizer!r:.60}: find_heads(model, tokenizer, job)"
        )
    config = getattr(model, "config", None)
    if config is None:
        raise InputError(
            f"`model` must be a model of transformers or regard, with a `config`, got {type(model).__name__}"
        )
    name = str(getattr(config, "_name_or_path", "") or type(model).__name__)
    source, target = tokenizer if isinstance(tokenizer, tuple) else (tokenizer, None)
    for side in (source,) if target is None else (source, target):
        adapt(side)  # refuses what is no tokenizer before the model runs
    kind: Any = "encoder-decoder" if getattr(config, "is_encoder_decoder", False) else "encoder"
    return Loaded(name, model.eval(), source, kind, target)


def _is_causal(loaded: Loaded) -> bool:
    """Return whether no query of a short text attends to a later key."""
    prepared = prepare("one two three four five", model=loaded)
    with watch(loaded.model, keep="weights") as seen:
        prepared.run()
    return all(map(is_causal, layers_of_stream(seen.records[0], "text")))


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


def _on_texts(job: str, loaded: Loaded) -> PerHead:
    """Return the measure of a job on the inputs of `regard.head_scores`."""
    if job == "induction":
        return probe_scores(loaded, Probe())["induction"]
    if job == "local":
        return _local(loaded)
    records = [watched(prepare(text, model=loaded)) for text in default_texts(loaded)]
    return text_scores(*records)[job]


def _local(loaded: Loaded) -> PerHead:
    """Return the mean mass on the nearest keys, over the rows that see four times as many."""
    prepared = prepare(default_texts(loaded)[0], model=loaded)
    with watch(loaded.model, keep="weights") as seen:
        prepared.run()
    record = seen.records[0]
    found: dict[tuple[int, int], float] = {}
    for layer in layers_of_stream(record, "text"):
        weights, n = layer.exact, layer.queries
        assert weights is not None
        i, j = np.arange(n)[:, None], np.arange(layer.keys)[None]
        near = np.abs(i - j) < LOCAL_WINDOW
        rows = [row for row in range(4 * LOCAL_WINDOW, n) if not prepared.tokens["text"][0][row].special]
        means = (weights[0] * near).sum(-1, dtype=np.float64)[:, rows].mean(-1)
        found |= {(record.number(layer), head): float(one) for head, one in enumerate(means)}
    return per_head(list(found), np.array(list(found.values())))


def _above(measure: PerHead, chosen: HeadJob, job: str, name: str, count: int | None) -> tuple[tuple[int, int], ...]:
    best = ranked(measure)
    found = best[:count] if count is not None else [one for one in best if one[2] > chosen.threshold]
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


def _method(
    chosen: HeadJob, examples: object, count: int, seed: int, num_heads: int | None, *, job: str, own: bool
) -> str:
    where = "the inputs of head_scores" if own else "half of the examples"
    if not own and job in _IN_ONE_ROW:
        where = f"one row, drawn by the seed, of each in {where}"
    limit = f"above {chosen.threshold}" if num_heads is None else f"the {num_heads} largest"
    made = f"{count} examples, seed {seed}" if examples is None else f"{count} examples of {os.fspath(str(examples))}"
    return f"{chosen.test.formula}, {limit}, on {where}; {made}"
