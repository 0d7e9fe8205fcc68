"""What each head of a record does, in one word.

The mass on a set S of keys is the mean over rows i of Σ_{j∈S} p_ij (Clark 2019, Voita 2019). The rows and
the sets are those of `regard.record.visible`. A head follows the rule with the largest mass, if
that is more than half. Otherwise it is `spread` if its rows are nearly uniform (entropy above 0.9 of ln of the keys
that a row may see), and else `other`.
"""

import numpy as np
import numpy.typing as npt

from regard.record.records import Layer, Record
from regard.record.visible import MOST, SinkKey, Visible, even_counts, find_sinks, is_causal
from regard.record.weights_on import rows_with_weight, weights_of_pairs, weights_on

__all__ = ["PATTERNS", "SinkKey", "find_sinks", "head_patterns", "is_causal"]

PATTERNS = ("special_tokens", "first", "previous", "next", "self", "spread", "other")
_EVEN = 0.9
_TOGETHER = 64  # keys
_STEPS = {"previous": -1, "next": 1, "self": 0}


def head_patterns(record: Record, layer: int | str | Layer, *, batch_index: int = 0) -> tuple[str, ...]:
    """Return the rule of each head of a layer, one of `PATTERNS`, or "" for a head that was not chosen for recording.

    Rows of special tokens ([CLS]) and of padding are left out, and so are those without any weight, which see nothing
    or were not chosen for recording. The masses come from single weights where these are known, else from the strongest
    keys of each row, which can only underestimate them.
    """
    seen = record.layer(layer)
    visible = Visible.of(record.tokens, seen, batch_index)
    weighed = rows_with_weight(seen, batch_index)
    rows = np.flatnonzero(weighed & visible.queries)
    if not len(rows):  # a text of special tokens alone
        rows = np.flatnonzero(weighed) if weighed.any() else np.arange(seen.queries)
    masses = _masses(seen, rows, visible, batch_index)
    even = (_evenness(seen, batch_index)[:, rows] >= _EVEN).mean(-1) > MOST
    names = list(masses)
    table = np.stack([masses[name] for name in names])
    found = [""] * seen.heads
    for head in seen.recorded_heads:
        winner = int(table[:, head].argmax())
        found[head] = "spread" if even[head] else names[winner] if table[winner, head] > MOST else "other"
    return tuple(found)


def _masses(
    seen: Layer, rows: npt.NDArray[np.int_], visible: Visible, batch_index: int
) -> dict[str, npt.NDArray[np.float64]]:
    causal = is_causal(seen, batch_index)
    first = np.array([] if visible.first is None else [visible.first], np.intp)
    sets = {"special_tokens": np.flatnonzero(visible.special), "first": first}
    masses = {name: _column_mass(seen, rows, keys, batch_index) for name, keys in sets.items()}
    for name, step in _STEPS.items():
        keys, counted = visible.beside(step), visible.rows(name, causal=causal) & (visible.beside(step) >= 0)
        inside = rows[counted[rows]]
        masses[name] = _mass(seen, inside, keys[inside], batch_index)
    return masses


def _column_mass(
    seen: Layer, rows: npt.NDArray[np.int_], keys: npt.NDArray[np.intp], batch_index: int
) -> npt.NDArray[np.float64]:
    """Return the mean over the rows of the weight on some keys together, of shape (heads,)."""
    total = np.zeros(seen.heads)
    for run in np.split(keys, np.flatnonzero(np.diff(keys) != 1) + 1):  # neighbours are computed together
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
    """Return the entropy as a share of its maximum, that of an even share on each key, of shape (heads, queries)."""
    ceiling = np.log(np.maximum(even_counts(seen, batch_index), 1))
    share: npt.NDArray[np.float64] = np.divide(
        seen.entropy[batch_index], ceiling, out=np.zeros(seen.entropy[batch_index].shape), where=ceiling > 0
    )
    return share
