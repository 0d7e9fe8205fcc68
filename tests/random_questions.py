"""Random questions: a model watched on a text, and weights asked of it through every door.

    question = drawn(17)             question 17: what runs, and how it is watched
    ledger = check(question)         what each door has said of it: `ledger.verdicts()`, `ledger.mistakes`

A question is of a bundled model, a tiny one of transformers, its generation, a model of regard.models, or bare calls
(question_runs.py); kept as "maps", "qk" or "weights"; of all heads and queries or of chosen ones. It is asked for
weights, rectangles, maps, statistics, spans and words, in Python, of the atlas read back, of exported tables, of the
page's server and of a page in a file, with and without sinks, by `look` and its command, and by `tap`
(question_doors.py). Each answer must be that of dense weights in float64, or be refused where a record has none.
"""

import dataclasses
import functools
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import regard
from question_doors import DOORS, SHORT, Held, Ledger, Watched, expected_of
from question_runs import KINDS, Run, drawn_run, is_here
from regard.observe import statistics
from regard.record.layers import stream_of

__all__ = ["Question", "check", "described", "drawn"]

SHARES = {"bundled": 0.2, "tiny": 0.32, "generation": 0.1, "own": 0.1, "plain": 0.28}
assert SHARES.keys() == KINDS.keys()


@dataclass(frozen=True)
class Question:
    """What is drawn before anything runs; what runs is drawn from the same number."""

    number: int
    kind: str
    keep: str = "maps"
    chooses: str = ""  # "heads", "queries" or "last"
    has_spans: bool = False
    has_statistics: bool = False
    doors: tuple[str, ...] = tuple(DOORS)


def drawn(number: int, kinds: Sequence[str] = tuple(KINDS)) -> Question:
    """Draw question `number`, of one of these kinds."""
    rng = np.random.default_rng([number, 48])
    shares = np.array([SHARES[kind] for kind in kinds])
    kind = str(rng.choice(list(kinds), p=shares / shares.sum()))
    chooses = str(rng.choice(["", "", "", "heads", "queries", "last"]))
    costly = {"command": 0.4, "look": 0.6, "page in a file": 0.6, "csv and npz": 0.6}
    return Question(
        number, kind, str(rng.choice(["maps", "qk", "weights"], p=[0.4, 0.4, 0.2])), chooses,
        bool(rng.random() < 0.5), bool(rng.random() < 0.5),
        tuple(door for door in DOORS if rng.random() < costly.get(door, 1)),
    )  # fmt: skip


def check(question: Question) -> Ledger:
    """Ask a question through its doors; all kinds but "plain" need the bundled models (`question_runs.is_here`)."""
    rng = np.random.default_rng([question.number, 49])
    run = drawn_run(rng, question.kind)
    ledger = Ledger()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder, _models_stay_loaded():
        warnings.simplefilter("ignore")
        watched = _watched(question, run, rng, Path(folder), ledger)
        for name in question.doors if watched is not None else ():
            own = np.random.default_rng([question.number, 50, list(DOORS).index(name)])
            try:
                DOORS[name](dataclasses.replace(watched, rng=own), ledger)
            except Exception as problem:
                ledger.wrong(name, f"{type(problem).__name__}: {problem}")
    return ledger


def described(question: Question) -> str:
    """A question and what runs, as they are drawn.

    >>> described(Question(3, "plain"))
    "Question(number=3, kind='plain')"
    """
    values = ((field.name, getattr(question, field.name), field.default) for field in dataclasses.fields(question))
    return f"Question({', '.join(f'{name}={value!r}' for name, value, default in values if value != default)})"


def _models_stay_loaded() -> Any:
    """Let a bundled model be read once for all commands."""
    from regard.models import as_transformers

    if not is_here("bundled") or hasattr(as_transformers.load_bundled, "cache_info"):
        return mock.patch.dict({}, {})
    return mock.patch.object(as_transformers, "load_bundled", _cached(as_transformers.load_bundled))


@functools.cache
def _cached(load: Any) -> Any:
    return functools.cache(load)


