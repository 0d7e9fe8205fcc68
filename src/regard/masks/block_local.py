"""BlockLocal: a query sees the block of keys that it stands in, and blocks beside it."""

from dataclasses import dataclass

from torch import Tensor

from regard.checks import check_count
from regard.masks.base import Mask
from regard.masks.rectangles import Rectangles

__all__ = ["BlockLocal"]


@dataclass(frozen=True)
class BlockLocal(Mask):
    """−look_forward ≤ ⌊i/size⌋ − ⌊j/size⌋ ≤ look_backward: the query's own block of `size` positions and
    some on either side.

    Blocks begin at position 0, and the last block may be shorter. With look_backward=1 this is the local attention of
    lucidrains' local-attention; for language models combine it with `Causal() &`. LongT5 computes in such blocks too,
    but its queries see a radius: that is `Window(left=r, right=r)`.

    Cost: O(n · (look_backward + look_forward + 1) · size · dim) time; no memory.

    >>> BlockLocal(2).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [0, 0, 1, 1, 0],
            [0, 0, 1, 1, 0],
            [0, 0, 0, 0, 1]], dtype=torch.int32)
    >>> BlockLocal(2, look_backward=1).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 1, 0],
            [1, 1, 1, 1, 0],
            [0, 0, 1, 1, 1]], dtype=torch.int32)
    """

    size: int
    look_backward: int = 0
    look_forward: int = 0

    def __post_init__(self) -> None:
        check_count("size", self.size, 1, "counts the positions of a block")
        check_count("look_backward", self.look_backward, 0, "counts blocks")
        check_count("look_forward", self.look_forward, 0, "counts blocks")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key's block is near the query's."""
        distance = i // self.size - j // self.size
        return (distance <= self.look_backward) & (-distance <= self.look_forward)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Compare the least and the greatest distance in blocks."""
        least = rectangles.top // self.size - (rectangles.right - 1) // self.size
        greatest = (rectangles.bottom - 1) // self.size - rectangles.left // self.size
        return rectangles.answer(
            empty=(least > self.look_backward) | (greatest < -self.look_forward),
            full=(greatest <= self.look_backward) & (least >= -self.look_forward),
        )
