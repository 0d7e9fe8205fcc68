"""What the model asks of the tokens it is given."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["check_ids", "check_real", "real_of"]


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


def check_real(real: Tensor, ids: Tensor) -> None:
    """Raise unless `real` is a flag for each token."""
    if real.shape != ids.shape or real.dtype != torch.bool:
        raise InputError(
            f"`real` must be boolean {tuple(ids.shape)}, True for tokens, got {real.dtype} of shape {tuple(real.shape)}"
            ": write real.bool() for zeros and ones"
        )


def real_of(
    ids: Int[Tensor, "batch source"], real: Bool[Tensor, "batch source"] | None, pad_token: int | None
) -> Bool[Tensor, "batch source"] | None:
    """Say which ids are tokens: by default all but the padding; None where all are. Padding must be on the right."""
    if real is None:
        if pad_token is None:
            return None
        real = ids != pad_token
    check_real(real, ids)
    if bool(real.all()):
        return None
    if not bool(real[:, 0].all()) or bool((real[:, 1:] & ~real[:, :-1]).any()):
        raise InputError(
            "`real` must be True for the first tokens of each source, one at least, and False for the rest, as the "
            "encoder reads both ways from end to end, got padding on the left or a gap: pad on the right"
        )
    return real