def _watched(question: Question, run: Run, rng: np.random.Generator, folder: Path, ledger: Ledger) -> Watched | None:
    """Watch a run, and pair its layers with their truth; None where that is refused by name."""
    some = next(iter(run.truth.values())).weights
    options: dict[str, Any] = {"keep": question.keep}
    if question.chooses == "heads":
        numbers = sorted({site[2] for site in run.truth})
        options["heads"] = [
            (number, int(head))
            for number in dict.fromkeys(int(rng.choice(numbers)) for _ in range(2))
            for head in sorted({int(rng.integers(some.shape[1])) for _ in range(2)})
        ]
    elif run.what.get("layers") is not None:
        options["layers"] = run.what["layers"]
    is_behind = run.is_plain and some.shape[2] != some.shape[3]  # of a bare call, where queries stand is not known
    if question.chooses == "queries" and not is_behind:
        which = rng.integers(0, some.shape[2], 1 + some.shape[2] // 2)
        options["queries"] = sorted({int(one) for one in which})
    elif question.chooses == "last" and not is_behind:
        options["queries"] = "last"
    spans = {"first": (0, 2), "middle": (1, 5), "some": [0, 3, 7], "rest": (5, None)} if question.has_spans else None
    picks = _statistics(rng, positions=not is_behind) if question.has_statistics else {}
    names = {"tokenizer": run.tokenizer} if run.tokenizer is not None else {"tokens": run.tokens}
    may_refuse = question.keep == "qk" and (not run.keeps_qk or question.chooses == "heads")
    made = [_made(name, kind) for name, kind in picks.items()]
    observation = None
    with ledger.asks("watch", f"watch {options}", held=not may_refuse):
        block = regard.watch(run.model, **options, **names, keys=spans, statistics=made)
        with block as observation:
            run.call()
    if observation is None or "watch" in ledger.refusals or "watch" in ledger.mistakes:
        return None
    if len(observation) != 1:
        ledger.wrong("watch", f"one pass is {len(observation)} records: {[list(one.layers) for one in observation]}")
        return None
    held = _held(question, run, observation, options, ledger)
    if held is None:
        return None
    everything = {one.index: run.truth[_site(run, one.layer, one.index)] for one in held}
    return Watched(
        run, observation, held, rng, options, spans, folder,
        picks={"statistics": picks, "all": everything},
    )  # fmt: skip


def _site(run: Run, layer: Any, index: int) -> Any:
    if not run.is_plain:
        return layer.query_tokens, layer.key_tokens, layer.number
    return "", "", index if layer.number is None else layer.number


def _held(question: Question, run: Run, seen: Any, options: Any, ledger: Ledger) -> list[Held] | None:
    found = []
    for index, layer in enumerate(seen.layers):
        site = _site(run, layer, index)
        if site not in run.truth:
            ledger.wrong("watch", f"{layer!r} is no site of the model, which has {list(run.truth)}")
            return None
        dense = run.truth[site]
        rows = np.ones(dense.weights.shape[2], bool)
        if isinstance(options.get("queries"), list):
            rows = np.isin(np.arange(len(rows)), options["queries"])
        elif options.get("queries") == "last":
            rows[: len(rows) - 1 if run.prompt is None else run.prompt - 1] = False
        weights, room = expected_of(dense, layer.head_numbers, rows)
        if run.is_plain and layer.keys < weights.shape[3] and not weights[..., layer.keys :].any():
            weights = weights[..., : layer.keys]  # later keys that no query sees are those of a cache that is not full
        if layer.entropy.shape != weights.shape[:3] or layer.keys != weights.shape[3]:
            ledger.wrong("watch", f"{layer!r} has other sizes than {weights.shape}")
            return None
        if question.keep == "qk":
            room = 2 * room  # the log-sum-exps of rows are of scores that were rounded apart from those of a tile
        whole = question.keep != "maps" or max(layer.queries, layer.keys) <= SHORT
        found.append(Held(index, layer, weights, room, rows, whole))
    expected = {site for site in run.truth if _is_chosen(site, options)}
    if len(found) != len(expected):
        ledger.wrong("watch", f"{len(found)} layers were seen, and {len(expected)} ran")
        return None
    assert all(stream_of(one.layer) for one in found)
    return found


def _is_chosen(site: Any, options: Any) -> bool:
    if "heads" in options:
        return site[2] in {layer for layer, _ in options["heads"]}
    return options.get("layers") is None or site[2] in options["layers"]


def _statistics(rng: np.random.Generator, *, positions: bool) -> dict[str, Any]:
    """Statistics by name, and what they are of."""
    rows, columns = ([int(one) for one in rng.integers(0, 12, 2)] for _ in range(2))
    start, left = (int(one) for one in rng.integers(0, 5, 2))
    every = {
        "confidence": "confidence", "rows": ("rows", rows), "columns": ("columns", columns),
        "rectangle": ("rectangle", (slice(start, start + 6), slice(left, left + 9))),
    }  # fmt: skip
    every |= {name: name for name in ("distance", "self", "previous")} if positions else {}
    return {name: every[name] for name in rng.choice(list(every), 3, replace=False)}


def _made(name: str, kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    which, places = kind
    made = {"rows": statistics.Rows, "columns": statistics.Columns}
    return statistics.Rectangle(*places) if which == "rectangle" else made[which](places)
