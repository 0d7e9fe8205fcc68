"""What was seen, as plain numpy: the record of one forward pass and the layers in it.

A record does not hold the n × n weights unless they were asked for or the sequence is so short that its heat map is
exact; it holds what answers questions about them: pooled heat maps, the strongest keys of each query, the entropy of
each row and what each key received.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, ObservationError
from regard.observe.tokens import Token, Word, find_word, words_of

__all__ = ["Computable", "HeadScore", "Layer", "Record"]

_BUDGET = 2 * 2**30  # bytes of weights that are computed at once from queries and keys


class Computable(Protocol):
    """Queries and keys that were kept (`observe.kept`), from which any rectangle of weights can be computed."""

    def tile(self, sequence: int, head: int, rows: slice, columns: slice) -> npt.NDArray[Any]:
        """Every weight of a rectangle."""
        ...

    def bands(self, rows: slice, columns: slice, step: int) -> Iterator[slice]:
        """The rows of a rectangle in bands that are computed one after the other."""
        ...

    def whole(self, sequence: int, head: int, queries: int, keys: int) -> npt.NDArray[Any]:
        """All weights of one head."""
        ...


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention call site of a model, as seen in one forward pass.

    Shapes: `mean`, `max` (batch, heads, query bins, key bins); `top_keys`, `top_weights` (batch, heads, queries, k),
    best first, key −1 and weight 0 where a query sees fewer than k keys; `entropy` (batch, heads, queries) in nats;
    `received` (batch, heads, keys), the sum of each key's column; `weights` (batch, heads, queries, keys) or None.
    `statistics` holds what else was asked for, by name: arrays (batch, heads, ...), with heads 1 where all share them.
    `kept`, with keep="qk", gives any rectangle of the weights.
    A bin of the heat map spans `query_bin` queries and `key_bin` keys (the last may be smaller): `mean` is over its
    pairs, hidden ones counting 0, `max` its largest weight. With bins of 1 both are the weights themselves.
    """

    name: str
    kind: Literal["self", "cross"]
    query_tokens: str  # which of the record's token streams the queries are
    key_tokens: str
    query_bin: int
    key_bin: int
    mean: npt.NDArray[np.float32]
    max: npt.NDArray[np.float32]
    top_keys: npt.NDArray[np.int32]
    top_weights: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]
    received: npt.NDArray[np.float32]
    # Factories, not defaults, which would be found on the class: a layer of an atlas reads what it lacks when asked.
    weights: npt.NDArray[np.float32] | None = field(default_factory=lambda: None)
    statistics: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    kept: Computable | None = field(default_factory=lambda: None)

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return int(self.entropy.shape[0])

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return int(self.entropy.shape[1])

    @property
    def queries(self) -> int:
        """Number of queries (rows)."""
        return int(self.entropy.shape[2])

    @property
    def keys(self) -> int:
        """Number of keys (columns)."""
        return int(self.received.shape[2])

    @property
    def exact(self) -> npt.NDArray[np.float32] | None:
        """Every weight (batch, heads, queries, keys) where it is at hand: kept in full, or a map with bins of 1."""
        if self.weights is not None:
            return self.weights
        return self.mean if self.query_bin == self.key_bin == 1 else None


@dataclass(frozen=True)
class HeadScore:
    """How strongly one head looks from one word to another."""

    layer: int
    head: int
    weight: float


