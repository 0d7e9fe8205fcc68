"""transformers' attention_mask, 1 for tokens and 0 for padding, as a boolean tensor."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.errors import InputError

__all__ = ["token_mask"]


def token_mask(
    name: str, mask: Tensor | None, shape: Sequence[int], before: int = 0
) -> Bool[Tensor, "batch all"] | None:
    """Return an attention_mask of any type as a boolean one, True for tokens; `before` of them are a cache's.

    Raises:
        InputError: It has another shape, or values that are neither 0 nor 1.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[0] != shape[0] or mask.shape[1] != shape[1]:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        cached = f", the {before} tokens of the cache included" if before else ""
        raise InputError(f"`{name}` must have shape {tuple(shape)} (batch, tokens){cached}, got {found}")
    if mask.dtype == torch.bool:
        return mask
    seen = mask != 0
    if not torch.compiler.is_compiling() and not bool((mask.eq(1) == seen).all()):
        wrong = mask[mask.ne(1) & seen][0].item()
        raise InputError(f"`{name}` has 1 (or True) for tokens and 0 (or False) for padding, got {wrong}")
    return seen
