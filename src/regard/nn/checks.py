"""What several modules ask of their sizes and masks."""

import torch
from torch import Tensor

from regard.errors import InputError
from regard.masks import BoundMask, Dense, Mask, Padding, from_attention_mask

__all__ = [
    "both",
    "check_flag",
    "check_padding",
    "check_probability",
    "check_size",
    "check_width",
    "mask_of",
    "visible_keys",
]


def check_size(name: str, value: object, what: str) -> int:
    """Give `value` back if it is a positive integer; `what` tells what it counts."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"`{name}` {what} and must be an integer of at least 1, got {value!r}")
    return value


def check_flag(name: str, value: object) -> bool:
    """Give `value` back if it is True or False: a number in its place is another argument's."""
    if not isinstance(value, bool):
        raise InputError(f"`{name}` must be True or False, got {value!r}")
    return value


def check_probability(name: str, value: object) -> float:
    """Give `value` back if it is a probability of dropping."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"`{name}` is a probability from 0 to less than 1, got {value!r}")
    return float(value)


def check_width(name: str, x: Tensor, width: int, made_by: str) -> None:
    """Raise unless `x` is (..., n, width); `made_by` is the argument of the constructor that says the width."""
    if x.ndim < 2 or x.shape[-1] != width:
        raise InputError(
            f"`{name}` must be (..., length, {width}), got shape {tuple(x.shape)}: build the module with "
            f"`{made_by}={x.shape[-1] if x.ndim else 1}`, or project it first"
        )


def check_padding(x: Tensor, padding: object, name: str = "key_padding_mask", *, x_name: str = "x") -> Tensor:
    """Give `padding` back if it has a flag for each token of each sequence of `x`; `name` is that of the argument."""
    if isinstance(padding, Tensor) and padding.dtype == torch.bool and x.ndim == 3 and padding.shape == x.shape[:2]:
        return padding
    got = f"{padding.dtype} of shape {tuple(padding.shape)}" if isinstance(padding, Tensor) else type(padding).__name__
    way = f"{name}.bool()"
    if name == "key_padding_mask":
        way += " if True (1) is padding, attention_mask == 0 if 1 is a token as in transformers"
    raise InputError(
        f"`{name}` must be boolean (batch, tokens) for {x_name} (batch, tokens, width), got {got} for {x_name} "
        f"{tuple(x.shape)}: write {way}, {name}.expand(...) where sequences share it, and {x_name}[None] for one "
        "sequence"
    )


def visible_keys(
    own: Mask | BoundMask | None,
    mask: Mask | BoundMask | Tensor | None,
    key_padding_mask: Tensor | None,
    key: Tensor,
    name: str = "key_padding_mask",
) -> Mask | BoundMask | None:
    """What the module's own mask, the given one and the padding of the keys (..., keys, width) all let see."""
    if mask is not None:
        own = both(own, mask_of(mask, key.shape[0] if key.ndim > 2 else 1))
    if key_padding_mask is None:
        return own
    return both(own, Padding(~check_padding(key, key_padding_mask, name, x_name="key")))


def mask_of(mask: Mask | BoundMask | Tensor | None, batch: int = 1) -> Mask | BoundMask | None:
    """Read what is given to `forward`: a mask, a boolean tensor, or zeros and ones in four dimensions."""
    if not isinstance(mask, Tensor):
        return mask
    if mask.ndim == 4:
        return from_attention_mask(mask)
    if mask.is_floating_point() or mask.dtype.is_complex or mask.dtype.itemsize > 1 or mask.ndim != 2:
        raise InputError(
            f"`mask` must be a mask of regard.masks, a boolean tensor (queries, keys), or one of booleans or zeros "
            f"and ones (batch, heads, queries, keys), got {mask.dtype} of shape {tuple(mask.shape)}: write "
            "masks.Padding(mask) if it is (batch, keys), mask.bool() if it is (queries, keys), mask[:, "
            "None] if it is (batch, queries, keys); floats that are added to the scores are `attn_bias=`"
        )
    if 1 < mask.shape[0] == batch:
        raise InputError(
            f"a boolean mask of shape {tuple(mask.shape)} may be (queries, keys) or, as the batch is {batch}, (batch, "
            "keys): write mask[None, None] for a matrix, masks.Padding(mask) for flags of tokens"
        )
    return Dense(mask)


def both(own: Mask | BoundMask | None, given: Mask | BoundMask | None) -> Mask | BoundMask | None:
    """See what the module's own mask and the given one both let see."""
    if own is None or given is None:
        return given if own is None else own
    places = {(one.q_len, one.kv_len, one.q_offset) for one in (own, given) if isinstance(one, BoundMask)}
    if len(places) > 1:
        raise InputError(
            f"the module's mask and `mask` must be bound to one place, got (queries, keys, q_offset) "
            f"{' and '.join(map(str, sorted(places)))}: leave the module's unbound"
        )
    free = [one.mask if isinstance(one, BoundMask) else one for one in (own, given)]
    together = free[0] & free[1]
    return together.bind(*places.pop()) if places else together
