"""Parameters in frozen values: PyTorch registers what is assigned to a module only if it is a parameter or a module.

A `positions.T5Bias(nn.Parameter(...))` that is assigned to a module is neither, so its table would not be trained,
moved or saved with the module. The call is the first place where that can be noticed.
"""

import gc
import sys
from collections.abc import Iterator
from dataclasses import fields

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from regard.errors import InputError
from regard.tensors import tensors

__all__ = ["check_parameters"]

_FOUND = WeakIdKeyDictionary()  # parameters that were found in a module or an optimizer


def check_parameters(**values: object) -> None:
    """Raise where a module computes with a value that holds a parameter which no module and no optimizer has.

    Outside modules, and in compiled code, which has no stack to look at, nothing is checked.
    """
    if torch.compiler.is_compiling():
        return
    for name, value in values.items():
        if value is None or isinstance(value, Tensor):
            continue
        for one in tensors(value):
            if isinstance(one, nn.Parameter) and one not in _FOUND:
                _check(name, value, one)


def _check(name: str, value: object, parameter: nn.Parameter) -> None:
    computing = list(_modules_on_the_stack())
    if not computing:
        return
    if not any(any(one is parameter for one in module.parameters()) for module in computing) and not _is_anywhere(
        parameter
    ):
        kind, field = type(value).__name__, _field_of(value, parameter)
        raise InputError(
            f"`{name}` holds a parameter {tuple(parameter.shape)} that no module has, so that it is not trained, moved "
            f"or saved with {type(computing[0]).__name__}: write `self.{field} = nn.Parameter(...)` in __init__ and "
            f"`{name}={kind}({field}=self.{field}, ...)` in forward, or assign regard.nn.ValueModule({kind}(...)) and "
            f"pass `{name}=self.{name}()`"
        )
    _FOUND[parameter] = True


def _modules_on_the_stack() -> Iterator[nn.Module]:
    """The modules whose methods are running, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            found = frame.f_locals.get("self")
            if isinstance(found, nn.Module):
                yield found
        frame = frame.f_back  # type: ignore[assignment]


def _is_anywhere(parameter: nn.Parameter) -> bool:
    """Whether any module or optimizer has it; looks through all objects, which takes long, and is done once."""
    for one in gc.get_objects():
        if issubclass(type(one), nn.Module):
            held = list(vars(one).get("_parameters", {}).values())
        elif issubclass(type(one), Optimizer):
            held = [part for group in one.param_groups for part in group["params"]]
        else:
            continue
        if any(part is parameter for part in held):
            return True
    return False


def _field_of(value: object, parameter: nn.Parameter) -> str:
    """The field of a frozen dataclass in which the parameter is."""
    names = [part.name for part in fields(value) if getattr(value, part.name) is parameter]  # type: ignore[arg-type]
    return names[0] if names else "weight"
