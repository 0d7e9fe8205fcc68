"""A learned product of query and key."""

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.scores.base import Dot, Score
from regard.scores.checks import check_devices, check_heads, check_softcap, check_tensor, check_width, cut

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

    weight: Float[Tensor, "*heads dim_q dim_k"]
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        check_tensor("weight", self.weight, "(dim_q, dim_k)", "(heads, dim_q, dim_k)")

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """The widths and heads of the weight."""
        check_devices(self, q)
        check_width("weight", self.weight, -2, q.shape[-1], "q")
        check_width("weight", self.weight, -1, k.shape[-1], "k")
        if self.weight.ndim == 3:
            check_heads("weight", self.weight, q)

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

    def of_heads(self, heads: slice) -> "Bilinear":
        """With the weights of some heads."""
        return replace(self, weight=cut(self.weight, heads, 3))
