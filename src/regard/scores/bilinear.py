"""A learned product of query and key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_dim, check_parameter, check_softcap
from regard.scores.base import Dot, Score, check_parts

__all__ = ["Bilinear"]


@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    """q·W·k (Luong et al. 2015, arXiv:1508.04025, "general"); the scale is 1.

    `weight` W is (dim_q, dim_k), or (heads, dim_q, dim_k) with one for each head of q; queries and keys may differ in
    width.

    Cost: q·W once, O(queries · dim_q · dim_k) time and queries · dim_k memory; then a plain product, O(queries · keys ·
    dim_k) time, which fused kernels run in O(n) memory.

    Raises:
        InputError: W is no such tensor, not on the device of q, or does not fit the widths or heads of q and k.

    >>> import torch
    >>> q, k = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0], [5.0]]]])
    >>> Bilinear(torch.tensor([[10.0], [1.0]])).tile(q, k, torch.arange(1), torch.arange(2))
    tensor([[[[36., 60.]]]])
    """

    product: ClassVar[bool] = True
    per_head: ClassVar[Mapping[str, int]] = {"weight": 3}

    weight: Float[Tensor, "*heads dim_q dim_k"]
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        check_parameter("weight", self.weight, "(dim_q, dim_k)", "(heads, dim_q, dim_k)")

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """The widths and heads of the weight."""
        check_parts(self, q)
        check_dim("weight", self.weight, -2, q.shape[-1], "q")
        check_dim("weight", self.weight, -1, k.shape[-1], "k")

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim_q"],
        k: Float[Tensor, "batch heads columns dim_k"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The products q·W·k."""
        return q @ self.weight.to(q.dtype) @ k.transpose(-2, -1)

    def prepare(self, q: Tensor, k: Tensor, q_offset: int) -> tuple[Tensor, Tensor, Score]:
        """Queries q·W; a plain product remains."""
        return q @ self.weight.to(q.dtype), k, Dot(self.softcap)
