"""Masks that leave a band around the diagonal, and that band as two numbers.

Causal: a query sees itself and what came before it.

Window: a query sees the keys near it.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import And, Mask
from regard.masks.rectangles import Rectangles
from regard.torch_private import holds

__all__ = ["Band", "Causal", "Window", "band_of"]


@dataclass(frozen=True)
class Causal(Mask):
    """j ≤ i: no query sees a later key (Vaswani et al. 2017, 3.2.3, arXiv:1706.03762).

    `align="end"` (the default) places the queries at the last positions, as decoding with a cache requires (and as
    flash-attention ≥ 2.1 does). `align="start"` places them at the first positions, as `is_causal=True` of PyTorch's
    SDPA does.

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

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
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


@dataclass(frozen=True, init=False)
class Window(Mask):
    """−right ≤ i − j ≤ left: the keys near a query (Beltagy et al. 2020, arXiv:2004.05150).

    `Window(size)` sees the query itself and the size − 1 keys before it, as in Mistral 7B (2023, arXiv:2310.06825).
    `Window(left=a, right=b)` sees the query itself, a keys before it and b keys after it; a side that is not given
    is 0.

    Cost: O(n · (left + right + 1) · dim) time where blocks are skipped; no memory.

    >>> Window(2).bind(4, 4).dense()[0, 0].int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    >>> Window(left=1, right=1).bind(4, 4).dense()[0, 0].int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """

    left: int
    right: int

    def __init__(self, size: int | None = None, *, left: int | None = None, right: int | None = None) -> None:
        if (size is None) == (left is None and right is None):
            raise InputError("`Window` takes either a size or `left=` and `right=`, for example Window(512)")
        for name, value in (("size", size), ("left", left), ("right", right)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | torch.SymInt)):
                raise InputError(f"`{name}` counts keys and must be an integer, got {value!r}")
            if value is not None and holds(value > 2**31):
                raise InputError(f"`{name}` counts keys and must be at most {2**31:,}, got {value:,}")
        if size is not None and holds(size < 1):
            raise InputError(f"`size` counts the query itself and must be at least 1, got {size}")
        before = 0 if left is None else left
        object.__setattr__(self, "left", before if size is None else size - 1)
        object.__setattr__(self, "right", 0 if right is None else right)
        if holds(self.left < 0) or holds(self.right < 0):
            raise InputError(f"`left` and `right` must be 0 or more, got {self.left} and {self.right}")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The distance lies within the window."""
        return (i - j <= self.left) & (j - i <= self.right)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Compare the least and the greatest distance i − j in each rectangle with the window."""
        least = rectangles.top - (rectangles.right - 1)
        greatest = rectangles.bottom - 1 - rectangles.left
        return rectangles.answer(
            empty=(least > self.left) | (greatest < -self.right),
            full=(greatest <= self.left) & (least >= -self.right),
        )

    @property
    def relative(self) -> bool:
        """The distance is all that counts."""
        return True


@dataclass(frozen=True)
class Band:
    """A query at position i sees the keys i − before … i + after; None: as far as there are keys."""

    before: int | None = None
    after: int | None = None

    def within(self, positions: int) -> tuple[int, int]:
        """Both as numbers, none larger than there are positions, so that sums of them stay small."""
        sides = (positions if side is None else side for side in (self.before, self.after))
        before, after = (max(-positions, min(side, positions)) for side in sides)
        return before, after


def band_of(mask: Mask) -> Band | None:
    """The band that a mask leaves: Causal, Window, and several of them at once; None for any other.

    >>> band_of(Causal() & Window(left=3, right=1))
    Band(before=3, after=0)
    """
    if type(mask) is Causal:
        return Band(after=-mask.shift)
    if type(mask) is Window:
        return Band(mask.left, mask.right)
    if type(mask) is not And:
        return None
    one, other = band_of(mask.left), band_of(mask.right)
    if one is None or other is None:
        return None
    return Band(_lesser(one.before, other.before), _lesser(one.after, other.after))


def _lesser(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other) if type(one) is type(other) is int else torch.sym_min(one, other)  # symbols of compilers
