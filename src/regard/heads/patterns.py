"""What each head of a record does, in one word, and the keys of a layer that are sinks.

The mass on a set S of keys is the mean over rows i of Σ_{j∈S} p_ij (Clark 2019, Voita 2019). A head follows the rule
with the largest mass, if that is more than half. Otherwise it is `spread` if its rows are nearly uniform (entropy
above 0.9 of ln of the visible keys), and else `other`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.record.records import Layer, Record
from regard.record.weights_on import rows_with_weight, weights_of_pairs, weights_on

__all__ = ["HEAD_SINK", "MOST", "PATTERNS", "SinkKey", "find_sinks", "head_patterns", "is_causal"]

PATTERNS = ("special_tokens", "first", "previous", "next", "self", "spread", "other")
MOST = 0.5  # share of a head's weight from which a rule or pattern describes it
_EVEN = 0.9
HEAD_SINK = 0.3  # ε of Gu 2024: a head whose mean weight on the first token is above it rests there
LEAST = 0.05  # share of the weight of the queries that can see it, as the mean over the layer's heads
_TOGETHER = 64  # keys
_FIRST = 8  # queries of which all known weights tell whether attention is causal
ABOVE_EVEN = 4  # multiple of an even share of all weight
_ABOVE_BLIND = 2  # multiple of its weight under uniform attention
_SEEN_BY = 0.25  # share of the queries that must see it, which excludes keys that only the last few queries see


def head_patterns(record: Record, layer: int | str | Layer, *, batch_index: int = 0) -> tuple[str, ...]:
    """Return the rule of each head of a layer, one of `PATTERNS`, or "" for a head that was not chosen for recording.

    Rows of special tokens ([CLS], padding) are left out, and so are those without any weight, which see nothing or were
    not chosen for recording. The masses come from single weights where these are known, else from the strongest keys of
    each row, which can only underestimate them.
    """
    seen = record.layer(layer)
    special = set(_special(record, seen.query_tokens, seen.queries, batch_index))
    weighed = np.flatnonzero(rows_with_weight(seen, batch_index))
    rows = np.array([row for row in weighed if row not in special] or [*weighed] or range(seen.queries))
    masses = _masses(seen, rows, _special(record, seen.key_tokens, seen.keys, batch_index), batch_index)
    even = (_evenness(seen, batch_index)[:, rows] >= _EVEN).mean(-1) > MOST
    names = list(masses)
    table = np.stack([masses[name] for name in names])
    found = [""] * seen.heads
    for head in seen.recorded_heads:
        winner = int(table[:, head].argmax())
        found[head] = "spread" if even[head] else names[winner] if table[winner, head] > MOST else "other"
    return tuple(found)


def _special(record: Record, stream: str, count: int, batch_index: int) -> list[int]:
    """Return the positions of special tokens, if the stream has `count` tokens; else they are not known."""
    sequences = record.tokens.get(stream, ())
    known = sequences[batch_index] if batch_index < len(sequences) else ()
    return [position for position, token in enumerate(known) if token.special] if len(known) == count else []


def _masses(
    seen: Layer, rows: npt.NDArray[np.int_], special: Sequence[int], batch_index: int
) -> dict[str, npt.NDArray[np.float64]]:
    masses = {"first": _column_mass(seen, rows, [0], batch_index)}
    if special:
        masses = {"special_tokens": _column_mass(seen, rows, special, batch_index)}
    if _has_common_positions(seen):
        ahead = seen.keys - seen.queries  # the queries are the last positions
        for name, step in (("previous", ahead - 1), ("next", ahead + 1), ("self", ahead)):
            inside = rows[(rows + step >= 0) & (rows + step < seen.keys)]
            masses[name] = _mass(seen, inside, inside + step, batch_index)
    return masses


def _column_mass(
    seen: Layer, rows: npt.NDArray[np.int_], keys: Sequence[int], batch_index: int
) -> npt.NDArray[np.float64]:
    """Return the mean over the rows of the weight on some keys together, of shape (heads,)."""
    total = np.zeros(seen.heads)
    for run in np.split(np.asarray(keys), np.flatnonzero(np.diff(keys) != 1) + 1):  # neighbours are computed together
        for at in range(0, len(run), _TOGETHER):
            some = run[at : at + _TOGETHER].tolist()
            weights = np.nan_to_num(weights_on(seen, batch_index, range(seen.heads), rows.tolist(), some))
            total += weights.sum((1, 2), dtype=np.float64) / len(rows)
    return total


def _mass(
    seen: Layer, rows: npt.NDArray[np.int_], columns: npt.NDArray[np.int_], batch_index: int
) -> npt.NDArray[np.float64]:
    """Return the mean over the rows of the weight on one key each, of shape (heads,)."""
    if not len(rows):
        return np.zeros(seen.heads)
    picked = np.nan_to_num(weights_of_pairs(seen, batch_index, range(seen.heads), rows.tolist(), columns.tolist()))
    return np.asarray(picked.mean(-1), dtype=np.float64)


def _evenness(seen: Layer, batch_index: int) -> npt.NDArray[np.float64]:
    """Return the entropy as a share of its maximum, ln of the visible keys, of shape (heads, queries)."""
    queries = np.arange(seen.queries) + (seen.keys - seen.queries if _has_common_positions(seen) else 0)
    causal = is_causal(seen, batch_index)
    visible = queries + 1 if causal else np.full_like(queries, seen.keys)
    ceiling = np.log(np.maximum(visible, 1))
    share: npt.NDArray[np.float64] = np.divide(
        seen.entropy[batch_index], ceiling, out=np.zeros(seen.entropy[batch_index].shape), where=ceiling > 0
    )
    return share


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
    of it), and at least a quarter of the queries can see it. Gu's own threshold, 0.3 in a head, finds the first token
    of many models; sinks that stand side by side share that weight, as the stray spaces and articles do on which the
    lower layers of SmolLM2 rest, each with 0.06 to 0.27 of it.
    """
    keys, rows = layer.keys, np.flatnonzero(rows_with_weight(layer, batch_index))
    queries = max(len(rows), 1)
    seen_by, blind = np.full(keys, queries), np.full(keys, 1 / keys)
    if is_causal(layer, batch_index):
        visible = rows + keys - layer.queries + 1  # the number of keys that each query sees
        seen_by = np.maximum(queries - np.searchsorted(visible, np.arange(1, keys + 1)), 1)
        blind = _even_causal(visible, keys) / seen_by
    heads = list(layer.recorded_heads)
    received = np.asarray(layer.received[batch_index, heads], dtype=np.float64).mean(0)
    share = received / seen_by
    found = (share > LEAST) & (share > ABOVE_EVEN / keys) & (seen_by >= _SEEN_BY * queries)
    found &= share > _ABOVE_BLIND * blind
    return tuple(SinkKey(int(key), float(share[key])) for key in np.flatnonzero(found))


