"""Gradients of each sample as Opacus computes them: by calling a module again on the first argument of its call.

A module with parameters of its own gets the attribute `ft_compute_sample_grad` from Opacus, and its call is repeated
for each sample without other arguments, and with other draws of dropout. Where that is another call, it is refused.
"""

from typing import Any

import torch
from torch import nn

from regard.errors import InputError

__all__ = ["check_repeatable", "check_value", "is_repeated"]

_NO_RESULTS = ("backend", "max_bytes")  # arguments that change no number of the result


def is_repeated(module: nn.Module) -> bool:
    """Return whether Opacus will repeat the call of this module for each sample."""
    if "ft_compute_sample_grad" not in module.__dict__ or torch.compiler.is_compiling():
        return False
    return module.training and torch.is_grad_enabled()


def check_repeatable(module: nn.Module, *others: Any, **named: Any) -> None:
    """Raise if Opacus would repeat a call without arguments that decide its result; `others` are those after the first.

    Raises:
        InputError: There are such arguments, or the module drops.
    """
    reasons = [
        f"`{name}`"
        for name, value in named.items()
        if name not in _NO_RESULTS and not (value is None or value is False)
    ]
    reasons += ["arguments after the first"] * bool(others) + ["the places that are dropped"] * _drops(module)
    if reasons:
        raise InputError(_refusal(module, f"repeats a call without {' and '.join(reasons)}"))


def check_value(module: nn.Module) -> None:
    """Raise where Opacus would have gradients of a value in a module, which is called without arguments.

    Raises:
        InputError: Opacus has prepared the module.
    """
    if is_repeated(module):
        raise InputError(_refusal(module, "repeats a call with its first argument, and a value has none"))


def _drops(module: nn.Module) -> bool:
    return bool(getattr(module, "dropout", 0.0))


def _refusal(module: nn.Module, reason: str) -> str:
    names = ", ".join(f"`{name}`" for name, parameter in module.named_parameters() if parameter.requires_grad)
    kind = f"{type(module).__name__}({module.extra_repr()})"
    return (
        f"Opacus has no gradient for each sample of {names} in {kind}, as it {reason}: freeze with "
        f"requires_grad_(False), or compute these gradients with torch.func.vmap(torch.func.grad(...)) over "
        'torch.func.functional_call, and give them to Opacus by grad_sample_mode="no_op"'
    )
