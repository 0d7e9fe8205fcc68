"""Describe each head in one word: the rule that gets most of its weight on average.

The mass on a set S of keys is the mean over rows i of Σ_{j∈S} p_ij (Clark 2019, Voita 2019). A head follows the rule
with the largest mass, if that is more than half. Otherwise it is `spread` if its rows are nearly uniform (entropy
above 0.9 of ln of the visible keys), and else `other`.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.capture.records import Layer, Record
from regard.capture.tokens import Token
from regard.render.labels import key_labels, query_labels

__all__ = ["HABITS", "describe", "head_habits"]

HABITS = ("special_tokens", "first", "previous", "next", "self", "spread", "other")
_MOST = 0.5
_EVEN = 0.9


def head_habits(record: Record, layer: int | str | Layer, *, batch_index: int = 0) -> tuple[str, ...]:
    """Return the rule of each head of a layer, one of `HABITS`.

    Rows of special tokens ([CLS], padding) are left out. The masses come from exact weights if these are available,
    else from the strongest keys of each row, which can only underestimate them.
    """
    seen = record.layer(layer)
    queries, keys = query_labels(record, seen, batch_index), key_labels(record, seen, batch_index)
    rows = np.array([index for index, token in enumerate(queries) if not token.special] or range(seen.queries))
    masses = _masses(seen, rows, keys, batch_index)
    even = (_evenness(seen, batch_index)[:, rows] >= _EVEN).mean(-1) > _MOST
    names = list(masses)
    table = np.stack([masses[name] for name in names])
    winners = table.argmax(0)
    return tuple(
        "spread" if even[head] else names[winner] if table[winner, head] > _MOST else "other"
        for head, winner in enumerate(winners)
    )


def _masses(
    seen: Layer, rows: npt.NDArray[np.int_], keys: Sequence[Token], batch_index: int
) -> dict[str, npt.NDArray[np.float64]]:
    special = [index for index, token in enumerate(keys) if token.special]
    masses = {"first": _mass(seen, rows, np.zeros_like(rows), batch_index)}
    if special:
        masses = {
            "special_tokens": np.sum(
                [_mass(seen, rows, np.full_like(rows, key), batch_index) for key in special], axis=0
            )
        }
    if seen.kind == "self":
        ahead = seen.keys - seen.queries  # the queries are the last positions
        for name, step in (("previous", ahead - 1), ("next", ahead + 1), ("self", ahead)):
            inside = rows[(rows + step >= 0) & (rows + step < seen.keys)]
            masses[name] = _mass(seen, inside, inside + step, batch_index)
    return masses


def _mass(
    seen: Layer, rows: npt.NDArray[np.int_], columns: npt.NDArray[np.int_], batch_index: int
) -> npt.NDArray[np.float64]:
    """Return the mean over the rows of the weight on one key each, of shape (heads,)."""
    if not len(rows):
        return np.zeros(seen.heads)
    if seen.exact is not None:
        picked = seen.exact[batch_index][:, rows, columns]
    else:
        hit = seen.top_keys[batch_index][:, rows] == columns[None, :, None]
        picked = (seen.top_weights[batch_index][:, rows] * hit).sum(-1)
    return np.asarray(picked.mean(-1), dtype=np.float64)


def _evenness(seen: Layer, batch_index: int) -> npt.NDArray[np.float64]:
    """Return the entropy as a share of its maximum, ln of the visible keys, of shape (heads, queries)."""
    queries = np.arange(seen.queries) + (seen.keys - seen.queries if seen.kind == "self" else 0)
    causal = seen.kind == "self" and bool((seen.top_keys[batch_index] <= queries[None, :, None]).all())
    visible = queries + 1 if causal else np.full_like(queries, seen.keys)
    ceiling = np.log(np.maximum(visible, 1))
    share: npt.NDArray[np.float64] = np.divide(
        seen.entropy[batch_index], ceiling, out=np.zeros(seen.entropy[batch_index].shape), where=ceiling > 0
    )
    return share


def describe(record: Record, *, batch_index: int = 0) -> str:
    """Return a sentence on the rules of all heads, starting with the most frequent."""
    counts = Counter(habit for seen in record for habit in head_habits(record, seen, batch_index=batch_index))
    places = {
        "special_tokens": f"at {_specials(record, batch_index)}",
        "first": "at the first token",
        "previous": "at the previous token",
        "next": "at the next",
        "self": "at the token itself",
    }
    ranked = sorted((habit for habit in places if counts[habit]), key=lambda habit: -counts[habit])
    parts = [f"{counts[habit]} {places[habit]}" for habit in ranked]
    if parts:
        parts[0] = f"{counts[ranked[0]]} {_verb(counts[ranked[0]], 'look')} mostly {places[ranked[0]]}"
    if counts["spread"]:
        parts.append(f"{counts['spread']} {_verb(counts['spread'], 'spread')} over all tokens alike")
    if counts["other"]:
        parts.append(f"{counts['other']} {_verb(counts['other'], 'follow')} no such rule")
    joined = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"Of the {counts.total()} heads, {joined}."


def _verb(count: int, verb: str) -> str:
    return verb if count != 1 else f"{verb}s"


def _specials(record: Record, batch_index: int) -> str:
    names = dict.fromkeys(
        token.text for seen in record for token in key_labels(record, seen, batch_index) if token.special
    )
    return "/".join(list(names)[:3])