def _even_causal(visible: npt.NDArray[np.int_], keys: int) -> npt.NDArray[np.float64]:
    """Return the attention that each key receives if every query gives the same weight to all keys up to itself."""
    given = np.zeros(keys)
    np.add.at(given, visible - 1, 1 / visible)
    return np.cumsum(given[::-1])[::-1]


def _has_common_positions(layer: Layer) -> bool:
    """Return whether the queries are the last positions of the keys, unlike in cross-attention and of pooled keys."""
    return layer.kind == "self" and layer.queries <= layer.keys


def is_causal(layer: Layer, batch_index: int = 0) -> bool:
    """Return whether no query of a text attends to a later key; the queries are the last positions of the keys.

    Seen in the strongest keys of all queries, and in all keys of the first ones, as far as they are known: those have
    most keys after them, of which the strongest need not be one.
    """
    if not _has_common_positions(layer):
        return False
    places: npt.NDArray[np.int64] = np.arange(layer.queries) + layer.keys - layer.queries
    if (layer.top_keys[batch_index] > places[None, :, None]).any():
        return False
    first = np.flatnonzero(rows_with_weight(layer, batch_index))[:_FIRST]
    weights = np.nan_to_num(weights_on(layer, batch_index, layer.recorded_heads, first.tolist()))
    return not bool((weights * (np.arange(layer.keys) > places[first, None])).any())
