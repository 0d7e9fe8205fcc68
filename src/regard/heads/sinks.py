"""Find the sinks of a layer from the attention that each key receives, at any position."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.capture.records import Layer

__all__ = ["ABOVE_EVEN", "LEAST", "Sink", "find_sinks", "is_causal"]

LEAST = 0.05  # share of the weight of the queries that can see it, as the mean over the layer's heads
ABOVE_EVEN = 4  # multiple of an even share of all weight
_ABOVE_BLIND = 2  # multiple of its weight under uniform attention
_SEEN_BY = 0.25  # share of the queries that must see it, which excludes keys that only the last few queries see


@dataclass(frozen=True)
class Sink:
    """A key that receives `share` of the weight of the queries that can see it, as the mean over a layer's heads."""

    key: int
    share: float


def find_sinks(layer: Layer, batch_index: int = 0) -> tuple[Sink, ...]:
    r"""Return the sinks of one layer in one sequence, in the order of their keys.

    The share of key j is $a_j = \frac{1}{H} \sum_h \sum_i p_{hij} / n_j$, where $n_j$ queries can see it (those from j
    on, where the attention is causal), as in Gu 2024, "When Attention Sink Emerges". A sink has more than 0.05, and
    more than 4 times an even share 1 / keys, more than twice what it would get if each query weighed alike all that it
    sees (of a causal text the first keys get more: ln(n) / n of it), and at least a quarter of the queries can see it.
    Gu's own threshold, 0.3 in a head, finds the first token of many models; sinks that stand side by side share that
    weight, as the stray spaces and articles do on which the lower layers of SmolLM2 rest, each with 0.06 to 0.27 of
    it.
    """
    queries, keys = layer.queries, layer.keys
    seen_by, blind = np.full(keys, queries), np.full(keys, 1 / keys)
    if is_causal(layer, batch_index):
        seen_by = np.minimum(keys - np.arange(keys), queries)
        blind = _even_causal(queries, keys) / seen_by
    received = np.asarray(layer.received[batch_index], dtype=np.float64).mean(0)
    share = received / seen_by
    found = (share > LEAST) & (share > ABOVE_EVEN / keys) & (seen_by >= _SEEN_BY * queries)
    found &= share > _ABOVE_BLIND * blind
    return tuple(Sink(int(key), float(share[key])) for key in np.flatnonzero(found))


def _even_causal(queries: int, keys: int) -> npt.NDArray[np.float64]:
    """Return the attention that each key receives if every query gives the same weight to all keys up to itself."""
    given = 1 / np.arange(1, keys + 1)
    given[: keys - queries] = 0
    return np.cumsum(given[::-1])[::-1]


def is_causal(layer: Layer, batch_index: int = 0) -> bool:
    """Return whether no query of a text attends to a later key; the queries are the last positions of the keys."""
    if layer.kind == "cross" or layer.queries > layer.keys:
        return False
    places: npt.NDArray[np.int64] = np.arange(layer.queries) + layer.keys - layer.queries
    return bool((layer.top_keys[batch_index] <= places[None, :, None]).all())
