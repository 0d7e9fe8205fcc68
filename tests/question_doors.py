"""The ways in which a recorded weight can be asked for, each compared with the dense weights in float64.

A door is a function of what was watched (`Watched`) and of a `Ledger`, which keeps for each door whether all of its
answers were right, whether it refused by name what a record does not hold, and what was wrong: another number, a number
where a record holds none, or a refusal of what it holds.
"""

import asyncio
import base64
import contextlib
import csv
import io
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import numpy as np

import regard
from oracles import pooled
from question_runs import ROOM, Dense, Run
from regard.cli import main
from regard.errors import InputError, ObservationError
from regard.heads.patterns import find_sinks, head_patterns
from regard.record.layers import Layer, stream_of
from regard.record.tiles import Matrix
from regard.record.tokens import Word, content_words, is_word
from regard.render.word_alignment import align

__all__ = ["DOORS", "Held", "Ledger", "Watched"]

Array = np.ndarray[Any, np.dtype[Any]]
SHORT, STRONGEST = 512, 8
FLOAT32 = 2.0**-23  # a step of float32, relative
STORED = 2.0**-11  # of pooled maps and strongest keys in an atlas, relative
ENDPOINTS_SIDE, COMPUTED_SIDE = 256, 512


class Ledger:
    """What each door has said."""

    def __init__(self) -> None:
        self.mistakes: dict[str, list[str]] = {}
        self.right: dict[str, int] = {}
        self.refusals: dict[str, list[str]] = {}
        self.worst: dict[str, float] = {}

    @contextlib.contextmanager
    def asks(self, door: str, what: str, *, held: bool = True) -> Iterator[None]:
        """Judge one answer; where `held` is false, the record has no answer, and it may be refused by name."""
        before = len(self.mistakes.get(door, ()))
        try:
            yield
        except (InputError, ObservationError) as refusal:
            if held:
                self.wrong(door, f"{what} is refused, and held: {refusal}")
            else:
                self.refusals.setdefault(door, []).append(str(refusal))
            return
        except Exception as problem:
            self.wrong(door, f"{what}: {type(problem).__name__}: {problem}")
            return
        if len(self.mistakes.get(door, ())) == before:
            self.right[door] = self.right.get(door, 0) + 1

    def wrong(self, door: str, mistake: str) -> None:
        """Note a mistake."""
        self.mistakes.setdefault(door, []).append(mistake)

    def number(self, door: str, what: str, answer: Any, expected: Any, room: Any, *, unknown: Any = False) -> None:
        """Compare numbers; NaN stands for an unknown one, and may only where `unknown` says so."""
        answer, expected = np.asarray(answer, np.float64), np.asarray(expected, np.float64)
        if answer.shape != expected.shape:
            self.wrong(door, f"{what} has the shape {answer.shape}, not {expected.shape}")
            return
        blank = np.isnan(answer)
        if (blank & ~np.broadcast_to(unknown, blank.shape) & ~np.isnan(expected)).any():
            self.wrong(door, f"{what} is unknown, and held")
            return
        with np.errstate(invalid="ignore"):
            errors = np.where(blank, 0, np.abs(answer - expected) / (room + FLOAT32 * np.abs(expected)))
        if not errors.size:
            return
        worst = float(np.nan_to_num(errors, nan=np.inf).max())
        if worst > 1:
            at = np.unravel_index(np.nan_to_num(errors, nan=np.inf).argmax(), errors.shape)
            place = f" at {tuple(map(int, at))}" if at else ""
            self.wrong(
                door, f"{what}{place}: {answer[at]:.9g}, not {expected[at]:.9g} ({worst:.2g} of the error allowed)"
            )
        else:
            self.worst[door] = max(self.worst.get(door, 0.0), worst)

    def same(self, door: str, what: str, answer: Any, other: Any) -> None:
        """Compare to the bit."""
        if not np.array_equal(np.asarray(answer), np.asarray(other), equal_nan=np.asarray(answer).dtype.kind == "f"):
            self.wrong(door, f"{what} is not the same to the bit")

    def verdicts(self) -> dict[str, str]:
        """Return "right", "refused" or "wrong" by door."""
        found = dict.fromkeys(self.refusals, "refused") | dict.fromkeys(self.right, "right")
        return found | dict.fromkeys(self.mistakes, "wrong")


@dataclass(frozen=True, eq=False)
class Held:
    """A recorded layer, with the weights that it should have: 0 in heads and rows that were not chosen."""

    index: int
    layer: Layer
    weights: Array  # (batch, heads, queries, keys)
    room: Array  # (batch, heads, queries)
    rows: Array  # which queries were recorded
    whole: bool  # whether every weight is held

    def known(self, b: int, h: int) -> Array:
        """Which weights are among the strongest of their row, ties left out, or known to be 0."""
        weights, room = self.weights[b, h], self.room[b, h][:, None]
        if self.whole or self.layer.keys <= STRONGEST:
            return np.ones_like(weights, bool)
        least = np.sort(weights, -1)[:, -STRONGEST, None]
        return (weights > least + 2 * room) | (np.sort(weights, -1)[:, -STRONGEST, None] == 0)


@dataclass(frozen=True, eq=False)
class Watched:
    """A run that was watched: what was seen, and what each of its layers should hold."""

    run: Run
    seen: Any
    held: Sequence[Held]
    rng: np.random.Generator
    options: Mapping[str, Any]  # of the watch
    spans: Mapping[str, Any] | None
    folder: Path
    storage: float = 0.0  # the relative error of what a file keeps in 16 bits
    picks: dict[str, Any] = field(default_factory=dict)

    def places(self, count: int = 2) -> list[tuple[Held, int, int]]:
        """Some recorded heads: their layer, sequence and number."""
        found = []
        for _ in range(count):
            held = self.held[self.rng.integers(len(self.held))]
            head = int(self.rng.choice(held.layer.recorded_heads))
            found.append((held, int(self.rng.integers(held.layer.batch)), head))
        return found

    def pair(self, held: Held, b: int, h: int) -> tuple[int, int]:
        """A query, and a key that it sees more often than not."""
        rows = np.flatnonzero(held.rows)
        query = int(self.rng.choice(rows)) if len(rows) and self.rng.random() < 0.9 else held.layer.queries - 1
        row = held.weights[b, h, query]
        if self.rng.random() < 0.5 and row.any():
            return query, int(self.rng.choice(np.flatnonzero(row >= np.sort(row)[-min(12, len(row))])))
        return query, int(self.rng.integers(held.layer.keys))

    def named(self, held: Held) -> dict[str, Any]:
        """The layer as an argument: its number, a negative one, or its name."""
        record = self.seen.record
        same = [one for one in record.layers if stream_of(one) == stream_of(held.layer)]
        numbers = [record.number(one) for one in same]
        number = record.number(held.layer)
        ways: list[dict[str, Any]] = [{"layer": held.layer.name, "stream": stream_of(held.layer)}]
        if numbers.count(number) == 1:
            below = sorted(set(numbers)).index(number) - len(set(numbers))
            ways += [{"layer": one, "stream": stream_of(held.layer)} for one in (number, below)]
        return ways[self.rng.integers(len(ways))]


