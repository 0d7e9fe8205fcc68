"""The cosine of the angle between query and key."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_parameter, check_softcap
from regard.errors import InputError
from regard.scores.base import Dot, Score, check_parts

__all__ = ["Cosine"]


@dataclass(frozen=True, eq=False)
class Cosine(Score):
    """cos(q, k) / τ (Swin v2: Liu et al. 2022, arXiv:2111.09883).

    With g = 1/τ this is QK-norm (Henry et al. 2020, arXiv:2010.04245).

    `temperature` τ is a number or a learned tensor (heads,). The initial value in Swin v2 is 0.1. If τ is a number, the
    scale is 1/τ, and an explicit `scale=` replaces it. If τ is a tensor, the cosines are divided by it, and `scale=` is
    applied in addition. The caller must keep a learned temperature positive (at least 0.01 in Swin v2). A zero vector
    has cosine 0 and gradient 0.

    Cost: O(queries · keys · dim) time; q and k are normalized once and fused kernels run the rest in O(n) memory.

    Raises:
        InputError: τ is no positive number and no tensor (heads,) on the device of q; q and k differ in width.

    >>> import torch
    >>> q, k = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([[[[9.0, 0.0], [3.0, 4.0], [0.0, 0.0]]]])
    >>> Cosine().tile(q, k, torch.arange(1), torch.arange(3))
    tensor([[[[0.6000, 1.0000, 0.0000]]]])
    >>> Cosine().default_scale(2)
    10.0
    """

    product: ClassVar[bool] = True
    per_head: ClassVar[Mapping[str, int]] = {"temperature": 1}

    temperature: float | Float[Tensor, " heads"] = 0.1
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        given = self.temperature
        if isinstance(given, Tensor):
            check_parameter("temperature", given, "(heads,)")
        elif isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
            raise InputError(f"`temperature` must be a positive number or a tensor (heads,), got {given!r}")

    def default_scale(self, dim: int) -> float:
        """1/τ where τ is a number; 1 where it is a tensor, which the tile divides by."""
        return 1.0 if isinstance(self.temperature, Tensor) else 1 / self.temperature

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Equal widths, and a temperature for each head."""
        super().check(q, k, v)
        check_parts(self, q)

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The cosines, divided by a temperature that is a tensor."""
        return self._over_temperature(_unit(q) @ _unit(k).transpose(-2, -1))

    def prepare(self, q: Tensor, k: Tensor, q_offset: int) -> tuple[Tensor, Tensor, Score]:
        """Vectors of length 1, those of q divided by the temperature; a plain product remains."""
        return self._over_temperature(_unit(q)), _unit(k), Dot(self.softcap)

    def _over_temperature(self, x: Tensor) -> Tensor:
        if not isinstance(self.temperature, Tensor):
            return x
        return x / self.temperature.to(x.dtype)[:, None, None]


def _unit(x: Tensor) -> Tensor:
    """x / |x|, zero where x is zero; squares neither overflow nor vanish, and narrow types are summed in float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    # The direction does not depend on the size of x, so the factor that brings it near 1 needs no gradient.
    peak = wide.detach().abs().amax(-1, keepdim=True)
    zero = peak == 0
    near_one = wide / peak.masked_fill(zero, 1.0)
    length = torch.linalg.vector_norm(near_one, dim=-1, keepdim=True).masked_fill(zero, 1.0)
    unit: Tensor = (near_one / length).masked_fill(zero, 0.0).to(x.dtype)
    return unit
