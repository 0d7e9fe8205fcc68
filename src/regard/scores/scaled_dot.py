"""The dot product of query and key, scaled or not, with an optional softcap."""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.scores.base import Score
from regard.scores.checks import check_softcap

__all__ = ["Dot", "ScaledDot"]


@dataclass(frozen=True)
class ScaledDot(Score):
    """q·k / √d (Vaswani et al. 2017, arXiv:1706.03762), then softcap · tanh(s / softcap) where one is given.

    The softcap is that of Gemma 2 (2024, arXiv:2408.00118): scores stay between −softcap and softcap.

    Cost: O(queries · keys · d) time; fused kernels need O(n) memory, but none of PyTorch's takes a softcap.

    >>> import torch
    >>> q, k = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> ScaledDot().tile(q, k, torch.arange(1), torch.arange(2))
    tensor([[[[3., 4.]]]])
    >>> round(ScaledDot().default_scale(4), 3)
    0.5
    """

    product: ClassVar[bool] = True

    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)

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
    """q·k (Luong et al. 2015, arXiv:1508.04025, "dot"): the dot product as it is, not divided by √d; T5 has it too.

    Cost: that of ScaledDot, O(queries · keys · d) time; fused kernels need O(n) memory.
    """

    def default_scale(self, dim: int) -> float:
        """1: the plain product."""
        return 1.0
