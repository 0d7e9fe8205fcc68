"""T5's bias: one learned number for each head and bucket of distances."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_count
from regard.errors import InputError
from regard.positions.base import Relative, check_table, look_up

__all__ = ["T5Bias", "t5_buckets"]


def t5_buckets(
    distance: Int[Tensor, "*pairs"], num_buckets: int = 32, *, bidirectional: bool, max_distance: int = 128
) -> Int[Tensor, "*pairs"]:
    """Sort the distances i − j into buckets (Raffel et al. 2020, 2.1, arXiv:1910.10683; the authors' Mesh TensorFlow).

    There are b buckets for each direction. Each of the first ⌊b/2⌋ buckets holds one distance. The other buckets grow
    logarithmically up to `max_distance`, and all larger distances share the last bucket: ⌊b/2⌋ + ⌊ln(x/⌊b/2⌋) /
    ln(max_distance/⌊b/2⌋) · ⌈b/2⌉⌋. The logarithm is computed in float32 and truncated, because checkpoints were
    trained with these values.

    Args:
        distance: Query position − key position (transformers' relative_position is its negative).
        num_buckets: How many in all: the rows of the table.
        bidirectional: Encoders: half the buckets are for later keys (j > i), in the upper half. Decoders: all buckets
            are for earlier keys, and later ones, which a causal mask hides, fall into bucket 0.
        max_distance: From here on all distances share the last bucket, in tokens.

    Raises:
        InputError: There are too few buckets, an odd number for two directions, or `max_distance` is too small.

    >>> t5_buckets(torch.tensor([0, 1, 3, 4, 6, 12, 50, -2]), 8, bidirectional=False, max_distance=16)
    tensor([0, 1, 3, 4, 5, 7, 7, 0])
    >>> t5_buckets(torch.tensor([1, 2, 50, -1, -2, -50]), 8, bidirectional=True, max_distance=16)
    tensor([1, 2, 3, 5, 6, 7])
    """
    _check(num_buckets, bidirectional, max_distance)
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2
    later = torch.where(distance < 0, side, 0) if bidirectional else 0
    far = distance.abs() if bidirectional else distance.clamp(min=0)
    logarithm = torch.log(far.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    coarse = exact + (logarithm * (side - exact)).long()
    return later + torch.where(far < exact, far, coarse.clamp(max=side - 1))


@dataclass(frozen=True, eq=False)
class T5Bias(Relative):
    """table[bucket(i − j), head], added to the scores; T5 does not divide them by √d: use it with scores.Dot().

    Raffel et al. 2020, 2.1, arXiv:1910.10683. T5 has one table in the first layer of the encoder and one in the first
    layer of the decoder. The other layers share them, and cross-attention has no table. `t5_buckets` maps distances to
    buckets.

    Args:
        table: A number for each bucket and head (buckets, heads): transformers' relative_attention_bias.weight. It
            gets gradients.
        bidirectional: True for encoders, False for decoders.
        max_distance: From here on all distances share the last bucket, in tokens.

    Shapes: the bias is (1, heads, queries, keys), in the table's type.

    Cost: buckets · heads parameters, looked up for queries + keys − 1 distances, and one addition per pair. O(n) memory
    in blocks. A backend that needs the bias as a tensor uses heads · queries · keys numbers.

    Raises:
        InputError: The table is not (buckets, heads), or its buckets do not fit.

    >>> table = torch.tensor([[0.0], [0.1], [0.2], [0.3]])
    >>> at = torch.arange(3)
    >>> T5Bias(table, bidirectional=False, max_distance=8).tile(slice(0, 1), slice(0, 1), at, at)[0, 0]
    tensor([[0.0000, 0.0000, 0.0000],
            [0.1000, 0.0000, 0.0000],
            [0.2000, 0.1000, 0.0000]])
    """

    role: ClassVar[Literal["bias", "weight_factor"] | None] = "bias"
    table: Float[Tensor, "buckets heads"]
    bidirectional: bool = field(kw_only=True)
    max_distance: int = field(default=128, kw_only=True)

    def __post_init__(self) -> None:
        check_table("table", self.table, "buckets")
        _check(self.table.shape[0], self.bidirectional, self.max_distance)

    @property
    def leading(self) -> tuple[int, int]:
        """The same for all sequences."""
        return 1, self.table.shape[1]

    def diagonals(self, distance: Int[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        """Look each distance's bucket up."""
        return look_up(self.table, self._buckets(distance)).T

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Look the pair's bucket up."""
        return look_up(self.table, self._buckets(i - j), head)

    def _buckets(self, distance: Tensor) -> Tensor:
        return t5_buckets(
            distance, self.table.shape[0], bidirectional=self.bidirectional, max_distance=self.max_distance
        )


def _check(num_buckets: int, bidirectional: bool, max_distance: int) -> None:
    if not isinstance(bidirectional, bool):
        raise InputError(f"`bidirectional` must be True (encoders) or False (decoders, causal), got {bidirectional!r}")
    check_count("num_buckets", num_buckets, 4 if bidirectional else 2, "counts the rows of the table")
    if bidirectional and num_buckets % 2:
        raise InputError(
            f"`num_buckets` must be even, half of them for each direction, got {num_buckets}: the last row would "
            "never be read"
        )
    exact = num_buckets // 4 if bidirectional else num_buckets // 2
    check_count("max_distance", max_distance, exact + 1, "lies beyond the buckets of one distance each")
