"""Derivatives that the formula alone has: forward mode, and gradients of gradients inside torch.func."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.errors import InputError
from regard.frozen import tensors
from regard.problem import Problem
from regard.torch_private import TransformType, get_interpreter_stack

__all__ = ["in_forward_mode", "lacks_derivative", "refuse_second_derivative"]


def in_forward_mode() -> bool:
    """Return whether a tensor may carry a tangent here (`torch.func.jvp`, `forward_ad.dual_level`)."""
    return int(forward_ad._current_level) >= 0


def lacks_derivative(problem: Problem) -> str | None:
    """Say which derivative of a call every backend but the formula lacks, or return None if they have it."""
    if torch.compiler.is_compiling():
        return None
    levels = get_interpreter_stack() or []
    if in_forward_mode():
        held = tensors((problem.q, problem.k, problem.v, problem.score, problem.bias, problem.normalizer))
        held += tensors(problem.weight_factor)
        # Inside torch.func the tangent may lie below other wrappers, where it cannot be asked for.
        if levels or any(forward_ad.unpack_dual(one).tangent is not None for one in held):
            return "it has no forward-mode derivative (jvp, jacfwd, hessian)"
    if sum(level.key() == TransformType.Grad for level in levels) > 1:
        return "it has no second derivative inside torch.func"
    return None


class _First(torch.autograd.Function):
    """A first derivative as it is; what differentiates it again learns which backend can."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(*_: Any) -> None:
        pass

    @staticmethod
    def backward(*_: Any) -> Any:
        raise InputError(
            'PyTorch\'s fused kernel (backend "sdpa", which "auto" takes) has no second derivative: pass '
            'backend="blockwise" or backend="reference", or run the model under regard.use_backend("blockwise")'
        )


def _mark(gradients: tuple[Tensor | None, ...], _: Any) -> tuple[Tensor | None, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return tuple(None if one is None else _First.apply(one) for one in gradients)  # type: ignore[no-untyped-call]


def refuse_second_derivative(output: Tensor) -> Tensor:
    """Return the fused kernel's output, whose gradients answer in a sentence where they are differentiated again.

    They are wanted with `create_graph=True`, which nobody knows before the backward: so its node is given a hook, which
    holds no tensor, and does nothing otherwise.
    """
    if torch.compiler.is_compiling() or get_interpreter_stack():  # torch.func always asks for a graph
        return output
    node = output.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_mark)
    return output
