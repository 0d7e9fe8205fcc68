"""The dot product of query and key, scaled or not, with an optional softcap."""

import math
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["Dot", "ScaledDot"]


@dataclass(frozen=True)
class ScaledDot:
    """q·k / √d (Vaswani et al. 2017), then softcap · tanh(s / softcap) where a softcap is given (Gemma 2, 2024).

    Cost: O(queries · keys · d) time; fused kernels need O(n) memory, but none of PyTorch's takes a softcap.

    >>> import torch
    >>> q, k = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> ScaledDot().tile(q, k, torch.arange(1), torch.arange(2))
    tensor([[[[3., 4.]]]])
    >>> round(ScaledDot().default_scale(4), 3)
    0.5
    """

    softcap: float | None = None

    def __post_init__(self) -> None:
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise InputError(f"`softcap` must be a positive number or None, got {self.softcap}")

    def default_scale(self, dim: int) -> float:
        """1/√d, which keeps the variance of the score at 1."""
        return 1 / math.sqrt(dim)

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The products q·k, not yet scaled."""
        return q @ k.transpose(-2, -1)


@dataclass(frozen=True)
class Dot(ScaledDot):
    """q·k as it is (Luong et al. 2015, "dot")."""

    def default_scale(self, dim: int) -> float:
        """1: the plain product."""
        return 1.0
