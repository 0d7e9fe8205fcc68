"""What several masks ask of their numbers and tensors, and how they look into tensors with a row a sequence."""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.errors import InputError

__all__ = [
    "are_integers",
    "as_booleans",
    "check_count",
    "check_kind",
    "check_tensor",
    "covered",
    "entry",
    "prefix_counts",
]


def check_count(name: str, value: object, least: int, what: str, most: int = 2**31) -> None:
    """Raise unless `value` is an integer of at least `least`; `what` tells what it counts."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"`{name}` {what} and must be an integer of at least {least}, got {value!r}")
    if value > most:
        raise InputError(f"`{name}` {what} and must be an integer of at most {most:,}, got {value:,}")


def check_tensor(name: str, value: object, what: str) -> None:
    """Raise unless `value` is a dense tensor; `what` tells which one."""
    if not isinstance(value, Tensor):
        kind = value.__name__ if isinstance(value, type) else type(value).__name__
        raise InputError(f"`{name}` must be {what}, got {kind}: convert an array or a list with torch.as_tensor")
    if value.layout != torch.strided:
        raise InputError(f"`{name}` must be {what}, got the layout {value.layout}: convert it with .to_dense()")


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise unless `value` is of a kind."""
    if not isinstance(value, kind):
        way_out = ": call mask.bind(q_len, kv_len) first" if kind.__name__ == "BoundMask" else ""
        raise InputError(f"`{name}` must be a {kind.__name__}, got {type(value).__name__}{way_out}")


def as_booleans(name: str, flags: Tensor) -> Tensor:
    """Give ones (or True) and zeros (or False) as booleans; raise where there is any other number."""
    if flags.dtype == torch.bool:
        return flags
    if not torch.compiler.is_compiling() and not bool(((flags == 0) | (flags == 1)).all()):
        odd = flags[(flags != 0) & (flags != 1)].flatten()[0].item()
        low = isinstance(odd, float | int) and odd < 0
        way_out = "a tensor of 0 and −inf is added to the scores: pass it as `bias=`" if low else "pass zeros and ones"
        raise InputError(f"`{name}` must hold zeros (hidden) and ones (seen) alone, got {odd}: {way_out}")
    return flags.bool()


def are_integers(values: Tensor) -> bool:
    """Tell whether the dtype is one of integers."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def entry(
    table: Shaped[Tensor, "sequences positions"], batch: Int[Tensor, "*#pairs"], position: Int[Tensor, "*#pairs"]
) -> Shaped[Tensor, "*#pairs"]:
    """Look up each pair's position in its sequence's row; one row serves every sequence, an empty one gives zeros."""
    table = table.to(position.device) if table.shape[1] else position.new_zeros(len(table), 1).to(table.dtype)
    return table[batch if table.shape[0] > 1 else torch.zeros_like(batch), position]


def prefix_counts(flags: Bool[Tensor, "sequences positions"]) -> Int[Tensor, "sequences edges"]:
    """Count the flags before each position, so that `covered` counts those of any range."""
    return torch.nn.functional.pad(flags.cpu().long().cumsum(1), (1, 0))


def covered(
    counts: Int[Tensor, "sequences edges"], first: Int[Tensor, "*ranges"], end: Int[Tensor, "*ranges"]
) -> Int[Tensor, "sequences 1 *ranges"]:
    """Count the flags in each range of positions [first, end); there are none outside the table."""
    last = counts.shape[1] - 1
    return (counts[:, end.clamp(0, last)] - counts[:, first.clamp(0, last)])[:, None]
