"""What the model asks of the tokens it is given."""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.errors import InputError
from regard.models.token_mask import token_mask

__all__ = ["check_ids", "mask_of"]


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