# The formulas ---------------------------------------------------------------------------------------------------------


def entropy(weights: Array) -> Array:
    """−Σ p ln p of each row."""
    return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)


def padding(layer: Layer, b: int) -> tuple[Array, Array]:
    """Which queries and which keys of a sequence the record has as padding (tests/observe/test_padding.py)."""
    sides = (layer.query_padding, layer.queries), (layer.key_padding, layer.keys)
    queries, keys = (np.zeros(count, bool) if one is None else np.asarray(one[b], bool) for one, count in sides)
    return queries, keys


def sinks_of(held: Held, b: int) -> tuple[dict[int, float], bool]:
    """The sinks of a layer with their shares, as docs/atlas.md has them, and whether no key is at the edge of it."""
    layer = held.layer
    hidden, padded = padding(layer, b)
    weights = held.weights[b, list(layer.recorded_heads)] * ~hidden[:, None]
    rows, count = np.flatnonzero((weights != 0).any((0, 2))), max(int((~padded).sum()), 1)
    ahead = layer.keys - layer.queries
    is_text = layer.kind == "self" and ahead >= 0
    later = np.arange(layer.keys)[None] > (np.arange(layer.queries) + ahead)[:, None]
    causal = is_text and not weights[:, later].any()
    queries = max(len(rows), 1)
    sees = np.ones((len(rows), layer.keys), bool)
    if causal:
        sees = (np.arange(layer.keys)[None] <= (rows + ahead)[:, None]) & ~padded
    by = np.maximum(sees.sum(0), 1) if causal else np.full(layer.keys, queries)
    even = (sees / np.maximum(sees.sum(1), 1)[:, None]).sum(0) / by if causal else np.full(layer.keys, 1 / count)
    share = np.where(padded, 0, weights.sum(1).mean(0) / by)
    least = np.maximum.reduce([np.full(layer.keys, 0.05), np.full(layer.keys, 4 / count), 2 * even])
    wide = by >= 0.25 * queries
    found = {int(key): float(share[key]) for key in np.flatnonzero((share > least) & wide)}
    return found, not (np.abs(share - least)[wide] < 1e-4).any()


def without(weights: Array, room: Array, sinks: Sequence[int]) -> tuple[Array, Array]:
    """p / (1 − s) of each row, 0 in the columns of the sinks, and the error allowed of it."""
    rest = 1 - weights[:, sinks].sum(-1)
    clear = rest > 1e-6
    divided = weights / np.where(clear, rest, np.inf)[:, None]
    divided[:, sinks] = 0
    allowed = room / np.where(clear, np.maximum(rest, 1e-9), 1) * (2 + len(sinks))
    # A row of which nearly nothing remains is 0, or what rounding has left of it.
    return divided, np.where(np.abs(rest) < 2e-6 + 4 * room, np.inf, allowed)


def cells(weights: Array, tall: int, broad: int, pool: str) -> Array:
    """The mean or the largest weight of each cell."""
    return pooled(weights, tall, broad, np.mean if pool == "mean" else np.max)


def word_weights(held: Held, b: int, query: Word, key: Word) -> tuple[Array, Array, Array]:
    """The weight between two words of every head, the error allowed, and whether all of its pieces are known."""
    at = np.ix_(range(held.layer.heads), list(query.pieces), list(key.pieces))
    weights = held.weights[b][at].sum(-1).mean(-1)
    known = np.array([held.known(b, h)[np.ix_(query.pieces, key.pieces)].all() for h in range(held.layer.heads)])
    return weights, held.room[b][:, list(query.pieces)].max(-1) * len(key.pieces), known


# Python ---------------------------------------------------------------------------------------------------------------


def ask_weights(watched: Watched, ledger: Ledger, door: str = "weights") -> None:
    for held, b, h in watched.places():
        where = watched.named(held)
        with ledger.asks(door, f"weights of {where}, head {h}", held=held.whole):
            answer = watched.seen.weights(**where, head=h)[b]
            ledger.number(door, f"weights of {where}, head {h}", answer, held.weights[b, h], held.room[b, h][:, None])


