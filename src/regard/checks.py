"""Checks of arguments that masks, positions, scores, modules and models share; each error names the way out."""

from typing import TypeGuard

import torch
from torch import Tensor

from regard.errors import InputError
from regard.torch_private import holds

__all__ = [
    "are_integers",
    "check_count",
    "check_dim",
    "check_flag",
    "check_number",
    "check_parameter",
    "check_probability",
    "check_size",
    "check_softcap",
    "check_tensor",
    "check_unicode",
    "is_number",
]


def check_count(name: str, value: object, least: int, what: str = "", most: int | None = 2**31) -> int:
    """Give `value` back if it is an integer from `least` to `most`; `what` tells what it counts."""
    must = f"`{name}` {what}{' and ' if what else ''}must be an integer"
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt) or holds(value < least):
        raise InputError(f"{must} of at least {least}, got {value!r}")
    if most is not None and holds(value > most):
        raise InputError(f"{must} of at most {most:,}, got {value:,}")
    return value  # type: ignore[return-value]  # a SymInt is one in all but type


def check_size(name: str, value: object, what: str = "") -> int:
    """Give `value` back if it is a positive integer; `what` tells what it counts."""
    return check_count(name, value, 1, what, None)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, which True is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_number(name: str, value: object, what: str, *, least: float = 0.0, included: bool = False) -> None:
    """Raise unless `value` is a finite number above `least`, or `least` itself where it is included."""
    in_range = is_number(value) and (least < value < 2**62 or (included and value == least))
    if not in_range:
        bound = f"at least {least:g}" if included else f"above {least:g}"
        raise InputError(f"`{name}` {what} and must be a finite number {bound}, got {value!r}")


def check_probability(name: str, value: object) -> float:
    """Give `value` back if it is a probability of dropping."""
    if not is_number(value) or not 0 <= value < 1:
        raise InputError(f"`{name}` is a probability from 0 to less than 1, got {value!r}")
    return float(value)


def check_flag(name: str, value: object) -> bool:
    """Give `value` back if it is True or False: a number in its place is another argument's."""
    if not isinstance(value, bool):
        raise InputError(f"`{name}` must be True or False, got {value!r}")
    return value


def check_unicode(name: str, *texts: str) -> None:
    """Raise an InputError if a text has half of a surrogate pair, which no tokenizer reads and no file has."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as problem:
        half = f"U+{ord(problem.object[problem.start]):04X}"
        raise InputError(f"`{name}` contains half of a surrogate pair ({half}): was it decoded with errors?") from None


def check_tensor(name: str, value: object, what: str) -> None:
    """Raise unless `value` is a dense tensor; `what` tells which one."""
    if not isinstance(value, Tensor):
        kind = value.__name__ if isinstance(value, type) else type(value).__name__
        raise InputError(f"`{name}` must be {what}, got {kind}: convert an array or a list with torch.as_tensor")
    if value.layout != torch.strided:
        raise InputError(f"`{name}` must be {what}, got the layout {value.layout}: convert it with .to_dense()")


def check_parameter(name: str, tensor: object, *layouts: str, way_out: str = "") -> None:
    """Raise unless this is a floating-point tensor of a layout such as "(heads, hidden)", and not empty."""
    wish = " or ".join(layouts)
    if not isinstance(tensor, Tensor):
        raise InputError(f"`{name}` must be a tensor {wish}, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise InputError(
            f"`{name}` must be of a floating-point type, got {tensor.dtype}: convert it with {name}.float()"
        )
    if tensor.ndim not in [len(layout.strip("(,)").split(",")) for layout in layouts] or 0 in tensor.shape:
        raise InputError(f"`{name}` must be {wish} and not empty, got shape {tuple(tensor.shape)}{way_out}")


def are_integers(values: Tensor) -> bool:
    """Whether the type is one of integers."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def check_dim(name: str, tensor: Tensor, dim: int, width: int, of: str) -> None:
    """Raise unless dimension `dim` of the tensor has the width of something else."""
    if tensor.shape[dim] != width:
        raise InputError(
            f"`{name}` must have the width of {of} ({width}) in dimension {dim}, got {tensor.shape[dim]} in shape "
            f"{tuple(tensor.shape)}"
        )


def check_softcap(softcap: float | None) -> None:
    """Raise unless this is None or a positive number."""
    if softcap is None:
        return
    if not is_number(softcap) or not 0 < softcap < 2**62:
        raise InputError(f"`softcap` must be a positive number or None, got {softcap}")
