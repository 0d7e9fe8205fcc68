"""Which tokens count, and what "first", "previous", "even" and "sink" mean; every count of a record asks here.

A visible token belongs to the text: it is neither padding, on either side, nor a special token ([CLS], BOS). Of a row i
of a visible token, where j are the keys:

- first: the first visible key. special: the special tokens among the keys. Clark et al. 2019
  (https://arxiv.org/abs/1906.04341, section 3) and Voita et al. 2019 (https://arxiv.org/abs/1905.09418, section 4)
  count these apart too.
- previous, next, self: i − 1, i + 1 and i. Where i ± 1 is padding, a special token or outside, row i has none, and does
  not count for it.
- The first row of a causal text sees only itself: it has its whole weight on it whatever the head does, and counts for
  no mean over rows but that of first.
- even: the weight 1 / n_i on each of the n_i keys that row i may see, special tokens among them, padding not.
- sink: of a head, the mean weight on the first position, special or not, over all rows of the text and of special
  tokens (`first_share`); of a layer, see `find_sinks`; Gu et al. 2024 (https://arxiv.org/abs/2410.10781).

Padding is what the `attention_mask` of the model's call names, else the keys that no query sees
(`regard.observe.padding`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.record.layers import Layer
from regard.record.tokens import Token
from regard.record.weights_on import rows_with_weight, weights_on

__all__ = [
    "ABOVE_EVEN",
    "HEAD_SINK",
    "MOST",
    "SinkKey",
    "Visible",
    "even_counts",
    "find_sinks",
    "first_share",
    "has_common_positions",
    "is_causal",
    "padding_of",
]

MOST = 0.5  # share of a head's weight from which a rule, a pattern or a place to rest describes it: more than all else
HEAD_SINK = 0.3  # ε of Gu 2024: a head whose mean weight on the first token is above it rests there
ABOVE_EVEN = 4  # multiple of an even share of all weight from which a key may be a sink, see `find_sinks`
_LEAST = 0.05  # share of the weight of the queries that can see it, as the mean over the layer's heads
_ABOVE_BLIND = 2  # multiple of its weight under uniform attention
_SEEN_BY = 0.25  # share of the queries that must see it, which excludes keys that only the last few queries see
_STEPS = {"previous": -1, "next": 1}
_FIRST = 8  # queries of which all known weights tell whether attention is causal

Tokens = Mapping[str, Sequence[Sequence[Token]]]  # of each stream and sequence, as a record has them
Flags = npt.NDArray[np.bool_]


def padding_of(layer: Layer, batch_index: int) -> tuple[Flags, Flags]:
    """Return which queries (queries,) and which keys (keys,) of one sequence are padding, as far as it is known."""
    sides = (layer.query_padding, layer.queries), (layer.key_padding, layer.keys)
    queries, keys = (
        np.zeros(count, np.bool_) if flags is None else np.asarray(flags[batch_index], np.bool_)
        for flags, count in sides
    )
    return queries, keys


@dataclass(frozen=True, eq=False)
class Visible:
    """Which rows and columns of one layer count, in one sequence.

    `queries` (queries,) and `keys` (keys,) are True for tokens of the text. `special` (keys,) marks special tokens,
    `padding` (keys,) padding: each key is one of the three. Without known tokens none is special.
    """

    queries: Flags
    keys: Flags
    special: Flags
    padding: Flags
    ahead: int | None  # query i is key i + ahead; None where queries and keys have positions of their own

    @classmethod
    def of(cls, tokens: Tokens, layer: Layer, batch_index: int = 0) -> "Visible":
        """Return those of a layer of a record with these `tokens`."""
        hidden, padding = padding_of(layer, batch_index)
        resting = _special(tokens, layer.query_tokens, layer.queries, batch_index)
        special = _special(tokens, layer.key_tokens, layer.keys, batch_index) & ~padding
        ahead = layer.keys - layer.queries if has_common_positions(layer) else None
        return cls(~hidden & ~resting, ~padding & ~special, special, padding, ahead)

    @property
    def first(self) -> int | None:
        """The first visible key, or None if there is none."""
        return int(self.keys.argmax()) if self.keys.any() else None

    def rows(self, statistic: str, *, causal: bool) -> Flags:
        """Return which queries count for the mean of a statistic, by its name: those of the text; for "previous" and
        "next" those with a visible key there; of a causal text not the one that sees only itself, but for "first".
        A statistic under a name of its own has all rows of the text, whatever it measures.
        """
        step = _STEPS.get(statistic)
        found = self.queries if step is None or self.ahead is None else self.queries & (self.beside(step) >= 0)
        if not causal or self.ahead is None or statistic == "first":
            return found
        return found & ((~self.padding).cumsum()[self.ahead :] > 1)

    def beside(self, step: int) -> npt.NDArray[np.int_]:
        """Return for each query the visible key `step` positions after it, −1 where there is none, of shape (queries,);
        all −1 if queries and keys have positions of their own.
        """
        at: npt.NDArray[np.int_] = np.arange(len(self.queries)) + (step + (self.ahead or 0))
        inside = (at >= 0) & (at < len(self.keys)) & (self.ahead is not None)
        return np.where(inside & self.keys[np.where(inside, at, 0)], at, -1)


def _special(tokens: Tokens, stream: str, count: int, batch_index: int) -> Flags:
    """Return which positions are special tokens, if the stream has `count` tokens; else none is known."""
    sequences = tokens.get(stream, ())
    known = sequences[batch_index] if batch_index < len(sequences) else ()
    special = [token.special for token in known] if len(known) == count else [False] * count
    return np.array(special, dtype=np.bool_)


def first_share(layer: Layer, sink: npt.NDArray[np.floating], batch_index: int) -> npt.NDArray[np.float64]:
    """Return of each head the mean weight of the recorded queries on the first position (heads,).

    Args:
        layer: The layer.
        sink: Its statistic "sink" (heads, keys), of which queries that were not recorded count as rows without weight.
        batch_index: The sequence.
    """
    hidden, padding = padding_of(layer, batch_index)
    recorded = rows_with_weight(layer, batch_index) & ~hidden
    return np.asarray(sink[:, (~padding).argmax()] * (max((~hidden).sum(), 1) / max(recorded.sum(), 1)), np.float64)


def even_counts(layer: Layer, batch_index: int = 0) -> npt.NDArray[np.int_]:
    """Return the number of keys that each query may see (queries,), padding left out: with causal attention those up to
    its own position, whether a window hides some or not. An even share is the weight 1 / n on each.
    """
    keys = ~padding_of(layer, batch_index)[1]
    if not is_causal(layer, batch_index):
        return np.full(layer.queries, keys.sum())
    return np.asarray(keys.cumsum()[layer.keys - layer.queries :])


@dataclass(frozen=True)
class SinkKey:
    """A key that receives `share` of the weight of the queries that can see it, as the mean over a layer's heads; those
    of causal attention are all from the key on, even where a window hides it from them.
    """

    key: int
    share: float


def find_sinks(layer: Layer, batch_index: int = 0) -> tuple[SinkKey, ...]:
    r"""Return the sinks of one layer in one sequence, in the order of their keys.

    The share of key j is $a_j = \frac{1}{H} \sum_h \sum_i p_{hij} / n_j$, over the recorded heads and queries, where
    $n_j$ queries can see it (those from j on, where the attention is causal, windows or not), as in Gu 2024, "When
    Attention Sink Emerges". A sink has more than 0.05, and more than 4 times an even share 1 / keys, more than twice
    what it would get if each query weighed alike all that it sees (of a causal text the first keys get more: ln(n) / n
    of it), and at least a quarter of the queries can see it. Padding counts neither among the queries nor the keys.
    Gu's own threshold, 0.3 in a head, finds the first token of many models; sinks that stand side by side share that
    weight, as the stray spaces and articles do on which the lower layers of SmolLM2 rest, each with 0.06 to 0.27 of it.
    """
    keys = layer.keys
    hidden, padding = padding_of(layer, batch_index)
    rows = np.flatnonzero(rows_with_weight(layer, batch_index) & ~hidden)
    queries, count = max(len(rows), 1), max(int((~padding).sum()), 1)
    seen_by, blind = np.full(keys, queries), np.full(keys, 1 / count)
    if is_causal(layer, batch_index):
        positions = rows + keys - layer.queries  # of the last key that each query sees
        seen_by = np.maximum(queries - np.searchsorted(positions, np.arange(keys)), 1)
        blind = _even_causal(positions, even_counts(layer, batch_index)[rows], keys) / seen_by
    heads = list(layer.recorded_heads)
    received = np.asarray(layer.received[batch_index, heads], dtype=np.float64).mean(0)
    share = np.where(padding, 0, received / seen_by)
    found = (share > _LEAST) & (share > ABOVE_EVEN / count) & (seen_by >= _SEEN_BY * queries)
    found &= share > _ABOVE_BLIND * blind
    return tuple(SinkKey(int(key), float(share[key])) for key in np.flatnonzero(found))


def _even_causal(positions: npt.NDArray[np.int_], counts: npt.NDArray[np.int_], keys: int) -> npt.NDArray[np.float64]:
    """Return the attention that each key receives if every query gives the same weight to all keys up to itself."""
    given = np.zeros(keys)
    np.add.at(given, positions, 1 / np.maximum(counts, 1))
    return np.cumsum(given[::-1])[::-1]


def has_common_positions(layer: Layer) -> bool:
    """Return whether the queries are the last positions of the keys, unlike in cross-attention and of pooled keys."""
    return layer.kind == "self" and layer.queries <= layer.keys


def is_causal(layer: Layer, batch_index: int = 0) -> bool:
    """Return whether no query of a text attends to a later key; the queries are the last positions of the keys.

    Seen in the strongest keys of all queries, and in all keys of the first ones, as far as they are known: those have
    most keys after them, of which the strongest need not be one. What rows of padding attend to does not count.
    """
    if not has_common_positions(layer):
        return False
    hidden, _ = padding_of(layer, batch_index)
    places: npt.NDArray[np.int64] = np.arange(layer.queries) + layer.keys - layer.queries
    if ((layer.top_keys[batch_index] > places[None, :, None]) & ~hidden[None, :, None]).any():
        return False
    first = np.flatnonzero(rows_with_weight(layer, batch_index) & ~hidden)[:_FIRST]
    weights = np.nan_to_num(weights_on(layer, batch_index, layer.recorded_heads, first.tolist()))
    return not bool((weights * (np.arange(layer.keys) > places[first, None])).any())
