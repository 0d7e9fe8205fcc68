"""Causal: a query sees itself and what came before it."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask, Rectangles

__all__ = ["Causal"]


@dataclass(frozen=True)
class Causal(Mask):
    """j ≤ i: no query sees a later key (Vaswani et al. 2017, 3.2.3, arXiv:1706.03762).

    `align="end"` (the default) places the queries last, as decoding with a cache needs (flash-attention ≥ 2.1);
    `align="start"` places them first, as `is_causal=True` of PyTorch's SDPA does.

    Cost: half of all pairs, O(n²/2 · dim) time; no memory, and fused kernels know it by a flag.

    >>> Causal().bind(3, 5).dense()[0, 0].int()
    tensor([[1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0],
            [1, 1, 1, 1, 1]], dtype=torch.int32)
    >>> Causal(align="start").bind(3, 5).dense()[0, 0].int()
    tensor([[1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0]], dtype=torch.int32)
    """

    align: Literal["end", "start"] = "end"
    shift: int = field(default=0, init=False)  # of the diagonal, set when a mask aligned at the start is bound

    def __post_init__(self) -> None:
        if not isinstance(self.align, str) or self.align not in ("end", "start"):
            raise InputError(f'`align` must be "end" or "start", got {self.align!r}')
        if isinstance(self.shift, bool) or not isinstance(self.shift, int | torch.SymInt):
            raise InputError(f"`shift` counts positions and must be an integer, got {self.shift!r}")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key is not later than the query."""
        return j <= i - self.shift

    def blocks(self, rectangles: Rectangles) -> Tensor:
        """Compare corners: the first query decides FULL, the last one EMPTY."""
        return rectangles.answer(
            empty=rectangles.left > rectangles.bottom - 1 - self.shift,
            full=rectangles.right - 1 <= rectangles.top - self.shift,
        )

    @property
    def relative(self) -> bool:
        """The diagonal is all that counts, shifted or not."""
        return True

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Aligned at the start, the first query stands at key 0 wherever the queries start."""
        return self.with_place(shift=q_offset) if self.align == "start" else self
