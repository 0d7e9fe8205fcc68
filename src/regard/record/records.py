"""The record of one forward pass: its layers in the order of their calls, and the tokens, if known.

A record contains the n × n weights only if they were requested or if the sequence is so short that its heat map is
exact. Otherwise it contains pooled heat maps, the strongest keys of each query, the entropy of each row and the
attention that each key received.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, ObservationError
from regard.record.layers import (
    HeadScore,
    Layer,
    Stream,
    at_index,
    find_layer,
    head_at,
    in_stream,
    own_number,
    stream_of,
    with_words,
)
from regard.record.missing_attention import Missing
from regard.record.places import Name, Place, find_place
from regard.record.tokens import Token, Word, words_of
from regard.record.weights_on import rows_with_weight, weights_on

__all__ = ["Answers", "HeadScore", "Layer", "RankedHeads", "Record"]


_BUDGET = 2 * 2**30  # maximum bytes of weights computed from queries and keys in one call


class Answers:
    """Methods that return the recorded data of one forward pass.

    Layers have the model's numbers, which are counted within a stream. If there are several streams, a number needs
    `stream=` too: a name, or for cross-attention the pair ("target", "source") of queries and keys. Negative numbers
    of layers, heads, queries and sequences count from the end.
    """

    layers: tuple[Layer, ...]
    tokens: Mapping[str, tuple[tuple[Token, ...], ...]]
    notes: Mapping[str, Any]

    @property
    def streams(self) -> dict[str, int]:
        """The streams of the layers' queries and keys, with the number of positions of each."""
        found: dict[str, int] = {}
        for layer in self.layers:
            for name, length in ((layer.query_tokens, layer.queries), (layer.key_tokens, layer.keys)):
                found[name] = max(length, found.get(name, 0))
        return found

    def layer(self, layer: int | str | Layer, stream: Stream | None = None) -> Layer:
        """Return the layer with this number in its stream, or with this module name.

        Raises:
            InputError: The layer or stream does not exist, or a number is given without a stream although there are
                several.
        """
        return layer if isinstance(layer, Layer) else find_layer(self.layers, layer, stream)

    def number(self, layer: Layer) -> int:
        """Return the number of a layer, to be used as `layer=` with its stream."""
        return own_number(self.layers, layer)

    def weights(
        self, *, layer: int | str | Layer, head: int | None = None, stream: Stream | None = None
    ) -> npt.NDArray[np.float32]:
        """Return every weight of one head (batch, queries, keys), or without `head` of all heads (batch, heads,
        queries, keys).

        The weights are those before dropout. They are available with `keep="weights"`, and otherwise for sequences
        short enough that the heat map has bins of 1. With `keep="qk"` they are computed, up to 2 GiB of them.
        """
        seen = self.layer(layer, stream)
        chosen = _heads(seen, head)
        if seen.exact is not None:
            return seen.exact[:, chosen]
        if seen.qk is None:
            raise ObservationError(
                f"layer {_called(layer, seen)} of {seen.queries} × {seen.keys} was kept as a pooled map, not in full: "
                'watch with keep="weights" for every weight or keep="qk" for any rectangle of them, or use heatmap(), '
                "top(), entropy() and received()"
            )
        single = isinstance(chosen, int)
        heads = (
            [chosen] if isinstance(chosen, int) else range(seen.heads)[chosen] if isinstance(chosen, slice) else chosen
        )
        if (needed := 8 * seen.batch * len(heads) * seen.queries * seen.keys) > _BUDGET:
            raise ObservationError(
                f"the {seen.queries} × {seen.keys} weights of {'a head' if len(heads) == 1 else f'{len(heads)} heads'} "
                f"of layer {_called(layer, seen)} would take {needed:,} bytes, more than {_BUDGET:,}: ask for a "
                "rectangle with regard.record.tiles.Matrix(layer, head).tile(...)"
            )
        found = np.stack([weights_on(seen, one, heads, range(seen.queries)) for one in range(seen.batch)])
        return found[:, 0] if single else found

    def heatmap(
        self,
        *,
        layer: int | str | Layer,
        head: int | None = None,
        pool: Literal["mean", "max"] = "mean",
        stream: Stream | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the pooled map of one head (batch, query bins, key bins): the mean or the largest weight in each bin.

        Without `head`, return the maps of all heads (batch, heads, query bins, key bins).
        """
        seen = self.layer(layer, stream)
        if pool not in ("mean", "max"):
            raise InputError(f'`pool` must be "mean" or "max", got {pool!r}')
        pooled: npt.NDArray[np.float32] = seen.mean if pool == "mean" else seen.max
        return pooled[:, _heads(seen, head)]

    def entropy(
        self, *, layer: int | str | Layer, head: int | None = None, stream: Stream | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the entropy of each row in nats (batch, queries): 0 if one key has all weight, ln(keys) if all are
        equal.

        Without `head`, return that of all heads (batch, heads, queries).
        """
        seen = self.layer(layer, stream)
        return seen.entropy[:, _heads(seen, head)]

    def received(
        self, *, layer: int | str | Layer, head: int | None = None, stream: Stream | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the attention that each key received (batch, keys), the sum of its column; without `head` (batch,
        heads, keys).
        """
        seen = self.layer(layer, stream)
        return seen.received[:, _heads(seen, head)]

    def top(
        self, *, layer: int | str | Layer, head: int, query: int, batch_index: int = 0, stream: Stream | None = None
    ) -> list[tuple[int, float]]:
        """Return the strongest keys of one query with their weights, the largest first."""
        seen = self.layer(layer, stream)
        at = at_index("batch_index", batch_index, seen.batch, "batch"), head_at(seen, head)
        row = *at, at_index("query", query, seen.queries)
        pairs = zip(seen.top_keys[row].tolist(), seen.top_weights[row].tolist(), strict=True)
        return [(key, weight) for key, weight in pairs if key >= 0]

    def statistic(
        self, name: str, *, layer: int | str | Layer, head: int | None = None, stream: Stream | None = None
    ) -> npt.NDArray[Any]:
        """Return a requested statistic of one head (batch, ...), or without `head` of all heads.

        The docstring of each statistic's class describes its array; a statistic with several arrays has "name" and
        "name.part".
        """
        seen = self.layer(layer, stream)
        kept = {"entropy": seen.entropy, "received": seen.received, **seen.statistics}
        if not isinstance(name, str):
            raise InputError(f"`name` must be that of a statistic, one of {', '.join(kept)}, got {name!r}")
        if name not in kept:
            raise ObservationError(
                f"{name!r} was not kept of layer {_called(layer, seen)}, which has {', '.join(kept)}: ask for it with "
                f"regard.watch(model, statistics=[{name!r}])"
            )
        found: npt.NDArray[Any] = kept[name]
        chosen = _heads(seen, head)
        if found.shape[1] == 1:
            return found if head is None else found[:, 0]
        return found[:, chosen]

    def words(self, stream: str = "text", batch_index: int = 0) -> tuple[Word, ...]:
        """Return the words of one sequence, merged from their pieces."""
        return words_of(self.stream(stream, batch_index))

    def stream(self, name: str, batch_index: int = 0) -> tuple[Token, ...]:
        """Return the tokens of one sequence of one stream.

        Raises:
            InputError: There is no such stream or sequence.
            ObservationError: Its tokens are unknown.
        """
        if isinstance(name, str) and self.tokens.get(name):
            return self.tokens[name][at_index("batch_index", batch_index, len(self.tokens[name]), "batch")]
        streams = self.streams
        if not isinstance(name, str) or (name not in streams and streams):
            raise InputError(f"`stream` must be one of {', '.join(map(repr, streams))}, got {name!r}")
        if reason := self._unnamed(name):
            raise ObservationError(f"the tokens of the stream {name!r} are not known: {reason}")
        if not self.tokens:
            raise ObservationError(
                "the tokens of this record are not known: pass `tokenizer=` to regard.watch, or `tokens=` its own list"
            )
        raise ObservationError(
            f"the tokens of the stream {name!r} are not known, only those of {', '.join(map(repr, self.tokens))}: pass "
            f"`tokens={{{name!r}: [...]}}` to regard.watch, {streams.get(name, 0)} of them"
        )

    def _unnamed(self, stream: str) -> str | None:
        """Return why the tokenizer of the watch could not name the tokens of a stream, or None."""
        unnamed = self.notes.get("unnamed")
        reason = unnamed.get(stream) if isinstance(unnamed, Mapping) else None
        return None if reason is None else str(reason)

    def word_weight(
        self, layer: int | str | Layer, query: Word, key: Word, batch_index: int = 0
    ) -> npt.NDArray[np.float32]:
        """Return the weight from one word to another for every head of a layer (heads,): the mean over the pieces of
        the query, of the sum over the pieces of the key. It is 0 for heads that were not chosen for recording, and NaN
        where the layer was kept as a pooled map and the key is not among the strongest of a query, or where only some
        pieces of the query were chosen for recording.
        """
        seen = self.layer(layer)
        batch_index = at_index("batch_index", batch_index, seen.batch, "batch")
        recorded = rows_with_weight(seen, batch_index)[list(query.pieces)]
        if recorded.any() and not recorded.all():
            return np.full(seen.heads, np.nan, np.float32)
        block = weights_on(seen, batch_index, range(seen.heads), query.pieces, key.pieces)
        return np.asarray(block.sum(-1).mean(-1), dtype=np.float32)

    def place(self, name: Name, *, stream: str = "text", batch_index: int = 0) -> Place:
        """Return the tokens of one sequence that a name means: a word ("it"), an occurrence ("animal#2" or
        ("animal", 2)), an index, a span (see `regard.record.places.find_place`). Its `note` says what else could have
        been meant.

        Raises:
            InputError: Nothing in the text is named so, or there is no such stream or sequence.
            ObservationError: The tokens are unknown.
        """
        return find_place(self.stream(stream, batch_index), name, what="name")

    def rank_heads(
        self, query_token: Name, key_token: Name, *, batch_index: int = 0, stream: Stream | None = None
    ) -> "RankedHeads":
        """Rank all heads by the weight from the place `query_token` to the place `key_token`.

        Both are names as `place` takes them: a word of the text, the second of several ("animal#2"), an index. The
        list that is returned has as `query` and `key` what was found, and as `note` what else could have been meant.
        Of a place of several tokens it is the mean over the queries and the sum over the keys.

        Only layers with known tokens are ranked; `stream` selects among these.

        Raises:
            InputError: No layer has these places, or the stream or sequence does not exist.
            ObservationError: The tokens of all layers are unknown (also of rows that are pooled), or a weight is:
                layers were kept as pooled maps, or other queries were chosen for recording.
        """
        ranked: list[tuple[HeadScore, Place, Place]] = []
        refused: dict[str, InputError] = {}
        empty = True
        layers = in_stream(self.layers, stream)
        named: dict[tuple[str, str], tuple[Place, Place] | InputError] = {}
        for seen in with_words(layers, self.tokens):
            streams = seen.query_tokens, seen.key_tokens
            if streams not in named:
                named[streams] = self._places(streams, (query_token, key_token), batch_index)
            if isinstance(places := named[streams], InputError):
                refused.setdefault(seen.query_tokens, places)
                continue
            at, to = (Word(one.text, one.positions) for one in places)
            recorded = rows_with_weight(seen, batch_index)[list(at.pieces)]
            empty &= not recorded.any()
            weights = self.word_weight(seen, at, to, batch_index).tolist()
            if any(map(math.isnan, weights)):
                if not recorded.all():
                    raise ObservationError(
                        f"{at.text!r} has {len(recorded)} tokens, of which {recorded.sum()} have weight: the "
                        "others see no key, or were not among the watched `queries`, which must name all of them"
                    )
                raise ObservationError(
                    f"the weight from {at.text!r} to {to.text!r} is unknown: layer {self.number(seen)} of "
                    f"{seen.queries} × {seen.keys} was kept as a pooled map and the {seen.top_keys.shape[-1]} "
                    'strongest keys of each query, and it is not among them: watch with keep="qk" for any weight'
                )
            number = self.number(seen), stream_of(seen)
            ranked += [(HeadScore(number[0], head, weights[head], number[1]), *places) for head in seen.recorded_heads]
        if not ranked:
            raise refused.get("text") or next(iter(refused.values()))
        if empty:
            raise ObservationError(
                f"{ranked[0][1].text!r} has no weight in any head: it was not among the watched `queries`, or sees no "
                "key"
            )
        ranked.sort(key=lambda one: -one[0].weight)
        return RankedHeads([score for score, _, _ in ranked], *ranked[0][1:])

    def _places(
        self, streams: tuple[str, str], names: tuple[Name, Name], batch_index: int
    ) -> tuple[Place, Place] | InputError:
        """Return the places of a query and a key in their streams, or why there are none."""
        at, to = (self.stream(name, batch_index) for name in streams)
        try:
            return find_place(at, names[0], what="query_token"), find_place(to, names[1], what="key_token")
        except InputError as error:
            return error


class RankedHeads(list[HeadScore]):
    """Heads from the largest weight to the smallest, from the place `query` to the place `key` of the text.

    Where layers are of several pairs of streams, they are those of the first head.
    """

    def __init__(self, scores: Iterable[HeadScore], query: Place, key: Place) -> None:
        super().__init__(scores)
        self.query, self.key = query, key

    @property
    def note(self) -> str:
        """What else the two names could have meant; empty if nothing."""
        return " ".join(filter(None, dict.fromkeys((self.query.note, self.key.note))))


def _heads(layer: Layer, head: int | None) -> int | slice | list[int]:
    """Return an index for one head, or what selects all that were recorded."""
    if head is None:
        return slice(None) if layer.head_numbers is None else list(layer.head_numbers)
    return head_at(layer, head)


def _called(which: int | str | Layer, layer: Layer) -> int | str:
    """Return the name of a layer for messages, in the caller's form."""
    return layer.name if isinstance(which, Layer) else which


@dataclass(frozen=True, eq=False)
class Record(Answers):
    """The recorded attention of one forward pass.

    `layers` are in the order of their calls. `tokens` maps the name of a stream to the tokens of each sequence of the
    batch. Encoders and decoders have the stream "text". Encoder–decoders have the streams "source" and "target". A
    tower that encodes images, audio or video has the stream "image", "audio" or "video". `notes["unnamed"]` has the
    reason for each stream whose tokens the tokenizer could not name. `missing` lists the attention of this pass that
    could not be recorded. `len(record)` is the number of layers.
    """

    layers: tuple[Layer, ...]
    tokens: Mapping[str, tuple[tuple[Token, ...], ...]] = field(default_factory=dict)
    model: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()

    def __repr__(self) -> str:
        return f"<attention of {self.model or 'a model'} in {len(self.layers)} layers, {len(self.missing)} missing>"

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)
