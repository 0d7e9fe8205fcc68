"""Gaussian: a bell around the place where a query looks, by which its weights are multiplied."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import check_number
from regard.errors import InputError
from regard.positions.base import Bias

__all__ = ["Gaussian"]


@dataclass(frozen=True, eq=False)
class Gaussian(Bias):
    """exp(−(j − p)² / (2 (D/2)²)), for `weight_factor=`: Luong et al. 2015, 3.2 (local-p), arXiv:1508.04025.

    The factor multiplies the weights after the softmax, and they are not renormalized, so they sum to less than 1.
    masks.LocalPredictive, the mask of local-p, rounds p down. The Gaussian uses p without rounding, so p gets a
    gradient.

    Args:
        center: The key position p where each query looks (batch, queries), batch 1 if all sequences look alike; real
            numbers, positions counted from 0. In the paper p = S · σ(v_pᵀ tanh(W_p h)) for a source of length S.
        radius: D, half the width of the window, in tokens; σ is D/2.
        q_offset: Position of the first query; attention() fills it in.

    Shapes: the factor is (batch, 1, queries, keys), in float32 or the center's wider type.

    Cost: one exponential for each pair of a sequence; no memory beside the tile.

    Raises:
        InputError: The center is not (batch, queries) of a floating-point type, or the radius is not positive.

    >>> bell = Gaussian(torch.tensor([[1.0]]), radius=2).resolve(1, 4, q_offset=3)
    >>> bell.tile(slice(0, 1), slice(0, 1), torch.tensor([3]), torch.arange(4))[0, 0]
    tensor([[0.6065, 1.0000, 0.6065, 0.1353]])
    """

    role: ClassVar[Literal["bias", "weight_factor"] | None] = "weight_factor"
    center: Float[Tensor, "batch queries"]
    radius: float
    q_offset: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.center, Tensor) or not self.center.is_floating_point():
            kind = self.center.dtype if isinstance(self.center, Tensor) else type(self.center).__name__
            raise InputError(f"`center` must be a floating-point tensor (batch, queries), got {kind}")
        if self.center.ndim != 2 or 0 in self.center.shape:
            raise InputError(
                f"`center` must be (batch, queries), a place for each query, got {tuple(self.center.shape)}: write "
                "center[None] for one that all sequences share"
            )
        check_number("radius", self.radius, "is half the width of the window")

    @property
    def leading(self) -> tuple[int, int]:
        """The same for all heads."""
        return self.center.shape[0], 1

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The bell around the query's center, at the key."""
        center = self.center.to(torch.promote_types(self.center.dtype, torch.float32))
        at = center[batch if self.center.shape[0] > 1 else torch.zeros_like(batch), i - self.q_offset]
        return torch.exp(-2 * ((j - at) / self.radius) ** 2)

    def resolve(self, queries: int, keys: int, q_offset: int) -> Bias:
        """Remember where the rows start; check that there is one for each query."""
        if self.center.shape[1] != queries:
            raise InputError(
                f"`center` must have a place for each of {queries} queries, got {self.center.shape[1]} in shape "
                f"{tuple(self.center.shape)}"
            )
        return replace(self, q_offset=q_offset)
