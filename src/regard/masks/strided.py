"""Strided: a query sees every `stride`-th key, counted from itself."""

from dataclasses import dataclass

from torch import Tensor

from regard.masks.base import Mask
from regard.masks.block_plan import Rectangles
from regard.masks.checks import check_count
from regard.masks.dilated import distances, multiples

__all__ = ["Strided"]


@dataclass(frozen=True)
class Strided(Mask):
    """(i − j) mod stride = 0 (Sparse Transformer: Child et al. 2019, 4.3, arXiv:1904.10509).

    The keys are on both sides of the query. `Causal() & Strided(stride)` is the paper's second pattern, and
    `masks.sparse_transformer` combines both patterns of the paper.

    Cost: n²/stride pairs, which are spread out. If the stride is less than a block, every block contains some of them,
    and the time is O(n² · dim). No memory.

    >>> Strided(2).bind(4, 4).dense()[0, 0].int()
    tensor([[1, 0, 1, 0],
            [0, 1, 0, 1],
            [1, 0, 1, 0],
            [0, 1, 0, 1]], dtype=torch.int32)
    """

    stride: int

    def __post_init__(self) -> None:
        check_count("stride", self.stride, 1, "is the distance from key to key")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The distance is a multiple of the stride."""
        return (i - j) % self.stride == 0

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Count the distances i − j in each rectangle, and the multiples of the stride among them."""
        least, greatest = distances(rectangles)
        seen = multiples(least, greatest, self.stride)
        return rectangles.answer(empty=seen == 0, full=seen == greatest - least + 1)

    @property
    def relative(self) -> bool:
        """The distance is all that counts."""
        return True
