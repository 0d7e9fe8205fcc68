"""Recorded queries, keys and, if requested, values of one call site, and the other data needed to compute any
rectangle of weights.

    p_ij = weight_factor_ij · exp(cap(scale · score(q_i, k_j)) + bias_ij − lse_i)   where mask_ij

of a softmax; of another normalizer, its own weights. With the log-sum-exp of each row (including the sink), the cost of
a tile is that of its own pairs instead of whole rows. The arrays are NumPy arrays, or memory-mapped from an atlas;
torch is imported when the first rectangle is computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.hooks import kept_weights

__all__ = ["NUMBERS", "Kept", "KeptFormula", "Segment"]

NUMBERS = ("q", "k", "lse", "v")  # the arrays of numbers, of which v may be missing; forms name all others


@dataclass(frozen=True)
class Segment:
    """The rows of one call: `rows` rows beginning at row `first`; its own key 0 is column `shift` of the record.

    `form` is JSON: scale, score, mask, bias, weight_factor, normalizer, and the position of the first query among the
    keys.
    """

    first: int
    rows: int
    shift: int
    keys: int
    form: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class KeptFormula:
    """What turns q and k of one sequence into weights, as numbers.

    `score` and `normalizer` are the names of their classes; `is_product` says that the score is q·k. `scale` (queries,)
    is that of each row, `sink` (heads,) or None, `visible` (heads or 1, queries, keys), `bias` the same shape in
    float64, 0 where a key is hidden, or None. `has_factor` says that weights are multiplied by a factor afterwards.
    """

    score: str
    is_product: bool
    normalizer: str
    softcap: float | None
    scale: npt.NDArray[np.float64]
    sink: npt.NDArray[np.float64] | None
    visible: npt.NDArray[np.bool_]
    bias: npt.NDArray[np.float64] | None
    has_factor: bool


@dataclass(frozen=True, eq=False)
class Kept:
    """The recorded data of one call site.

    `arrays` holds "q" (batch, heads, queries, width), "k" (batch, kv_heads, keys, key width), both as the score was
    prepared and rotary embeddings applied; "lse" (batch, heads, queries), +inf for rows without weights; with
    keep="qkv" also "v" (batch, value_heads, keys, value width), of which consecutive heads share one as they do "k";
    and the arrays that forms name. `brain` says that q, k and v are the bits of bfloat16 numbers.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    segments: tuple[Segment, ...]
    brain: bool = False
    calls: dict[int, Any] = field(default_factory=dict, repr=False)  # of the segments, whose forms are read once

    @property
    def nbytes(self) -> int:
        """The bytes of q, k, the log-sum-exps, and v if it was kept."""
        return sum(self.arrays[name].nbytes for name in NUMBERS if name in self.arrays)

    @property
    def has_values(self) -> bool:
        """Whether the values were kept."""
        return "v" in self.arrays

    def tile(self, batch_index: int, head: int, rows: slice, columns: slice) -> npt.NDArray[Any]:
        """Return every weight of a rectangle of one head (rows, columns), in the type of the record."""
        found: npt.NDArray[Any] = self.tiles(batch_index, slice(head, head + 1), rows, columns)[0]
        return found

    def tiles(self, batch_index: int, heads: slice, rows: slice, columns: slice) -> npt.NDArray[Any]:
        """Return every weight of a rectangle of one head, or all (heads, rows, columns), in the type of the record."""
        found: npt.NDArray[Any] = kept_weights().weights(self, batch_index, heads, rows, columns)
        return found

    def formula(self, batch_index: int) -> KeptFormula:
        """Return what turns q and k of one sequence into weights.

        Raises:
            AtlasError: A form is damaged.
        """
        found: KeptFormula = kept_weights().formula(self, batch_index)
        return found
