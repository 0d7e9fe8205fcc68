"""Masks and lengths of other libraries turned into ours and back; each converter is named for what it converts.

`cu_seqlens` are the edges of sequences without padding, as flash-attention's varlen calls take them: 0 and the
cumulated lengths, int32.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32, Num, Shaped
from torch import Tensor

from regard.checks import check_tensor
from regard.errors import InputError
from regard.masks.base import BoundMask, Mask, check_kind
from regard.masks.dense import Dense
from regard.masks.padding_and_global import Padding, as_booleans

__all__ = [
    "Unpadded",
    "cu_seqlens_from_lengths",
    "from_attention_mask",
    "from_key_padding_mask",
    "from_mha_attn_mask",
    "pack",
    "to_attention_mask",
    "to_dense_mask",
    "to_key_padding_mask",
    "to_mha_attn_mask",
    "unpack",
    "unpad",
]


def from_attention_mask(mask: Num[Tensor, "..."] | Bool[Tensor, "..."]) -> Mask:
    """Convert a mask of ones (seen) and zeros (hidden), integer, float or boolean.

    Shapes: (batch, keys), one flag for each token, as in Hugging Face and Keras; (batch, 1, 1, keys), the same flags as
    in tutorials; (batch or 1, heads or 1, queries, keys), a matrix. A matrix of shape (queries, keys) cannot be
    distinguished from (batch, keys): pass mask[None, None] for a matrix.

    >>> import torch
    >>> from_attention_mask(torch.tensor([[1, 1, 0]])).bind(1, 3).dense()[0, 0].int()
    tensor([[1, 1, 0]], dtype=torch.int32)
    """
    check_tensor("mask", mask, "a tensor of zeros and ones")
    seen = as_booleans("mask", mask)
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


def to_attention_mask(padding: Padding, *, dtype: torch.dtype = torch.int64) -> Num[Tensor, "batch keys"]:
    """Write a padding as the `attention_mask` of transformers: 1 for tokens, 0 for padding.

    >>> import torch
    >>> to_attention_mask(Padding.from_lengths(torch.tensor([3, 1]), kv_len=3))
    tensor([[1, 1, 1],
            [1, 0, 0]])
    """
    if not isinstance(padding, Padding):
        raise InputError(
            f"`attention_mask` can say Padding alone, got {type(padding).__name__}: masks.to_dense_mask writes any "
            "mask as a matrix"
        )
    return padding.attention_mask.to(dtype)


def to_dense_mask(
    mask: BoundMask, *, batch: int | None = None, num_heads: int | None = None, dtype: torch.dtype = torch.int64
) -> Num[Tensor, "batch heads queries keys"]:
    """Write a mask as a matrix of ones (seen) and zeros (hidden).

    Batch and heads are those of the mask, 1 where it holds for all, unless they are given. For flags of tokens (batch,
    keys) see `to_attention_mask`.

    >>> from regard.masks import Causal
    >>> to_dense_mask(Causal().bind(3, 3))[0, 0]
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]])
    """
    check_kind("mask", mask, BoundMask)
    return _expanded(mask, batch, num_heads).to(dtype)


def from_key_padding_mask(mask: Bool[Tensor, "batch keys"]) -> Padding:
    """Convert PyTorch's `key_padding_mask` (batch, keys), in which True hides a key.

    >>> import torch
    >>> from_key_padding_mask(torch.tensor([[False, False, True]])).attention_mask
    tensor([[ True,  True, False]])
    """
    check_tensor("mask", mask, "a boolean tensor (batch, keys), True = padding")
    if mask.dtype != torch.bool or mask.ndim != 2:
        raise InputError(
            f"`mask` must be a boolean tensor (batch, keys), True = padding, got {mask.dtype} of shape "
            f"{tuple(mask.shape)}"
        )
    return Padding(~mask)


def to_key_padding_mask(padding: Padding) -> Bool[Tensor, "batch keys"]:
    """Write a padding as PyTorch's `key_padding_mask`, in which True hides a key.

    >>> import torch
    >>> to_key_padding_mask(Padding.from_lengths(torch.tensor([3, 1]), kv_len=3))
    tensor([[False, False, False],
            [False,  True,  True]])
    """
    if not isinstance(padding, Padding):
        raise InputError(
            f"`key_padding_mask` can say Padding alone, got {type(padding).__name__}: masks.to_mha_attn_mask "
            "writes any mask as a matrix"
        )
    return ~padding.attention_mask


def from_mha_attn_mask(mask: Bool[Tensor, "..."], *, num_heads: int | None = None) -> Dense:
    """Convert the boolean `attn_mask` of `nn.MultiheadAttention`, in which True hides.

    PyTorch has two opposite conventions under one name. In `nn.MultiheadAttention` and `nn.Transformer`, True hides a
    key. This function converts such a mask. In `F.scaled_dot_product_attention`, True shows a key, as everywhere in
    regard; such a mask needs no conversion. A float mask is added to the scores in both: pass it as `bias=`.

    Shapes: (queries, keys), or (batch · num_heads, queries, keys), for which `num_heads` must be given.

    >>> import torch
    >>> from_mha_attn_mask(torch.tensor([[False, True], [False, False]])).bind(2, 2).dense()[0, 0].int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    check_tensor("mask", mask, "a boolean tensor, True = hidden")
    if mask.dtype != torch.bool:
        raise InputError(
            f"`mask` must be boolean, True = hidden, got {mask.dtype}: floats are added to the scores, pass them as "
            "`bias=`; masks.from_attention_mask converts zeros (hidden) and ones (seen)"
        )
    if mask.ndim == 2:
        return Dense(~mask)
    if mask.ndim != 3:
        raise InputError(
            f"`mask` must be (queries, keys) or (batch · num_heads, queries, keys), got {tuple(mask.shape)}"
        )
    if num_heads is None or num_heads < 1 or len(mask) % num_heads:
        raise InputError(
            f"`mask` of shape {tuple(mask.shape)} is (batch · num_heads, queries, keys): give `num_heads=`, a divisor "
            f"of {len(mask)}, got {num_heads}"
        )
    return Dense(~mask.unflatten(0, (-1, num_heads)))