def ask_matrix(watched: Watched, ledger: Ledger, door: str = "matrix") -> None:
    rng = watched.rng
    for held, b, h in watched.places():
        matrix, layer = Matrix(held.layer, h, b), held.layer
        weights, room = held.weights[b, h], held.room[b, h]
        query, key = watched.pair(held, b, h)
        name = f"{layer.name}, head {h} of sequence {b}"
        with ledger.asks(door, f"weight {query}, {key} of {name}", held=held.whole):
            ledger.number(
                door, f"weight {query}, {key} of {name}", matrix.weight(query, key), weights[query, key], room[query]
            )
        with ledger.asks(door, f"row {query} of {name}", held=held.whole):
            ledger.number(door, f"row {query} of {name}", matrix.row(query), weights[query], room[query])
        with ledger.asks(door, f"column {key} of {name}", held=held.whole):
            ledger.number(door, f"column {key} of {name}", matrix.column(key), weights[:, key], room)
        step = int(2 ** rng.integers(0, 8))
        top, left = (int(rng.integers(0, -(-count // step))) * step for count in (layer.queries, layer.keys))
        rows, columns = slice(top, layer.queries), slice(left, layer.keys)
        if rng.random() < 0.5:
            rows = slice(top, min(layer.queries, top + step * int(rng.integers(1, 9))))
            columns = slice(left, min(layer.keys, left + step * int(rng.integers(1, 9))))
            # A map's bins at the edge of a rectangle within the matrix are whole.
            bins = (layer.query_bin, layer.key_bin)
            if not held.whole and any(
                one.stop % width and one.stop != count
                for one, width, count in zip((rows, columns), bins, (layer.queries, layer.keys), strict=True)
            ):
                continue
        pool = str(rng.choice(["mean", "max"]))
        what = f"tile {rows.start}:{rows.stop}, {columns.start}:{columns.stop} of {name}, step {step}, {pool}"
        coarse = step >= max(layer.query_bin, layer.key_bin)
        with ledger.asks(door, what, held=held.whole or coarse):
            tile = matrix.tile(rows, columns, step=step, pool=pool)
            expected = cells(weights[rows, columns], step, step, pool)
            allowed = np.maximum.reduceat(room[rows], np.arange(0, rows.stop - rows.start, step))[:, None]
            ledger.number(door, what, tile, expected, allowed + watched.storage * (1e-9 + np.abs(expected)))


def ask_maps(watched: Watched, ledger: Ledger, door: str = "maps") -> None:
    for held, b, h in watched.places():
        layer, where = held.layer, watched.named(held)
        weights, room = held.weights[b, h], held.room[b, h]
        name, most = f"{layer.name}, head {h} of sequence {b}", float(room.max(initial=ROOM))
        with ledger.asks(door, f"the map of {name}"):
            for pool in ("mean", "max"):
                answer = watched.seen.heatmap(**where, head=h, pool=pool)[b]
                expected = cells(weights, layer.query_bin, layer.key_bin, pool)
                allowed = most + watched.storage * (1e-9 + np.abs(expected))
                ledger.number(door, f"the {pool} map of {name}", answer, expected, allowed)
                sides = zip(answer.shape, (layer.queries, layer.keys), strict=True)
                if any(bins > (count if count <= SHORT else SHORT // 2) for bins, count in sides):
                    ledger.wrong(door, f"the map of {name} has {answer.shape} bins")
        with ledger.asks(door, f"the entropy of {name}"):
            expected = entropy(weights)
            answer = watched.seen.entropy(**where, head=h)[b]
            ledger.number(
                door, f"the entropy of {name}", answer, expected, 4 * room * (1 + expected)
            )  # of scores, their sum and lse
        with ledger.asks(door, f"what {name} gives to each key"):
            expected = (weights * ~padding(layer, b)[0][:, None]).sum(0)
            answer = watched.seen.received(**where, head=h)[b]
            ledger.number(door, f"what {name} gives to each key", answer, expected, 2 * most * (1 + expected))
        query, _ = watched.pair(held, b, h)
        with ledger.asks(door, f"the strongest keys of query {query} of {name}"):
            answer = watched.seen.top(**where, head=h, query=query, batch_index=b)
            row, best = weights[query], [weight for _, weight in answer]
            allowed = room[query] + watched.storage * (1e-9 + 1)
            strongest = np.sort(row)[::-1][: len(best)]
            ledger.number(door, f"the strongest keys of query {query} of {name}", best, strongest, allowed)
            ledger.number(door, f"weights of its keys in {name}", best, [row[key] for key, _ in answer], allowed)
            if (row > 1e-12).sum() > len(answer) and len(answer) < min(STRONGEST, layer.keys):
                ledger.wrong(door, f"query {query} of {name} has {len(answer)} strongest keys")


def ask_statistics(watched: Watched, ledger: Ledger, door: str = "statistics") -> None:
    asked = watched.picks.get("statistics", {})
    if not asked and watched.spans is None:
        return
    for held, b, h in watched.places():
        layer, where = held.layer, watched.named(held)
        weights, room = held.weights[b, h], held.room[b, h]
        name, count = f"{layer.name}, head {h} of sequence {b}", max(layer.queries, layer.keys)
        ahead = layer.keys - layer.queries if layer.kind == "self" else 0
        position = np.arange(layer.queries) + max(ahead, 0)
        for one, kind in asked.items():
            with ledger.asks(door, f"{one} of {name}"):
                answer = watched.seen.statistic(one, **where, head=h)[b]
                expected, allowed = _statistic(kind, weights, room, position, count)
                ledger.number(door, f"{one} of {name}", answer, expected, allowed)
        if watched.spans is not None:
            with ledger.asks(door, f"spans of {name}"):
                answer = watched.seen.statistic("key_spans", **where, head=h)[b]
                expected = np.stack([weights[:, _span(one, layer.keys)].sum(-1) for one in watched.spans.values()], -1)
                ledger.number(door, f"spans of {name}", answer, expected, 2 * room[:, None] * (1 + expected))


def _span(span: Any, keys: int) -> list[int]:
    if isinstance(span, list):
        return [key for key in span if key < keys]
    start, stop = span
    return list(range(min(start, keys), keys if stop is None else min(stop, keys)))


def _statistic(kind: Any, weights: Array, room: Array, position: Array, count: int) -> tuple[Array, Any]:
    queries, keys = weights.shape
    if kind == "confidence":
        return weights.max(-1), room
    if kind == "distance":
        total = weights.sum(-1)
        far = np.abs(position[:, None] - np.arange(keys))
        found = (weights * far).sum(-1) / np.where(total > 0, total, 1)
        return np.where(total > 1e-30, found, 0), 2 * room * count
    if kind in ("self", "previous"):
        at = position - (kind == "previous")
        inside = (at >= 0) & (at < keys)
        found = np.take_along_axis(weights, np.clip(at, 0, keys - 1)[:, None], 1)[:, 0]
        return np.where(inside, found, 0), room
    which, places = kind
    if which == "rows":
        found = np.stack([weights[at] if at < queries else np.full(keys, np.nan) for at in places])
        return found, room.max()
    if which == "columns":
        found = np.stack([weights[:, at] if at < keys else np.full(queries, np.nan) for at in places], -1)
        return found, room[:, None]
    rows, columns = places
    found = np.full((rows.stop - rows.start, columns.stop - columns.start), np.nan)
    part = weights[rows, columns]
    found[: part.shape[0], : part.shape[1]] = part
    return found, room.max()


def _words(watched: Watched, held: Held, b: int) -> tuple[tuple[Word, ...], tuple[Word, ...]] | None:
    """The words of both sides of a layer, where every position has one."""
    record, layer = watched.seen.record, held.layer
    tokens = record.tokens
    for name, count in ((layer.query_tokens, layer.queries), (layer.key_tokens, layer.keys)):
        if name not in tokens or len(tokens[name][b]) != count:
            return None
    return record.words(layer.query_tokens, b), record.words(layer.key_tokens, b)


def _drawn_word(watched: Watched, words: Sequence[Word]) -> Word | None:
    """A word, one of several pieces more often."""
    found = [word for word in words if not word.special and is_word(word.text) and word.text != "[UNK]"]
    several = [word for word in found if len(word.pieces) > 1]
    some = several if several and watched.rng.random() < 0.4 else found
    return some[watched.rng.integers(len(some))] if some else None


def _first(words: Sequence[Word], wanted: str) -> Word | None:
    """The first word equal to `wanted`, else the first that contains it."""
    folded = wanted.casefold()
    for match in (lambda text: text == folded, lambda text: folded in text):
        for word in words:
            if not word.special and match(word.text.casefold()):
                return word
    return None


def ask_words(watched: Watched, ledger: Ledger, door: str = "words") -> None:
    for held, b, _ in watched.places():
        if (both := _words(watched, held, b)) is None:
            continue
        query, key = (_drawn_word(watched, words) for words in both)
        if query is None or key is None:
            continue
        recorded = held.rows[list(query.pieces)]
        weights, room, known = word_weights(held, b, query, key)
        what = f"{query.text!r} {query.pieces} → {key.text!r} {key.pieces} in {held.layer.name}, sequence {b}"
        if recorded.all():
            with ledger.asks(door, f"word_weight {what}", held=bool(known.all())):
                answer = watched.seen.word_weight(held.layer, query, key, b)
                allowed = room + watched.storage * (1e-9 + np.abs(weights))
                ledger.number(door, f"word_weight {what}", answer, weights, allowed, unknown=~known)
        elif recorded.any():
            with ledger.asks("words partly recorded", f"word_weight {what}", held=False):
                answer = watched.seen.word_weight(held.layer, query, key, b)
                some = [piece for piece in query.pieces if held.rows[piece]]
                of_some = held.weights[b][:, some][:, :, list(key.pieces)].sum(-1).mean(-1)
                ledger.number("words partly recorded", f"word_weight {what}", answer, of_some, room, unknown=True)
        first, second = _first(both[0], query.text), _first(both[1], key.text)
        if first is not None and second is not None and held.rows[list(first.pieces)].all():
            _ask_ranks(watched, ledger, door, stream_of(held.layer), b, (query.text, key.text), (first, second))


def _ask_ranks(
    watched: Watched, ledger: Ledger, door: str, stream: Any, b: int, texts: tuple[str, str], words: tuple[Word, Word]
) -> None:
    """All heads by the weight between two words, the first of their texts."""
    layers = [one for one in watched.held if stream_of(one.layer) == stream]
    expected: dict[tuple[int, int], tuple[float, float]] = {}
    is_known = True
    for one in layers:
        weights, room, known = word_weights(one, b, *words)
        recorded = one.layer.recorded_heads
        is_known &= bool(known[list(recorded)].all())
        expected |= {(watched.seen.record.number(one.layer), head): (weights[head], room[head]) for head in recorded}
    what = f"rank_heads{texts} of {stream}, sequence {b}"
    is_blind = not any(one.weights[b][:, list(words[0].pieces)].any() for one in layers)
    with ledger.asks(door, what, held=is_known and not is_blind):
        ranked = watched.seen.rank_heads(*texts, batch_index=b, stream=stream)
        if [one.weight for one in ranked] != sorted((one.weight for one in ranked), reverse=True):
            ledger.wrong(door, f"{what} is not in the order of the weights")
        answer = {(one.layer, one.head): one.weight for one in ranked}
        if answer.keys() != expected.keys():
            ledger.wrong(door, f"{what} has {len(answer)} heads, not {len(expected)}")
            return
        numbers = np.array([(answer[one], *expected[one]) for one in expected])
        allowed = numbers[:, 2] + watched.storage * (1e-9 + np.abs(numbers[:, 1]))
        ledger.number(door, what, numbers[:, 0], numbers[:, 1], allowed)


def ask_patterns(watched: Watched, ledger: Ledger, door: str = "heads") -> None:
    record = watched.seen.record
    for held, b, _ in watched.places():
        layer = held.layer
        sinks, is_clear = sinks_of(held, b)
        with ledger.asks(door, f"sinks of {layer.name}, sequence {b}"):
            answer = {one.key: one.share for one in find_sinks(layer, b)}
            if is_clear and answer.keys() != sinks.keys():
                ledger.wrong(door, f"sinks of {layer.name}, sequence {b}: {sorted(answer)}, not {sorted(sinks)}")
            shares = [(answer[key], sinks[key]) for key in answer.keys() & sinks.keys()]
            ledger.number(door, "the shares of sinks", *np.array(shares).reshape(-1, 2).T, 10 * held.room[b].max())
        if not held.whole:
            continue
        expected = _patterns(held, b, record)
        with ledger.asks(door, f"patterns of {layer.name}, sequence {b}"):
            found = head_patterns(record, layer, batch_index=b)
            for head, names in expected.items():
                if found[head] not in names:
                    ledger.wrong(door, f"head {head} of {layer.name}, sequence {b} is {found[head]!r}, not {names}")


def _patterns(held: Held, b: int, record: Any) -> dict[int, tuple[str, ...]]:
    """The pattern of each recorded head; several where a share is at the edge."""
    layer = held.layer

    def special(stream: str, count: int) -> list[int]:
        texts = record.tokens.get(stream, ())
        known = texts[b] if b < len(texts) else ()
        return [at for at, token in enumerate(known) if token.special] if len(known) == count else []

    weights = held.weights[b]
    hidden, padded = padding(layer, b)
    recorded = weights[list(layer.recorded_heads)] * ~hidden[:, None]
    weighed = np.flatnonzero((weights[list(layer.recorded_heads)] != 0).any((0, 2)))
    apart = {*special(layer.query_tokens, layer.queries), *np.flatnonzero(hidden)}
    rows = np.array([row for row in weighed if row not in apart] or [*weighed] or range(layer.queries))
    ahead = layer.keys - layer.queries
    is_text = layer.kind == "self" and ahead >= 0
    later = np.arange(layer.keys)[None] > (np.arange(layer.queries) + ahead)[:, None]
    causal = is_text and not recorded[:, later].any()
    visible = (~padded).cumsum()[ahead:] if causal else np.full(layer.queries, (~padded).sum())
    to = [at for at in special(layer.key_tokens, layer.keys) if not padded[at]]
    text = [at for at in range(layer.keys) if at not in to and not padded[at]]
    found = {}
    for head in layer.recorded_heads:
        own = weights[head]
        masses = {"special_tokens": own[rows][:, to].sum(-1).mean()}
        masses["first"] = own[rows, text[0]].mean() if text else 0.0
        for name, step in (("previous", ahead - 1), ("next", ahead + 1), ("self", ahead)) if is_text else ():
            inside = rows[np.isin(rows + step, text) & ((visible[rows] > 1) if causal else True)]
            masses[name] = own[inside, inside + step].mean() if len(inside) else 0.0
        ceiling = np.log(np.maximum(visible, 1))
        share = np.where(ceiling > 0, entropy(own) / np.where(ceiling > 0, ceiling, 1), 0)[rows]
        even = (share >= 0.9).mean()
        best = max(masses.values())
        names = {name for name, mass in masses.items() if mass >= best - 1e-5}
        of_mass = names if best > 0.5 - 1e-5 else set()
        of_mass |= {"other"} if best <= 0.5 + 1e-5 else set()
        near = np.abs(share - 0.9) < 1e-4
        is_even = (
            {even > 0.5}
            if not near.any()
            else {((share >= 0.9) | near).mean() > 0.5, ((share >= 0.9) & ~near).mean() > 0.5}
        )
        found[head] = tuple(
            sorted(({"spread"} if True in is_even else set()) | (of_mass if False in is_even else set()))
        )
    return found


# Files ----------------------------------------------------------------------------------------------------------------


def ask_atlas(watched: Watched, ledger: Ledger) -> None:
    path = watched.folder / "it.atlas"
    with ledger.asks("atlas", "saving"):
        watched.seen.save(path)
    if not path.exists():
        return
    opened = regard.load_atlas(path)
    held = [replace(one, layer=layer) for one, layer in zip(watched.held, opened.layers, strict=True)]
    from_file = replace(watched, seen=opened, held=held, storage=STORED)
    for ask in (ask_weights, ask_matrix, ask_maps, ask_statistics, ask_words):
        ask(from_file, ledger, "atlas")
    for one, other in zip(watched.held, held, strict=True):
        is_exact = one.whole and one.layer.query_bin == one.layer.key_bin == 1
        for name in ("entropy", "received", "top_keys", *(("mean", "top_weights") if is_exact else ())):
            ledger.same("atlas", f"{name} of {one.layer.name}", getattr(other.layer, name), getattr(one.layer, name))
        if one.whole:
            at = (int(one.layer.recorded_heads[0]), 0)
            row = Matrix(one.layer, *at).row(one.layer.queries - 1)
            ledger.same("atlas", f"a row of {one.layer.name}", Matrix(other.layer, *at).row(one.layer.queries - 1), row)


def ask_export(watched: Watched, ledger: Ledger, door: str = "csv and npz") -> None:
    for held, b, h in watched.places(1):
        where = watched.named(held)
        weights, room = held.weights[b, h], held.room[b, h]
        name = f"{held.layer.name}, head {h} of sequence {b}"
        for suffix in ("csv", "npz"):
            path = watched.folder / f"weights.{suffix}"
            with ledger.asks(door, f"weights of {name} as {suffix}", held=held.whole):
                watched.seen.export(path, "weights", **where, head=h, batch_index=b)
                whole = watched.seen.weights(**where, head=h)[b]
                answer = _matrix_of(path).astype(whole.dtype)
                ledger.number(door, f"weights of {name} as {suffix}", answer, weights, room[:, None])
                ledger.same(door, f"weights of {name} as {suffix}", answer, whole)
        path = watched.folder / "map.csv"
        with ledger.asks(door, f"the map of {name}"):
            watched.seen.export(path, "map.max", **where, head=h, batch_index=b)
            expected = cells(weights, held.layer.query_bin, held.layer.key_bin, "max")
            ledger.number(door, f"the map of {name}", _matrix_of(path), expected, room.max())
        path = watched.folder / "top.csv"
        with ledger.asks(door, f"the strongest keys of {name}"):
            watched.seen.export(path, "top", **where, head=h, batch_index=b)
            with path.open(encoding="utf-8-sig", newline="") as file:
                rows = list(csv.DictReader(file))
            pairs = [(float(row["weight"]), weights[int(row["query"]), int(row["key"])]) for row in rows]
            ledger.number(door, f"the strongest keys of {name}", *np.array(pairs).reshape(-1, 2).T, room.max())
        if held.layer.kind == "cross" and _words(watched, held, b) is not None:
            with ledger.asks(door, f"the alignment of {name}", held=held.whole):
                found = align(watched.seen.record, [(held.layer, h)], batch_index=b)
                expected = np.array([
                    [weights[np.ix_(query.pieces, key.pieces)].sum(-1).mean() for key in found.source]
                    for query in found.target
                ])  # fmt: skip
                most = room.max() * max(len(key.pieces) for key in found.source)
                ledger.number(door, f"the alignment of {name}", found.weights, expected, most)


def _matrix_of(path: Path) -> Array:
    if path.suffix == ".npz":
        with np.load(path) as file:
            return file["weights"]
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return np.array([[float(cell) for cell in row[1:]] for row in rows])


# Pages ----------------------------------------------------------------------------------------------------------------


class Client:
    """Asks the application of the server, without a socket."""

    def __init__(self, *records: Any) -> None:
        from regard import web

        self.app = web.make_app(web.Shelf(records, "it.atlas"))

    def get(self, path: str, **asked: Any) -> bytes:
        """The body of an answer, or an ObservationError with what was said."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "", "scheme": "http",
            "query_string": urlencode(asked).encode(), "headers": [(b"host", b"127.0.0.1")], "http_version": "1.1",
        }  # fmt: skip
        asyncio.run(self.app(scope, receive, send))
        body = b"".join(one.get("body", b"") for one in sent)
        if sent[0]["status"] == 400:
            raise ObservationError(json.loads(body)["error"])
        if sent[0]["status"] != 200:
            raise AssertionError(f"{sent[0]['status']}: {body!r}")
        return body

    def floats(self, path: str, **asked: Any) -> Array:
        return np.frombuffer(self.get(path, **asked), "<f4")

    def json(self, path: str, **asked: Any) -> Any:
        return json.loads(self.get(path, **asked))


def ask_page(watched: Watched, ledger: Ledger, door: str = "page") -> None:
    client, rng = Client(watched.seen.record), watched.rng
    layers = client.json("/records")["records"][0]["layers"]
    for held, b, h in watched.places():
        layer = held.layer
        place = {"record": 0, "layer": held.index, "head": h, "batch_index": b}
        name = f"{layer.name}, head {h} of sequence {b}"
        weights, room = held.weights[b, h], held.room[b, h]
        head: dict[str, Any] = {}
        with ledger.asks(door, f"/head of {name}"):
            head = client.json("/head", **place)
        if not head:
            continue
        stored = layers[held.index]["stored"]
        _ask_tops(ledger, name, head["tops"], weights, room, stored)
        sunk = [one["key"] for one in head["sinks"]]
        expected, is_clear = sinks_of(held, b)
        if is_clear and sunk != sorted(expected):
            ledger.wrong(door, f"sinks of {name}: {sunk}, not {sorted(expected)}")
        if held.whole and head["pattern"] not in _patterns(held, b, watched.seen.record)[h]:
            ledger.wrong(door, f"the pattern of {name} is {head['pattern']!r}")
        clean, clean_room = without(weights, room, sunk)
        known = held.known(b, h)
        query, key = watched.pair(held, b, h)
        _ask_weight(client, ledger, door, place, held, (query, key), (weights, clean), (room, clean_room), bool(sunk))
        rid = known & known[:, sunk].all(-1, keepdims=True)  # without the sinks, whose weights have to be known too
        for sinks, dense, allowed, sure in ((1, weights, room, known), (0, clean, clean_room, rid)):
            what = f"row {query} of {name}, sinks={sinks}"
            with ledger.asks(door, what):
                line = client.floats("/line", **place, axis="row", at=query, sinks=sinks)
                ledger.number(door, what, line, dense[query], allowed[query], unknown=~sure[query])
            for at in {key, *sunk[:1]}:
                what = f"column {at} of {name}, sinks={sinks}"
                with ledger.asks(door, what):
                    line = client.floats("/line", **place, axis="column", at=at, sinks=sinks)
                    ledger.number(door, what, line, dense[:, at], allowed, unknown=~sure[:, at])
            step, pool = int(2 ** rng.integers(0, 7)), str(rng.choice(["mean", "max"]))
            _ask_tile(client, ledger, door, place, held, step, stored, pool, sinks, sunk, dense, allowed)


def _ask_tops(ledger: Ledger, name: str, tops: Any, weights: Array, room: Array, stored: int) -> None:
    """The largest cells of the stored map and of coarser ones, which set the scale of colours."""
    with ledger.asks("largest cells", name):
        for pool in ("mean", "max"):
            for step, largest in tops[pool].items():
                if int(step) >= stored:
                    expected = cells(weights, int(step), int(step), pool).max()
                    what = f"the largest {pool} cell of {step} in {name}"
                    ledger.number("largest cells", what, largest, expected, 2 * room.max())


def _ask_weight(
    client: Client, ledger: Ledger, door: str, place: Any, held: Held, pair: Any, dense: Any, rooms: Any, sunk: bool
) -> None:
    query, key = pair
    (weights, clean), (room, clean_room) = dense, rooms
    what = f"weight {query}, {key} of {held.layer.name}, head {place['head']}"
    with ledger.asks(door, what):
        said = client.json("/weight", **place, query=query, key=key)
        known = bool(held.known(place["batch_index"], place["head"])[query, key])
        if said["weight"] is None:
            if known:
                ledger.wrong(door, f"{what} is unknown, and held")
            elif weights[query, key] > said["below"] + room[query]:
                ledger.wrong(door, f"{what} is {weights[query, key]}, not below {said['below']}")
            return
        ledger.number(door, what, said["weight"], weights[query, key], room[query])
        if sunk and said["without"] is not None:
            ledger.number(door, f"{what} without sinks", said["without"], clean[query, key], clean_room[query])
        if sunk and said["without"] is None and held.whole:
            ledger.wrong(door, f"{what} has no weight without sinks")


def _ask_tile(
    client: Client, ledger: Ledger, door: str, place: Any, held: Held, step: int, stored: int, pool: str, sinks: int,
    sunk: Sequence[int], dense: Array, allowed: Array,
) -> None:  # fmt: skip
    side = ENDPOINTS_SIDE if step >= stored else min(ENDPOINTS_SIDE, max(1, COMPUTED_SIDE // step))
    queries, keys = dense.shape
    high, wide = (-(-count // (side * step)) for count in (queries, keys))
    row, column = int(held.index * 7 + step) % high, int(held.index * 3 + step) % wide
    rows, columns = (
        slice(at * side * step, min((at + 1) * side * step, count)) for at, count in ((row, queries), (column, keys))
    )
    what = f"tile {row}, {column} of {held.layer.name}, head {place['head']}, step {step}, {pool}, sinks={sinks}"
    with ledger.asks(door, what, held=held.whole or step >= stored):
        tile = client.floats("/tile", **place, step=step, row=row, column=column, pool=pool, sinks=sinks)
        unknown: Any = False
        starts = np.arange(0, rows.stop - rows.start, step)
        room = np.maximum.reduceat(allowed[rows], starts)[:, None]
        if sinks or held.whole or not sunk:
            expected = cells(dense[rows, columns], step, step, pool)
        else:  # the rows of a cell are divided by the mean of what they leave
            weights = held.weights[place["batch_index"], place["head"]]
            rest = 1 - weights[rows][:, list(sunk)].sum(-1)
            mean = np.add.reduceat(rest, starts) / np.diff([*starts, len(rest)])
            kept = weights.copy()
            kept[:, list(sunk)] = 0
            expected = np.clip(cells(kept[rows, columns], step, step, pool) / mean[:, None], 0, 1)
            if pool == "max":
                at = [(key - columns.start) // step for key in sunk if columns.start <= key < columns.stop]
                expected[:, at], unknown = np.nan, np.isin(np.arange(expected.shape[1]), at)[None]
            own = held.room[place["batch_index"], place["head"]].max()
            room = 4 * own / np.maximum(mean, 1e-9)[:, None]
            # A sink that is not among the strongest keys of its row counts 0: at most the least of these is missing.
            sure = held.known(place["batch_index"], place["head"])[rows][:, list(sunk)]
            missing = np.where(sure, 0, weights[rows][:, list(sunk)]).sum(-1)
            room = room + np.maximum.reduceat(missing, starts)[:, None] / np.maximum(mean, 1e-9)[:, None]
        if tile.size != expected.size:
            ledger.wrong(door, f"{what} has {tile.size} cells, not {expected.shape}")
            return
        ledger.number(door, what, tile.reshape(expected.shape), expected, room, unknown=unknown)


def ask_file_page(watched: Watched, ledger: Ledger, door: str = "page in a file") -> None:
    """The numbers of a page that is a file: weights to half its unit, cells to half a step of their roots."""
    path = watched.folder / "it.html"
    with ledger.asks(door, "the page", held=False):
        watched.seen.to_html(path)
    if not path.exists():
        return
    text = path.read_text()
    meta = json.loads(re.search(r'id="meta">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    for held, _, h in watched.places():
        about = meta["layers"][held.index]
        blob = re.search(rf'id="layer-{held.index}">(.*?)</script>', text, re.DOTALL)
        bytes_ = np.frombuffer(zlib.decompress(base64.b64decode(blob[1])), np.uint8).astype(int)  # type: ignore[index]
        _, heads, queries, keys = about["size"]
        weights, room = held.weights[0, h], held.room[0, h][:, None]
        name, half = f"{held.layer.name}, head {h}", 0.5 / about["unit"]
        with ledger.asks(door, f"the page's numbers of {name}"):
            if about["exact"]:
                count = heads * queries * keys
                whole = (bytes_[:count] * 256 + bytes_[count : 2 * count]).reshape(heads, queries, keys)
                ledger.number(door, f"weights of {name}", whole[h] / about["unit"], weights, room + half)
                continue
            count = heads * queries * about["top"]
            to, of = (
                (bytes_[at : at + count] * 256 + bytes_[at + count : at + 2 * count]).reshape(heads, queries, -1)[h]
                for at in (0, 2 * count)
            )
            expected = np.where(of > 0, np.take_along_axis(weights, np.minimum(to, keys - 1), 1), of)
            ledger.number(door, f"strongest keys of {name}", of / about["unit"], expected, room + half)
            rows, columns = about["map"]
            roots = bytes_[4 * count :].reshape(heads, rows, columns)[h] / 255
            levels = 255 if about["unit"] == 10_000 else 51
            cell = np.sqrt(cells(weights, *about["bins"], "max"))
            ledger.number(door, f"map of {name}", roots, cell, 0.5 / levels + np.sqrt(room.max()))


# look -----------------------------------------------------------------------------------------------------------------


def _can_look(watched: Watched) -> bool:
    return watched.run.loaded is not None and bool(watched.run.text) and not watched.options.get("queries")


def ask_look(watched: Watched, ledger: Ledger, door: str = "look") -> None:
    """The weights that a look states, and whether a head that is asked for looks at its strongest word."""
    if not _can_look(watched):
        return
    held, _, h = watched.places(1)[0]
    layer = watched.seen.record.number(held.layer)
    options = {name: one for name, one in watched.options.items() if name in ("keep", "layers", "heads") and one}
    word = _drawn_word(watched, watched.seen.record.words("text"))
    for token, pinned in ((None, False), (word and word.text, False), (word and word.text, True)):
        where = {"token": token} | ({"layer": layer, "head": h} if pinned else {})
        with ledger.asks(door, f"look {where}, {options}", held=pinned):
            looked = regard.look(watched.run.text, model=watched.run.loaded, **where, **options)
            _check_focus(watched, ledger, door, looked, where)


def _check_focus(watched: Watched, ledger: Ledger, door: str, looked: Any, where: Mapping[str, Any]) -> None:
    focus = looked.highlight
    query = focus.queries[focus.word]
    for look in focus.looks:
        held = watched.held[look.layer]
        key = focus.keys[look.target]
        weights, room, known = word_weights(held, 0, query, key)
        what = f"look {dict(where)}: {query.text!r} → {key.text!r} in {held.layer.name}, head {look.head}"
        if "at least these" in focus.note and not known[look.head]:  # of a pooled map: the rest of it is not known
            if look.weight > weights[look.head] + room[look.head]:
                ledger.wrong(door, f"{what} is at least {look.weight:.9g}, and {weights[look.head]:.9g}")
            continue
        ledger.number(door, what, look.weight, weights[look.head], room[look.head], unknown=~known[look.head])
    if "layer" not in where or "at least these" in focus.note:
        return
    first = focus.looks[0]
    held = watched.held[first.layer]
    every = np.array([word_weights(held, 0, query, key)[0][first.head] for key in focus.keys])
    texts = [word.text for word in focus.keys]
    content = content_words(texts)
    room = float(held.room[0, first.head].max()) * 8
    apart = [
        at for at, word in enumerate(focus.keys)
        if content[at] and not word.special and abs(at - focus.word) > 1
        and texts[at].casefold() != query.text.casefold()
    ]  # fmt: skip
    among = [at for at in apart if every[at] > 0] or range(len(every))
    best = max(every[at] for at in among)
    if every[first.target] < best - room:
        strongest = max(among, key=lambda at: every[at])
        ledger.wrong(
            door,
            f"look {dict(where)} chooses {texts[first.target]!r} ({every[first.target]:.4g}) of {query.text!r}, and "
            f"the strongest is {texts[strongest]!r} ({best:.4g})",
        )


def command(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: its exit code, and what it wrote."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["regard", *arguments]),
        mock.patch.dict("os.environ", {"COLUMNS": "100", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def ask_command(watched: Watched, ledger: Ledger, door: str = "command") -> None:
    """What `regard look` prints, to two decimals, and the table and the atlas that it saves."""
    if not _can_look(watched) or not watched.run.bundled:
        return
    held, _, h = watched.places(1)[0]
    layer = watched.seen.record.number(held.layer)
    word = _drawn_word(watched, watched.seen.record.words("text"))
    if word is None:
        return
    asked = [f"--model={watched.run.bundled}", f"--layer={layer}", f"--head={h}", f"--token={word.text}", "--"]
    asked.append(watched.run.text)
    everything = held.layer.queries <= SHORT
    for what, more in (("the picture", []), ("the table", ["--out", str(watched.folder / "look.csv")])):
        with ledger.asks(door, f"{what} of {asked[:-1]}", held=everything or not more):
            code, out, err = command("look", *more, *asked)
            if code:
                raise ObservationError(err)
            if more:
                answer = _matrix_of(watched.folder / "look.csv")
                # The command may run another implementation of the model, whose q and k are rounded otherwise.
                allowed = 10 * held.room[0, h][:, None]
                ledger.number(door, f"the table of {asked[:-1]}", answer, held.weights[0, h], allowed)
                continue
            line = re.search(r"① layer (\d+) head (\d+) +(.+?) → (.+?) +(\d\.\d\d)", out)
            if line is None:
                ledger.wrong(door, f"the picture of {asked[:-1]} has no weight: {out[:300]!r}")
                continue
            words = watched.seen.record.words("text")
            query = _first(words, word.text)
            keys = [one for one in words if one.text == line[4].strip()]
            found = [word_weights(held, 0, query, key)[0][h] for key in keys]  # type: ignore[arg-type]
            nearest = min((abs(float(line[5]) - one) for one in found), default=math.inf)
            if nearest > 0.00501 or (int(line[1]), int(line[2])) != (layer, h):
                ledger.wrong(door, f"the picture of {asked[:-1]} has {line[0]!r}, not {found}")
    keep = watched.options["keep"]
    path = watched.folder / "look.atlas"
    with ledger.asks(door, f"an atlas with {keep}"):
        layers = (
            []
            if watched.run.what.get("layers") is None
            else [f"--layers={','.join(map(str, watched.run.what['layers']))}"]
        )
        code, _, err = command("look", "--out", str(path), f"--keep={keep}", *layers, *asked)
        if code:
            raise ObservationError(err)
        opened = regard.load_atlas(path)
        names = {one.layer.name: one for one in watched.held}
        again = [
            replace(names[one.name], index=at, layer=one) for at, one in enumerate(opened.layers) if one.name in names
        ]
        again = [one for one in again if one.layer.head_numbers is None]
        if again and watched.options.get("heads") is None:
            ask_matrix(replace(watched, seen=opened, held=again, storage=STORED), ledger, door)


# tap ------------------------------------------------------------------------------------------------------------------


def ask_tap(watched: Watched, ledger: Ledger, door: str = "tap") -> None:
    run, rng = watched.run, watched.rng
    held, _, _ = watched.places(1)[0]
    same = [one for one in watched.held if stream_of(one.layer) == stream_of(held.layer)]
    number = watched.seen.record.number
    by_number = {number(one.layer): one for one in same}
    if len(by_number) != len(same):
        return
    # Layers of one class that compute their attention otherwise need a tap each.
    numbers = [number(held.layer)] * 2 if run.is_plain else [int(one) for one in rng.choice(list(by_number), 2)]
    pairs = list(dict.fromkeys((at, int(rng.integers(by_number[at].layer.heads))) for at in numbers))
    count = held.layer.queries
    is_behind = run.is_plain and held.layer.keys != count  # of a bare call, where queries stand is not known
    some: Any = sorted({int(one) for one in rng.integers(0, count, 3)})
    queries: Any = "new" if is_behind else ("last", "new", some)[rng.integers(3)]
    spans = watched.spans if rng.random() < 0.5 else None
    what = f"tap of {pairs}, queries={queries}, keys={spans}"
    stream = None if run.is_plain or stream_of(held.layer) == "text" else stream_of(held.layer)
    is_shared = "#" in "".join(one.layer.name for one in same)  # a module that attends more than once in a pass
    with ledger.asks(door, what, held=not is_shared and (run.prompt is None or isinstance(queries, str))):
        with regard.tap(run.model, heads=pairs, queries=queries, keys=spans, stream=stream) as tap:
            run.call()
        if tap.heads != tuple(pairs):
            ledger.wrong(door, f"{what} has the heads {tap.heads}")
            return
        rows = dict(enumerate(tap.rows)) if is_behind else {row.position: row for row in tap.rows}
        if len(rows) != len(tap.rows) or rows.keys() != _tapped(run, queries, count):
            ledger.wrong(door, f"{what} has rows of {[row.position for row in tap.rows]}")
            return
        every = [(watched.picks["all"][by_number[at].index], head) for at, head in pairs]
        for query, row in rows.items():
            dense = np.stack([one.weights[:, head, query] for one, head in every], 1)
            room = max(float(one.room[:, head, query].max()) for one, head in every)
            _check_row(ledger, door, f"{what}: the row of {row.position}", row, dense, room, spans)


def _tapped(run: Run, queries: Any, count: int) -> set[int]:
    """The rows of a tap: those of the last position, or of it and all that are generated; all; or some."""
    if isinstance(queries, list):
        return set(queries)
    first = 0 if queries == "new" else count - 1 if run.prompt is None else run.prompt - 1
    return set(range(first, count))


def _check_row(ledger: Ledger, door: str, what: str, row: Any, dense: Array, room: float, spans: Any) -> None:
    answer = row.weights.double().numpy()
    if spans is not None:
        dense = np.stack([dense[..., _span(one, dense.shape[-1])].sum(-1) for one in spans.values()], -1)
    elif answer.shape[-1] < dense.shape[-1]:
        if dense[..., answer.shape[-1] :].max() > room:
            ledger.wrong(door, f"{what} ends at {answer.shape[-1]}")
        dense = dense[..., : answer.shape[-1]]
    ledger.number(door, what, answer, dense, 2 * room * (1 + dense))


DOORS: Mapping[str, Callable[[Watched, Ledger], None]] = {
    "weights": ask_weights,
    "matrix": ask_matrix,
    "maps": ask_maps,
    "statistics": ask_statistics,
    "words": ask_words,
    "heads": ask_patterns,
    "atlas": ask_atlas,
    "csv and npz": ask_export,
    "page": ask_page,
    "page in a file": ask_file_page,
    "look": ask_look,
    "command": ask_command,
    "tap": ask_tap,
}


def expected_of(dense: Dense, heads: Sequence[int] | None, rows: Array) -> tuple[Array, Array]:
    """The weights that a record has: 0 in heads and rows that were not chosen."""
    weights = np.array(dense.weights, np.float64)
    weights[:, :, ~rows] = 0
    if heads is not None:
        weights[:, [one for one in range(weights.shape[1]) if one not in heads]] = 0
    return weights, np.broadcast_to(dense.room, weights.shape[:3])
