"""One recorded attention layer, as NumPy arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from regard.capture.layer_selection import Stream

__all__ = ["Computable", "HeadScore", "Layer"]


class Computable(Protocol):
    """Recorded queries and keys (`capture.captured_qk`), from which any rectangle of weights can be computed."""

    def tile(self, batch_index: int, head: int, rows: slice, columns: slice) -> npt.NDArray[Any]:
        """Return every weight of a rectangle."""
        ...

    def bands(self, rows: slice, columns: slice, step: int) -> Iterator[slice]:
        """Yield the rows of a rectangle in bands that are computed one after the other."""
        ...

    def whole(self, batch_index: int, head: int, queries: int, keys: int) -> npt.NDArray[Any]:
        """Return all weights of one head."""
        ...


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention call site of a model, as recorded in one forward pass.

    Shapes: `mean`, `max` (batch, heads, query bins, key bins); `top_keys`, `top_weights` (batch, heads, queries, k),
    best first, key −1 and weight 0 where a query sees fewer than k keys; `entropy` (batch, heads, queries) in nats;
    `received` (batch, heads, keys), the sum of each key's column; `weights` (batch, heads, queries, keys) or None.
    `statistics` holds the requested statistics by name, as arrays (batch, heads, ...), with heads 1 if all heads share
    them. `qk`, with keep="qk", gives any rectangle of the weights. `number` is the layer's in the model, counted within
    its stream; None if it is unknown, in which case layers are counted in the order of their calls. A bin of the heat
    map spans `query_bin` queries and `key_bin` keys (the last may be smaller): `mean` is over its pairs, hidden ones
    counting 0, `max` its largest weight. With bins of 1 both are the weights themselves.
    """

    name: str
    kind: Literal["self", "cross"]
    query_tokens: str  # the token stream of the queries
    key_tokens: str
    query_bin: int
    key_bin: int
    mean: npt.NDArray[np.float32]
    max: npt.NDArray[np.float32]
    top_keys: npt.NDArray[np.int32]
    top_weights: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]
    received: npt.NDArray[np.float32]
    # Factories instead of defaults: class attributes would prevent a layer of an atlas from loading its arrays on
    # access.
    weights: npt.NDArray[np.float32] | None = field(default_factory=lambda: None)
    statistics: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    qk: Computable | None = field(default_factory=lambda: None)
    number: int | None = field(default_factory=lambda: None)  # the model's number within the stream

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return int(self._shape("entropy")[0])

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return int(self._shape("entropy")[1])

    @property
    def queries(self) -> int:
        """Number of queries (rows)."""
        return int(self._shape("entropy")[2])

    @property
    def keys(self) -> int:
        """Number of keys (columns)."""
        return int(self._shape("received")[2])

    @property
    def exact(self) -> npt.NDArray[np.float32] | None:
        """Every weight (batch, heads, queries, keys) if it is available: recorded in full, or from a map with bins of
        1.
        """
        if self.weights is not None:
            return self.weights
        return self.mean if self.query_bin == self.key_bin == 1 else None

    def _shape(self, name: str) -> tuple[int, ...]:
        array: npt.NDArray[Any] = getattr(self, name)
        return array.shape


@dataclass(frozen=True)
class HeadScore:
    """The weight of one head from one word to another; `stream` and `layer` identify its layer."""

    layer: int
    head: int
    weight: float
    stream: Stream = "text"
