"""The masks people have, turned into ours; each converter is named for what it converts."""

import torch
from jaxtyping import Bool, Num
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.dense import Dense
from regard.masks.padding import Padding

__all__ = ["from_key_padding_mask", "from_zeros_and_ones"]


def from_zeros_and_ones(mask: Num[Tensor, "..."] | Bool[Tensor, "..."]) -> Mask:
    """Convert a mask of ones (seen) and zeros (hidden), integer, float or boolean.

    Shapes: (batch, keys), as Hugging Face and Keras give it, a flag for each token; (batch, 1, 1, keys), the same as
    tutorials write it; (batch or 1, heads or 1, queries, keys), a matrix. A matrix (queries, keys) alone looks like
    (batch, keys): write mask[None, None] for it.

    >>> import torch
    >>> from_zeros_and_ones(torch.tensor([[1, 1, 0]])).bind(1, 3).dense()[0, 0].int()
    tensor([[1, 1, 0]], dtype=torch.int32)
    """
    if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
        odd = mask[(mask != 0) & (mask != 1)].flatten()[0].item()
        way_out = (
            "a tensor of 0 and −inf is added to the scores: pass it as `bias=`" if odd < 0 else "pass zeros and ones"
        )
        raise InputError(f"`mask` must hold zeros (hidden) and ones (seen) alone, got {odd}: {way_out}")
    seen = mask.bool()
    if seen.ndim == 2:
        return Padding(seen)
    if seen.ndim == 4 and seen.shape[1] == seen.shape[2] == 1:
        return Padding(seen[:, 0, 0])
    if seen.ndim == 4:
        return Dense(seen)
    raise InputError(
        f"`mask` must be (batch, keys) or (batch, heads, queries, keys), got {tuple(mask.shape)}: "
        "write mask[:, None] for one matrix a sequence"
    )


def from_key_padding_mask(mask: Bool[Tensor, "batch keys"]) -> Padding:
    """Convert PyTorch's `key_padding_mask` (batch, keys), in which True hides a key.

    >>> import torch
    >>> from_key_padding_mask(torch.tensor([[False, False, True]])).real
    tensor([[ True,  True, False]])
    """
    if mask.dtype != torch.bool or mask.ndim != 2:
        raise InputError(
            f"`mask` must be a boolean tensor (batch, keys), True = padding, got {mask.dtype} of shape "
            f"{tuple(mask.shape)}"
        )
    return Padding(~mask)
