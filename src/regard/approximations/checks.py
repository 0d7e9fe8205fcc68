"""What approximations ask of their sizes and inputs."""

import torch
from torch import Tensor

from regard.errors import InputError

__all__ = ["check_heads", "check_real", "check_size", "check_tokens"]


def check_size(name: str, value: object) -> int:
    """Give `value` back if it is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"`{name}` must be an integer of at least 1, got {value!r}")
    return value


def check_heads(dim: int, heads: int) -> int:
    """Give the width of one of `heads` heads that share `dim`."""
    if check_size("dim", dim) % check_size("heads", heads):
        raise InputError(f"`dim` must be divisible by `heads`, got {dim} and {heads}: choose heads that divide it")
    return dim // heads


def check_tokens(name: str, x: Tensor, dim: int, batch: int | None = None) -> None:
    """Raise unless `x` is (batch, tokens, dim), with the batch of the queries if that is given."""
    if x.ndim != 3 or x.shape[-1] != dim or 0 in x.shape[1:]:
        raise InputError(
            f"`{name}` must be (batch, tokens, {dim}) with a token at least, got shape {tuple(x.shape)}: write "
            f"{name}[None] for one sequence, {name}.flatten(0, -3) for more dimensions, or build the module with "
            "another `dim`"
        )
    if batch is not None and x.shape[0] != batch:
        raise InputError(
            f"`{name}` must have a sequence for each of {batch} in `x`, got {x.shape[0]}: write {name}.expand(...)"
        )


def check_real(real: Tensor, source: Tensor) -> None:
    """Raise unless there is a flag for each key of each sequence."""
    if real.dtype != torch.bool or real.shape != source.shape[:2]:
        raise InputError(
            f"`real` must be boolean {tuple(source.shape[:2])}, True for tokens, got {real.dtype} of shape "
            f"{tuple(real.shape)}: write real.bool(), and real.expand(...) where sequences share it"
        )
