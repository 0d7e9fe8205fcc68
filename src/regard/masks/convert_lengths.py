"""Batches without padding: the tokens of all sequences one after another, as flash-attention's varlen calls take them.

`cu_seqlens` are the edges of the sequences: 0 and the cumulated lengths, int32.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int, Int32, Shaped
from torch import Tensor

from regard.errors import InputError
from regard.masks.checks import check_kind, check_tensor
from regard.masks.padding import Padding

__all__ = ["Unpadded", "cu_seqlens_from_lengths", "pack", "unpack", "unpad"]


class Unpadded(NamedTuple):
    """Where the tokens of a padded batch are, as `unpad_input` of flash-attention says it."""

    indices: Int[Tensor, " tokens"]  # positions in the flattened batch
    cu_seqlens: Int32[Tensor, " edges"]  # batch + 1 of them
    max_length: int


def cu_seqlens_from_lengths(lengths: Int[Tensor, " batch"]) -> Int32[Tensor, " edges"]:
    """Cumulate the lengths of sequences into the edges between them.

    >>> import torch
    >>> cu_seqlens_from_lengths(torch.tensor([3, 1, 2]))
    tensor([0, 3, 4, 6], dtype=torch.int32)
    """
    check_tensor("lengths", lengths, "a tensor of integers, one for each sequence")
    if lengths.ndim != 1 or lengths.dtype.is_floating_point or bool((lengths < 0).any()):
        raise InputError(f"`lengths` must be integers of 0 or more, one for each sequence, got {lengths}")
    if int(lengths.sum()) >= 2**31:
        raise InputError(f"`cu_seqlens` are 32-bit integers, got {int(lengths.sum())} tokens: split the batch")
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def unpad(padding: Padding) -> Unpadded:
    """Find the tokens of a padded batch: their indices, the edges of the sequences and the greatest length.

    >>> import torch
    >>> unpad(Padding(torch.tensor([[True, True, False], [True, False, False]])))
    Unpadded(indices=tensor([0, 1, 3]), cu_seqlens=tensor([0, 2, 3], dtype=torch.int32), max_length=2)
    """
    check_kind("padding", padding, Padding)
    tokens = padding.attention_mask
    lengths = tokens.sum(1)
    return Unpadded(tokens.flatten().nonzero()[:, 0], cu_seqlens_from_lengths(lengths), int(lengths.max()))


def pack(x: Shaped[Tensor, "batch keys *rest"], padding: Padding) -> Shaped[Tensor, "tokens *rest"]:
    """Write the tokens of all sequences one after another, without the padding.

    >>> import torch
    >>> x = torch.tensor([[[1, 2], [3, 4]], [[5, 6], [0, 0]]])
    >>> pack(x, Padding(torch.tensor([[True, True], [True, False]])))
    tensor([[1, 2],
            [3, 4],
            [5, 6]])
    """
    check_kind("padding", padding, Padding)
    check_tensor("x", x, "a tensor (batch, keys, ...)")
    if x.shape[:2] != padding.attention_mask.shape:
        raise InputError(
            f"`x` must start with the batch and keys of the padding, {tuple(padding.attention_mask.shape)}, got "
            f"{tuple(x.shape)}"
        )
    return x[padding.attention_mask]


def unpack(packed: Shaped[Tensor, "tokens *rest"], padding: Padding) -> Shaped[Tensor, "batch keys *rest"]:
    """Put the tokens back in their places, and zeros in the padding.

    >>> import torch
    >>> unpack(torch.tensor([7, 8, 9]), Padding(torch.tensor([[True, True], [True, False]])))
    tensor([[7, 8],
            [9, 0]])
    """
    check_kind("padding", padding, Padding)
    check_tensor("packed", packed, "a tensor (tokens, ...)")
    tokens = padding.attention_mask
    if len(packed) != (count := int(tokens.sum())):
        raise InputError(f"`packed` must hold the {count} tokens that the padding leaves, got {len(packed)}")
    return packed.new_zeros(*tokens.shape, *packed.shape[1:]).index_put((tokens,), packed)
