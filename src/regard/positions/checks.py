"""Check the numbers and tables of positions, and look tables up."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["check_count", "check_number", "check_table", "look_up"]


def check_count(name: str, value: object, least: int, what: str, most: int = 2**31) -> None:
    """Raise unless `value` is an integer of at least `least`; `what` tells what it counts."""
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt) or value < least:  # SymInt: while exporting
        raise InputError(f"`{name}` {what} and must be an integer of at least {least}, got {value!r}")
    if value > most:
        raise InputError(f"`{name}` {what} and must be an integer of at most {most:,}, got {value:,}")


def check_number(name: str, value: object, what: str, *, least: float = 0.0, included: bool = False) -> None:
    """Raise unless `value` is a finite number above `least`, or `least` itself where it is included."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and -(2**62) < value < 2**62
    if not fits or value < least or (value == least and not included):  # type: ignore[operator]
        bound = f"at least {least:g}" if included else f"above {least:g}"
        raise InputError(f"`{name}` {what} and must be a finite number {bound}, got {value!r}")


def check_table(name: str, table: object, rows: str) -> None:
    """Raise unless `table` is a floating-point tensor (`rows`, heads) that is not empty."""
    if not isinstance(table, Tensor):
        raise InputError(f"`{name}` must be a tensor ({rows}, heads), got {type(table).__name__}")
    if not table.is_floating_point():
        raise InputError(
            f"`{name}` must be of a floating-point type, got {table.dtype}: convert it with {name}.float()"
        )
    if table.ndim != 2 or 0 in table.shape:
        raise InputError(
            f"`{name}` must be ({rows}, heads) and not empty, got {tuple(table.shape)}: one number for all heads is "
            f"{name}[:, None]"
        )


def look_up(table: Float[Tensor, "rows heads"], *at: Int[Tensor, "*#found"] | slice) -> Float[Tensor, "*found"]:
    """Take numbers of a table, in its type, so that the gradient of one that is taken often is summed in float32."""
    return table.to(torch.promote_types(table.dtype, torch.float32))[at].to(table.dtype)
