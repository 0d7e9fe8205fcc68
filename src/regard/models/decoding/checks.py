"""What decoding asks of numbers, tokens and prompts."""

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.errors import InputError
from regard.models.token_mask import token_mask

__all__ = ["check_count", "check_prompt", "check_tokens", "is_number", "nothing_to_choose"]


def check_count(name: str, value: object, what: str, at_least: int) -> None:
    """Raise unless `value` is an integer from `at_least` on; `what` tells what it is."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InputError(f"`{name}` {what} and must be an integer of at least {at_least}, got {value!r}")


def is_number(value: object) -> bool:
    """Tell whether it is a number, which True is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_tokens(name: str, value: object) -> None:
    """Raise unless `value` is a tuple of tokens."""
    if not isinstance(value, tuple) or any(isinstance(t, bool) or not isinstance(t, int) or t < 0 for t in value):
        raise InputError(
            f"`{name}` must be a tuple of tokens, integers of at least 0, got {value!r}: write (2,) for token 2, "
            "tuple(tokens) for a list"
        )


def check_prompt(prompt: Tensor, attention_mask: Tensor | None) -> Bool[Tensor, "rows n"] | None:
    """Return the mask as a boolean one; raise unless the prompt is (rows, n) with a token in each row."""
    if prompt.ndim != 2 or prompt.shape[1] == 0 or prompt.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"`prompt` must be integers (rows, n) with n of at least 1, got {prompt.dtype} of shape "
            f"{tuple(prompt.shape)}: write prompt[None] for one text, and begin an empty one with its start token"
        )
    mask = token_mask("attention_mask", attention_mask, prompt.shape)
    if mask is not None and not bool(mask.any(1).all()):
        row = int(mask.any(1).int().argmin())
        raise InputError(
            f"`attention_mask` must be 1 (or True) somewhere in each row, got only padding in row {row}: leave it out"
        )
    return mask


def nothing_to_choose() -> InputError:
    """Say why no token can be chosen."""
    return InputError(
        "`text` must give logits of which one at least can be chosen, got NaN, +inf, or -inf for every token that "
        "`limits` allow: look for overflow in the model (float16 instead of bfloat16 or float32), a prompt "
        "that it cannot read, or `suppress_tokens` and `min_new_tokens` that leave nothing"
    )
