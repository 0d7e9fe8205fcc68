"""Padding: keys that only fill up a batch are seen by no one."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Num
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.block_plan import Rectangles
from regard.masks.checks import as_booleans, check_tensor

__all__ = ["Padding"]


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """attention_mask[b, j]: key j is a token; (batch, keys), 1 or True for tokens and 0 or False for padding.

    It is the `attention_mask` that Hugging Face's tokenizers give, as it is, and the reverse of PyTorch's
    `key_padding_mask` (see `masks.from_key_padding_mask`). It is held as booleans.

    Cost: O(queries · keys · dim) time, less the blocks that are padding alone; one flag a key, a byte each,
    copied from the tensor.

    >>> import torch
    >>> Padding.from_lengths(torch.tensor([3, 1]), kv_len=3).bind(1, 3).dense(batch=2)[:, 0].int()
    tensor([[[1, 1, 1]],
    <BLANKLINE>
            [[1, 0, 0]]], dtype=torch.int32)
    """

    attention_mask: Bool[Tensor, "batch keys"] | Num[Tensor, "batch keys"]

    def __post_init__(self) -> None:
        given = self.attention_mask
        check_tensor("attention_mask", given, "a tensor (batch, keys), 1 for tokens and 0 for padding")
        if given.ndim != 2:
            raise InputError(
                f"`attention_mask` must be (batch, keys), got {tuple(given.shape)}: a matrix of queries and keys is "
                "masks.Dense"
            )
        object.__setattr__(self, "attention_mask", as_booleans("attention_mask", given))
        super().__post_init__()

    @classmethod
    def from_lengths(cls, lengths: Int[Tensor, " batch"], kv_len: int) -> "Padding":
        """The first `lengths[b]` of `kv_len` positions are tokens."""
        return cls(torch.arange(kv_len, device=lengths.device) < lengths[:, None])

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key is a token."""
        return self.attention_mask[batch if self.attention_mask.shape[0] > 1 else torch.zeros_like(batch), j]

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Count the tokens of each column range with one prefix sum a sequence."""
        counts = torch.nn.functional.pad(self.attention_mask.cpu().long().cumsum(1), (1, 0))
        tokens = counts[:, rectangles.right] - counts[:, rectangles.left]
        kinds = 1 + (tokens == rectangles.right - rectangles.left).to(torch.int8) - (tokens == 0).to(torch.int8)
        return kinds.expand(-1, *(rectangles.top + rectangles.left).shape)[:, None]

    @property
    def token_spans(self) -> Int[Tensor, "batch 2"]:
        """First token of each sequence, and one after its last; 0 and 0 where there is none."""
        count = self.attention_mask.shape[1]
        places = torch.arange(count, device=self.attention_mask.device)
        first = torch.where(self.attention_mask, places, count).amin(1) if count else places.new_zeros(1)
        end = torch.where(self.attention_mask, places + 1, 0).amax(1) if count else places.new_zeros(1)
        return torch.stack((torch.minimum(first, end), end), 1)

    @property
    def leading(self) -> tuple[int, int]:
        """One set of keys a sequence."""
        return self.attention_mask.shape[0], 1

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Check that there is a flag for every key."""
        if self.attention_mask.shape[1] != kv_len:
            given = self.attention_mask.shape[1]
            raise InputError(f"`attention_mask` must have one flag for each of {kv_len} keys, got {given}")
        return self