@dataclass(frozen=True, eq=False)
class Record:
    """One forward pass as it was seen: its layers in the order of their calls, and the tokens, where they are known.

    `tokens` maps a stream ("text" for encoders and decoders; "source" and "target" for encoder–decoders) to the tokens
    of each sequence of the batch.
    """

    layers: tuple[Layer, ...]
    tokens: Mapping[str, tuple[tuple[Token, ...], ...]] = field(default_factory=dict)
    model: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def layer(self, which: int | str) -> Layer:
        """The layer with this index (negative ones count from the end) or this module name."""
        if isinstance(which, str):
            found = [layer for layer in self.layers if layer.name == which]
            if found:
                return found[0]
            names = ", ".join(layer.name for layer in self.layers)
            raise InputError(f"`layer` must name a layer that was seen, got {which!r}; seen: {names}")
        count = len(self.layers)
        if not -count <= which < count:
            raise InputError(f"`layer` must be from 0 to {count - 1} (seen layers: {count}), got {which}")
        return self.layers[which]

    def weights(self, *, layer: int | str, head: int) -> npt.NDArray[np.float32]:
        """Every weight of one head (batch, queries, keys), as they were before dropout.

        At hand with `keep="weights"`, and without it for sequences short enough that the heat map has bins of 1; with
        `keep="qk"` they are computed, at most 2 GiB of them.
        """
        seen = self.layer(layer)
        if seen.exact is not None:
            return seen.exact[:, _head(seen, head)]
        if seen.kept is None:
            raise ObservationError(
                f"layer {layer} of {seen.queries} × {seen.keys} was kept as a pooled map, not in full: "
                'watch with keep="weights" for every weight or keep="qk" for any rectangle of them, or use heatmap(), '
                "top(), entropy() and received()"
            )
        if (needed := 8 * seen.batch * seen.queries * seen.keys) > _BUDGET:
            raise ObservationError(
                f"the {seen.queries} × {seen.keys} weights of a head of layer {layer} would take {needed:,} bytes, "
                f"more than {_BUDGET:,}: ask for a rectangle with regard.observe.matrix.Matrix(layer, head).tile(...)"
            )
        at = _head(seen, head)
        found = [seen.kept.whole(sequence, at, seen.queries, seen.keys) for sequence in range(seen.batch)]
        return np.stack(found).astype(seen.entropy.dtype)

    def heatmap(self, *, layer: int | str, head: int, pool: Literal["mean", "max"] = "mean") -> npt.NDArray[np.float32]:
        """The pooled map of one head (batch, query bins, key bins): the mean or the largest weight in each bin."""
        seen = self.layer(layer)
        pooled: npt.NDArray[np.float32] = seen.mean if pool == "mean" else seen.max
        return pooled[:, _head(seen, head)]

    def entropy(self, *, layer: int | str, head: int) -> npt.NDArray[np.float32]:
        """Entropy of each row in nats (batch, queries): 0 where one key takes all, ln(keys) where all are equal."""
        seen = self.layer(layer)
        return seen.entropy[:, _head(seen, head)]

    def received(self, *, layer: int | str, head: int) -> npt.NDArray[np.float32]:
        """The attention each key received (batch, keys): the sum of its column."""
        seen = self.layer(layer)
        return seen.received[:, _head(seen, head)]

    def top(self, *, layer: int | str, head: int, query: int, sequence: int = 0) -> list[tuple[int, float]]:
        """The strongest keys of one query with their weights, best first."""
        seen = self.layer(layer)
        if not -seen.queries <= query < seen.queries:
            raise InputError(f"`query` must be from 0 to {seen.queries - 1}, got {query}")
        row = _sequence(seen, sequence), _head(seen, head), query
        pairs = zip(seen.top_keys[row].tolist(), seen.top_weights[row].tolist(), strict=True)
        return [(key, weight) for key, weight in pairs if key >= 0]

    def statistic(self, name: str, *, layer: int | str, head: int | None = None) -> npt.NDArray[Any]:
        """What a statistic that was asked for has found in one head (batch, ...), or without `head` in all of them.

        Each statistic's class says what its array holds; results of several arrays are "name" and "name.part".
        """
        seen = self.layer(layer)
        kept = {"entropy": seen.entropy, "received": seen.received, **seen.statistics}
        if name not in kept:
            raise ObservationError(
                f"{name!r} was not kept of layer {layer}, which has {', '.join(kept)}: ask for it with "
                f"regard.watch(model, statistics=[{name!r}])"
            )
        found: npt.NDArray[Any] = kept[name]
        if head is None:
            return found
        return found[:, 0 if found.shape[1] == 1 else _head(seen, head)]

    def words(self, stream: str = "text", sequence: int = 0) -> tuple[Word, ...]:
        """The words of one sequence, merged from their pieces."""
        return words_of(self.stream(stream, sequence))

    def stream(self, name: str, sequence: int = 0) -> tuple[Token, ...]:
        """The tokens of one sequence of one stream."""
        if sequence >= len(self.tokens.get(name, ())):
            raise ObservationError(
                "the tokens of this record are not known: pass `tokenizer=` to regard.watch, or `tokens=` its own list"
            )
        return self.tokens[name][sequence]

    def word_weight(self, layer: int | str, query: Word, key: Word, sequence: int = 0) -> npt.NDArray[np.float32]:
        """Weight from one word to another for every head of a layer (heads,): mean over the pieces of the query, sum
        over the pieces of the key. From the exact weights where they are at hand, else from each query's top keys.
        """
        seen = self.layer(layer)
        rows = list(query.pieces)
        if seen.exact is not None:
            block = seen.exact[sequence][:, rows][:, :, list(key.pieces)]
            return np.asarray(block.sum(-1).mean(-1), dtype=np.float32)
        hit = np.isin(seen.top_keys[sequence][:, rows], list(key.pieces))
        return np.asarray((seen.top_weights[sequence][:, rows] * hit).sum(-1).mean(-1), dtype=np.float32)

    def heads(self, source: str, target: str, *, sequence: int = 0) -> list[HeadScore]:
        """All heads, ranked by the weight from the word `source` to the word `target`."""
        ranked = []
        missing: set[str] = set()
        for index, seen in enumerate(self.layers):
            queries, keys = self.words(seen.query_tokens, sequence), self.words(seen.key_tokens, sequence)
            at, to = find_word(queries, source), find_word(keys, target)
            if at is None or to is None:
                missing |= {word for word, found in ((source, at), (target, to)) if found is None}
                continue
            weights = self.word_weight(index, queries[at], keys[to], sequence)
            ranked += [HeadScore(index, head, float(weight)) for head, weight in enumerate(weights)]
        if not ranked:
            raise InputError(f"`heads` needs words of the text, got {' and '.join(map(repr, sorted(missing)))}")
        return sorted(ranked, key=lambda score: -score.weight)


def _head(layer: Layer, head: int) -> int:
    if not 0 <= head < layer.heads:
        raise InputError(f"`head` must be from 0 to {layer.heads - 1} (heads: {layer.heads}), got {head}")
    return head


def _sequence(layer: Layer, sequence: int) -> int:
    if not 0 <= sequence < layer.batch:
        raise InputError(f"`sequence` must be from 0 to {layer.batch - 1} (batch: {layer.batch}), got {sequence}")
    return sequence
