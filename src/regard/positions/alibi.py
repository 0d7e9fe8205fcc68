"""ALiBi: a straight line over the distance, steeper or flatter for each head."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_count
from regard.errors import InputError
from regard.positions.base import Relative

__all__ = ["ALiBi", "alibi_slopes"]


def alibi_slopes(num_heads: int, device: torch.device | str | None = None) -> Float[Tensor, " heads"]:
    """Give the slopes of Press et al. 2022: 2^(−8/n), 2^(−16/n), ..., 2^(−8) for n heads, n a power of two.

    If n is not a power of two, let c = 2^⌊log₂ n⌋. The slopes are those for c heads, followed by every second slope for
    2c heads, n − c of them, as in the authors' code.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    >>> alibi_slopes(6)[4:]
    tensor([0.5000, 0.1250])
    """
    check_count("num_heads", num_heads, 1, "counts heads", most=2**16)
    power = 2 ** math.floor(math.log2(num_heads))
    wide = torch.promote_types(torch.get_default_dtype(), torch.float32)  # models are loaded under narrower ones
    first = torch.arange(1, power + 1, dtype=wide, device=device) / power
    others = torch.arange(1, 2 * (num_heads - power) + 1, 2, dtype=wide, device=device) / (2 * power)
    return torch.exp2(-8 * torch.cat([first, others]))


@dataclass(frozen=True, eq=False)
class ALiBi(Relative):
    """−slope_h · (i − j), added to the scores (Press et al. 2022, arXiv:2108.12409).

    With bidirectional=False the bias is slope_h · (j − i), also for later keys (j > i). For later keys it is positive
    and grows, so this form is meant for a causal mask, which hides later keys. Bloom adds slope_h · j instead; the
    difference is a constant in each row, which cancels in the softmax. With bidirectional=True the bias is −slope_h ·
    |i − j|, the same for earlier and later keys; this form is for encoders.

    Args:
        num_heads: Number of heads.
        slopes: One for each head (heads,); `alibi_slopes(num_heads)` by default. They get gradients. Falcon's are
            divided by √d.
        bidirectional: True for encoders: later keys are penalized as earlier ones are. False for causal masks.

    Shapes: the bias is (1, heads, queries, keys), in float32 or the slopes' wider type.

    Cost: heads · (queries + keys − 1) numbers, written along the diagonals, and one addition per pair. O(n) memory in
    blocks. A backend that needs the bias as a tensor uses heads · queries · keys numbers.

    Raises:
        InputError: The slopes are not one floating-point number a head, or `bidirectional` is not a boolean.

    >>> ALiBi(num_heads=8).diagonals(torch.tensor([2, 1, 0, -1]))[:2]
    tensor([[-1.0000, -0.5000,  0.0000,  0.5000],
            [-0.5000, -0.2500,  0.0000,  0.2500]])
    >>> ALiBi(num_heads=8, bidirectional=True).diagonals(torch.tensor([2, 1, 0, -1]))[:1]
    tensor([[-1.0000, -0.5000,  0.0000, -0.5000]])
    """

    role: ClassVar[Literal["bias", "weight_factor"] | None] = "bias"
    num_heads: int
    slopes: Float[Tensor, " heads"] | None = None
    bidirectional: bool = False

    def __post_init__(self) -> None:
        check_count("num_heads", self.num_heads, 1, "counts heads", most=2**16)
        if not isinstance(self.bidirectional, bool):
            raise InputError(
                f"`bidirectional` must be True (encoders) or False (decoders, causal), got {self.bidirectional!r}"
            )
        if self.slopes is None:
            return
        if not isinstance(self.slopes, Tensor) or not self.slopes.is_floating_point():
            kind = self.slopes.dtype if isinstance(self.slopes, Tensor) else type(self.slopes).__name__
            raise InputError(f"`slopes` must be a floating-point tensor with one slope a head, got {kind}")
        if tuple(self.slopes.shape) != (self.num_heads,):
            raise InputError(
                f"`slopes` must have one slope for each of {self.num_heads} heads, got shape {tuple(self.slopes.shape)}"
            )

    @property
    def leading(self) -> tuple[int, int]:
        """The same for all sequences."""
        return 1, self.num_heads

    def diagonals(self, distance: Int[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        """One line a head."""
        return self._slopes(distance.device)[:, None] * self._far(distance)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The head's slope times the distance."""
        return self._slopes(i.device)[head] * self._far(i - j)

    def _slopes(self, device: torch.device) -> Tensor:
        slopes = alibi_slopes(self.num_heads, device) if self.slopes is None else self.slopes
        return slopes.to(torch.promote_types(slopes.dtype, torch.float32))  # bfloat16 rounds the distance 257 to 256

    def _far(self, distance: Tensor) -> Tensor:
        return -(distance.abs() if self.bidirectional else distance)
