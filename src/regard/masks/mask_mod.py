"""MaskMod: any function of pairs of positions."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from regard.masks.base import Mask

__all__ = ["MaskMod"]


@dataclass(frozen=True)
class MaskMod(Mask):
    """mask_mod(batch, head, i, j): any function of integer tensors that broadcast, True where a query may see a key.

    The same four arguments as `mask_mod` of PyTorch's FlexAttention.

    Cost: O(queries · keys · dim) time: the function is called for every pair and no block is skipped. No memory.

    >>> import torch
    >>> even = MaskMod(lambda batch, head, i, j: (i - j) % 2 == 0)
    >>> even.bind(3, 3).dense()[0, 0].int()
    tensor([[1, 0, 1],
            [0, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """

    mask_mod: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Call the function."""
        return self.mask_mod(batch, head, i, j)
