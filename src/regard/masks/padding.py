"""Padding: keys that only fill up a batch are seen by no one."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask, Rectangles
from regard.masks.checks import check_tensor

__all__ = ["Padding"]


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """real[b, j]: key j is a token; `real` (batch, keys) is True for tokens and False for padding.

    This is the reverse of `key_padding_mask` in PyTorch (see `masks.from_key_padding_mask`) and the same as
    `attention_mask` of Hugging Face tokenizers turned into booleans (see `masks.from_zeros_and_ones`).

    Cost: O(queries · keys · dim) time, less the blocks that are padding alone; one flag a key, a byte each,
    copied from the tensor.

    >>> import torch
    >>> Padding.from_lengths(torch.tensor([3, 1]), keys=3).bind(1, 3).dense(batch=2)[:, 0].int()
    tensor([[[1, 1, 1]],
    <BLANKLINE>
            [[1, 0, 0]]], dtype=torch.int32)
    """

    real: Bool[Tensor, "batch keys"]

    def __post_init__(self) -> None:
        check_tensor("real", self.real, "a boolean tensor (batch, keys), True for tokens")
        if self.real.dtype != torch.bool or self.real.ndim != 2:
            raise InputError(
                f"`real` must be a boolean tensor (batch, keys), True for tokens, got {self.real.dtype} of shape "
                f"{tuple(self.real.shape)}; masks.from_zeros_and_ones converts zeros and ones"
            )
        super().__post_init__()

    @classmethod
    def from_lengths(cls, lengths: Int[Tensor, " batch"], keys: int) -> "Padding":
        """The first `lengths[b]` of `keys` positions are real."""
        return cls(torch.arange(keys, device=lengths.device) < lengths[:, None])

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key is a token."""
        return self.real[batch if self.real.shape[0] > 1 else torch.zeros_like(batch), j]

    def blocks(self, rectangles: Rectangles) -> Tensor:
        """Count the real keys of each column range with one prefix sum a sequence."""
        counts = torch.nn.functional.pad(self.real.cpu().long().cumsum(1), (1, 0))
        real = counts[:, rectangles.right] - counts[:, rectangles.left]
        kinds = 1 + (real == rectangles.right - rectangles.left).to(torch.int8) - (real == 0).to(torch.int8)
        return kinds.expand(-1, *(rectangles.top + rectangles.left).shape)[:, None]

    @property
    def leading(self) -> tuple[int, int]:
        """One set of keys a sequence."""
        return self.real.shape[0], 1

    def resolve(self, queries: int, keys: int, query_start: int) -> Mask:
        """Check that there is a flag for every key."""
        if self.real.shape[1] != keys:
            raise InputError(f"`real` must have one flag for each of {keys} keys, got {self.real.shape[1]}")
        return self
