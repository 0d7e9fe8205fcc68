"""Only: any rule of one's own on pairs of positions."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from regard.masks.base import Mask, Rectangles

__all__ = ["Only"]


@dataclass(frozen=True)
class Only(Mask):
    """rule(batch, head, i, j): any rule on integer tensors that broadcast; what it leaves is found pair by pair.

    Cost: O(queries · keys · dim) time: the rule is asked for every pair and no block is skipped. No memory.

    >>> import torch
    >>> even = Only(lambda batch, head, i, j: (i - j) % 2 == 0)
    >>> even.bind(3, 3).dense()[0, 0].int()
    tensor([[1, 0, 1],
            [0, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """

    rule: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The rule's answer."""
        return self.rule(batch, head, i, j)

    def blocks(self, rectangles: Rectangles) -> Tensor:
        """PARTIAL everywhere: an unknown rule promises nothing about rectangles."""
        never = (rectangles.bottom < rectangles.top) & (rectangles.right < rectangles.left)
        return rectangles.answer(empty=never, full=never)
