"""Token ids and attention masks as they are given to a model, checked: shapes, ranges, padding."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.errors import InputError

__all__ = ["check_ids", "mask_of", "token_mask"]


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


def check_ids(name: str, ids: Tensor, vocabulary: int, counted: str, rows: int | None = None) -> None:
    """Raise unless `ids` are (batch, n) tokens of the vocabulary; `counted` is the option that says how many it has."""
    if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32) or 0 in ids.shape:
        raise InputError(
            f"`{name}` must be token ids (batch, length) of at least one token, got {ids.dtype} of shape "
            f"{tuple(ids.shape)}: write ids[None].long() for a single text"
        )
    if rows is not None and len(ids) != rows:
        raise InputError(f"`{name}` must have a row for each of {rows} texts, got {len(ids)}: pair them one to one")
    low, high = (int(one) for one in ids.aminmax())
    if low < 0 or high >= vocabulary:
        raise InputError(
            f"`{name}` must hold tokens from 0 to {vocabulary - 1}, got {low if low < 0 else high}: raise `{counted}` "
            "or use the tokenizer that the model was made for"
        )


def mask_of(
    ids: Int[Tensor, "batch source"], mask: Shaped[Tensor, "batch source"] | None, pad_token_id: int | None
) -> Bool[Tensor, "batch source"] | None:
    """Return which ids are tokens: by default all but the padding; None where all are. Padding must be on the right."""
    if mask is None:
        if pad_token_id is None:
            return None
        mask = ids != pad_token_id
    seen = token_mask("attention_mask", mask, ids.shape)
    assert seen is not None
    if bool(seen.all()):
        return None
    if not bool(seen[:, 0].all()) or bool((seen[:, 1:] & ~seen[:, :-1]).any()):
        raise InputError(
            "`attention_mask` must be 1 for the first tokens of each source, one at least, and 0 for the rest, as the "
            "encoder runs both ways from end to end, got padding on the left or a gap: pad on the right"
        )
    return seen
