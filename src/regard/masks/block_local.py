"""BlockLocal: a query sees the block of keys that it stands in, and blocks beside it."""

from dataclasses import dataclass

from torch import Tensor

from regard.masks.base import Mask, Rectangles
from regard.masks.checks import check_count

__all__ = ["BlockLocal"]


@dataclass(frozen=True)
class BlockLocal(Mask):
    """−after ≤ ⌊i/size⌋ − ⌊j/size⌋ ≤ before: the query's own block of `size` positions and some on either side.

    Blocks begin at position 0; the last one may be shorter. This is the local attention of lucidrains' local-attention
    (before=1; with `Causal() &` for language models). LongT5 computes in such blocks too, but lets see a radius: that
    is `Window(before=r, after=r)`.

    Cost: O(n · (before + after + 1) · size · dim) time; no memory.

    >>> BlockLocal(2).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [0, 0, 1, 1, 0],
            [0, 0, 1, 1, 0],
            [0, 0, 0, 0, 1]], dtype=torch.int32)
    >>> BlockLocal(2, before=1).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 1, 0],
            [1, 1, 1, 1, 0],
            [0, 0, 1, 1, 1]], dtype=torch.int32)
    """

    size: int
    before: int = 0
    after: int = 0

    def __post_init__(self) -> None:
        check_count("size", self.size, 1, "counts the positions of a block")
        check_count("before", self.before, 0, "counts blocks")
        check_count("after", self.after, 0, "counts blocks")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key's block is near the query's."""
        distance = i // self.size - j // self.size
        return (distance <= self.before) & (-distance <= self.after)

    def blocks(self, rectangles: Rectangles) -> Tensor:
        """Compare the least and the greatest distance in blocks."""
        least = rectangles.top // self.size - (rectangles.right - 1) // self.size
        greatest = (rectangles.bottom - 1) // self.size - rectangles.left // self.size
        return rectangles.answer(
            empty=(least > self.before) | (greatest < -self.after),
            full=(greatest <= self.before) & (least >= -self.after),
        )