def to_mha_attn_mask(
    mask: BoundMask, *, batch: int | None = None, num_heads: int | None = None, dtype: torch.dtype = torch.bool
) -> Bool[Tensor, "..."] | Float[Tensor, "..."]:
    """Write a mask as `attn_mask` of `nn.MultiheadAttention`: True hides; a float `dtype` has 0 (seen) and −inf.

    The shape is (queries, keys), or (batch · num_heads, queries, keys) if `batch` or `num_heads` is given or if the
    mask differs between sequences or heads. In the second case both must be given. `F.scaled_dot_product_attention` has
    the opposite convention: pass `mask.dense()` to it.

    >>> from regard.masks import Causal
    >>> to_mha_attn_mask(Causal().bind(2, 2))
    tensor([[False,  True],
            [False, False]])
    >>> to_mha_attn_mask(Causal().bind(2, 2), dtype=torch.float32)
    tensor([[0., -inf],
            [0., 0.]])
    """
    check_kind("mask", mask, BoundMask)
    if batch is None and num_heads is None and mask.mask.leading == (1, 1) and not any(_undeclared(mask)):
        hidden = ~mask.dense()[0, 0]
    elif batch is None or num_heads is None:
        raise InputError(
            f"`attn_mask` has one matrix for each of batch · num_heads: give `batch=` and `num_heads=`, got {batch} "
            f"and {num_heads}"
        )
    else:
        hidden = ~_expanded(mask, batch, num_heads).flatten(0, 1)
    if dtype == torch.bool:
        return hidden
    if not dtype.is_floating_point:
        raise InputError(f"`attn_mask` is boolean or float, got {dtype}: masks.to_dense_mask writes integers")
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(hidden, -torch.inf)


def _expanded(mask: BoundMask, batch: int | None, num_heads: int | None) -> Tensor:
    own = mask.mask.leading
    for name, given, held in (("batch", batch, own[0]), ("num_heads", num_heads, own[1])):
        if given is not None and held not in (1, given):
            raise InputError(f"`{name}` must be that of the mask, {held}, got {given}")
    for name, given, reads in zip(("batch", "num_heads"), (batch, num_heads), _undeclared(mask), strict=True):
        if given is None and reads:
            raise InputError(f"`{name}` must be given: the mask reads its number, and does not say how many there are")
    batch, num_heads = batch or own[0], num_heads or own[1]
    return mask.dense(batch, num_heads).expand(batch, num_heads, mask.q_len, mask.kv_len)


def _undeclared(mask: BoundMask) -> tuple[bool, bool]:
    """Return whether a mask differs between sequences, and between heads, of which it declares one (`Mask.leading`)."""
    own, one = mask.mask.leading, slice(0, 1)
    if not (mask.q_len and mask.kv_len):
        return False, False

    def reads(dim: int, **two: int) -> bool:
        try:
            found = mask.tile(one, one, **{"batch": own[0], "heads": own[1], **two}, device=torch.device("cpu")).shape
        except IndexError:  # of a function that looks up a tensor for one
            return False
        return found[dim] > own[dim]

    return reads(0, batch=max(2, own[0])), reads(1, heads=max(2, own[1]))


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
