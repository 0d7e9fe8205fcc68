"""Gradients that add up over tiles, and tiles that autograd differentiates."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Gradients", "traced"]


class Gradients:
    """The gradients of some tensors, begun with zeros and added to tile by tile."""

    def __init__(self, held: Sequence[Tensor], wanted: Sequence[bool]) -> None:
        self._sums = {id(one): torch.zeros_like(one) for one, want in zip(held, wanted, strict=True) if want}
        self._held = held  # keeps the ids alive

    def wants(self, one: Tensor) -> bool:
        """Whether anyone asks for the gradient of a tensor."""
        return id(one) in self._sums

    def of(self, one: Tensor) -> Tensor:
        """The sum so far, to be added to."""
        return self._sums[id(one)]

    def add(self, held: Sequence[Tensor], shares: Sequence[Tensor | None]) -> None:
        """Add a tile's shares to those that are asked for."""
        for one, share in zip(held, shares, strict=True):
            if share is not None and self.wants(one):
                self.of(one).add_(share)

    def all(self) -> list[Tensor | None]:
        """All gradients in order, None where nobody asked; a tensor that is there twice gets its gradient once."""
        sums = dict(self._sums)
        return [sums.pop(id(one), None) for one in self._held]


def traced(
    compute: Callable[..., Tensor], *inputs: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor | None, ...]]]:
    """Compute with a graph of its own, whatever the mode around it; and give what finds the gradients of the inputs."""
    if torch.is_grad_enabled():  # the backward is differentiated in its turn, or runs inside torch.func
        return torch.func.vjp(compute, *inputs)  # type: ignore[return-value]
    with torch.enable_grad():
        leaves = tuple(one.detach().requires_grad_() for one in inputs)
        result = compute(*leaves)
    return result.detach(), lambda up: torch.autograd.grad(result, leaves, up, allow_unused=True)
