"""The masks people have, turned into ours and back; each converter is named for what it converts."""

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import BoundMask, Mask
from regard.masks.checks import check_kind, check_tensor
from regard.masks.dense import Dense
from regard.masks.padding import Padding

__all__ = [
    "from_attn_mask",
    "from_key_padding_mask",
    "from_zeros_and_ones",
    "to_attn_mask",
    "to_key_padding_mask",
    "to_zeros_and_ones",
]

# What Hugging Face adds to a score to hide it, whatever type the mask was cast to since.
_LOWEST = tuple(torch.finfo(dtype).min for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64))


def from_zeros_and_ones(mask: Num[Tensor, "..."] | Bool[Tensor, "..."]) -> Mask:
    """Convert a mask of ones (seen) and zeros (hidden), integer, float or boolean.

    Shapes: (batch, keys), as Hugging Face and Keras give it, a flag for each token; (batch, 1, 1, keys), the same as
    tutorials write it; (batch or 1, heads or 1, queries, keys), a matrix. A matrix (queries, keys) alone looks like
    (batch, keys): write mask[None, None] for it.

    >>> import torch
    >>> from_zeros_and_ones(torch.tensor([[1, 1, 0]])).bind(1, 3).dense()[0, 0].int()
    tensor([[1, 1, 0]], dtype=torch.int32)
    """
    check_tensor("mask", mask, "a tensor of zeros and ones")
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


def to_zeros_and_ones(
    mask: BoundMask, *, batch: int | None = None, heads: int | None = None, dtype: torch.dtype = torch.int64
) -> Num[Tensor, "batch heads queries keys"]:
    """Write a mask as a matrix of ones (seen) and zeros (hidden).

    Batch and heads are those of the mask, 1 where it holds for all, unless they are given. Flags of tokens (batch,
    keys), as Hugging Face and Keras take them, are `padding.real.int()`.

    >>> from regard.masks import Causal
    >>> to_zeros_and_ones(Causal().bind(3, 3))[0, 0]
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]])
    """
    check_kind("mask", mask, BoundMask)
    return _expanded(mask, batch, heads).to(dtype)


def from_key_padding_mask(mask: Bool[Tensor, "batch keys"]) -> Padding:
    """Convert PyTorch's `key_padding_mask` (batch, keys), in which True hides a key.

    >>> import torch
    >>> from_key_padding_mask(torch.tensor([[False, False, True]])).real
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
    >>> to_key_padding_mask(Padding.from_lengths(torch.tensor([3, 1]), keys=3))
    tensor([[False, False, False],
            [False,  True,  True]])
    """
    if not isinstance(padding, Padding):
        raise InputError(
            f"`key_padding_mask` can say Padding alone, got {type(padding).__name__}: masks.to_attn_mask writes any "
            "mask as a matrix"
        )
    return ~padding.real


def from_attn_mask(mask: Bool[Tensor, "..."] | Float[Tensor, "..."], *, heads: int | None = None) -> Dense:
    """Convert `attn_mask` of `nn.MultiheadAttention`, in which True hides, or one of 0 (seen) and −inf (hidden).

    PyTorch has two opposite conventions under one name. In `nn.MultiheadAttention` and `nn.Transformer` True hides a
    key: this function. In `F.scaled_dot_product_attention` True shows it, as everywhere here: pass such a mask as it
    is. Floats, which both add to the scores, mean the same in both.

    Shapes: (queries, keys); (batch · heads, queries, keys), for which `heads` must be given; (batch or 1, heads or 1,
    queries, keys), as Hugging Face has them, with the lowest number of a float type in place of −inf. A query that
    sees nothing gets output 0 here; adding the lowest number instead spreads it over all keys.

    >>> import torch
    >>> from_attn_mask(torch.tensor([[False, True], [False, False]])).bind(2, 2).dense()[0, 0].int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    check_tensor("mask", mask, "a tensor, True = hidden, or of 0 and −inf")
    visible = ~mask if mask.dtype == torch.bool else _without_numbers(mask)
    if visible.ndim == 3:
        if heads is None or heads < 1 or len(visible) % heads:
            raise InputError(
                f"`mask` of shape {tuple(mask.shape)} is (batch · heads, queries, keys): give `heads=`, a divisor of "
                f"{len(visible)}, got {heads}"
            )
        visible = visible.unflatten(0, (-1, heads))
    if visible.ndim not in (2, 4):
        raise InputError(
            "`mask` must be (queries, keys), (batch · heads, queries, keys) or (batch, heads, queries, keys), got "
            f"{tuple(mask.shape)}"
        )
    return Dense(visible)


def to_attn_mask(
    mask: BoundMask, *, batch: int | None = None, heads: int | None = None, dtype: torch.dtype = torch.bool
) -> Bool[Tensor, "..."] | Float[Tensor, "..."]:
    """Write a mask as `attn_mask` of `nn.MultiheadAttention`: True hides; a float `dtype` has 0 (seen) and −inf.

    The shape is (queries, keys), or (batch · heads, queries, keys) if either is given or differs within the mask:
    give both then. `F.scaled_dot_product_attention` takes the reverse, which is `mask.dense()`.

    >>> from regard.masks import Causal
    >>> to_attn_mask(Causal().bind(2, 2))
    tensor([[False,  True],
            [False, False]])
    >>> to_attn_mask(Causal().bind(2, 2), dtype=torch.float32)
    tensor([[0., -inf],
            [0., 0.]])
    """
    check_kind("mask", mask, BoundMask)
    if batch is None and heads is None and mask.mask.leading == (1, 1):
        hidden = ~mask.dense()[0, 0]
    elif batch is None or heads is None:
        raise InputError(
            f"`attn_mask` has one matrix for each of batch · heads: give `batch=` and `heads=`, got {batch} and {heads}"
        )
    else:
        hidden = ~_expanded(mask, batch, heads).flatten(0, 1)
    if dtype == torch.bool:
        return hidden
    if not dtype.is_floating_point:
        raise InputError(f"`attn_mask` is boolean or float, got {dtype}: masks.to_zeros_and_ones writes integers")
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(hidden, -torch.inf)


def _expanded(mask: BoundMask, batch: int | None, heads: int | None) -> Tensor:
    own = mask.mask.leading
    for name, given, held in (("batch", batch, own[0]), ("heads", heads, own[1])):
        if given is not None and held not in (1, given):
            raise InputError(f"`{name}` must be that of the mask, {held}, got {given}")
    batch, heads = batch or own[0], heads or own[1]
    return mask.dense(batch, heads).expand(batch, heads, mask.queries, mask.keys)


def _without_numbers(mask: Tensor) -> Tensor:
    """True where a mask that is added to the scores holds 0, False where it hides."""
    if not mask.dtype.is_floating_point:
        raise InputError(
            f"`mask` must be boolean, True = hidden, or 0 and −inf in floats, got {mask.dtype}: "
            "masks.from_zeros_and_ones converts zeros and ones"
        )
    hidden = mask == -torch.inf
    for lowest in _LOWEST:
        hidden = hidden | (mask == torch.tensor(lowest, dtype=torch.float64).to(mask.dtype))
    odd = mask[(mask != 0) & ~hidden]
    if odd.numel():
        raise InputError(
            f"`mask` must hold 0 (seen) and −inf (hidden) alone, got {odd[0].item()}: numbers that are added to the "
            "scores are a bias, pass it as `bias=`"
        )
    return ~hidden
