"""Keys with gaps between them.

DilatedWindow: a window with gaps, which reaches further for the same work.

Strided: a query sees every `stride`-th key, counted from itself.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.checks import check_count
from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.rectangles import Rectangles

__all__ = ["DilatedWindow", "Strided"]


@dataclass(frozen=True, init=False)
class DilatedWindow(Mask):
    """i − j = m · dilation with −right ≤ m ≤ left (Longformer: Beltagy et al. 2020, 3.1, arXiv:2004.05150).

    `DilatedWindow(size)` sees the query itself and size − 1 earlier keys at distances of `dilation` (0 ≤ m < size).
    `DilatedWindow(left=a, right=b)` sees the query itself, a keys before it and b keys after it, at the same distances.

    Cost: n · (left + right + 1) pairs, which are spread out. No block is skipped if the gaps are narrower than a block.
    The time is therefore that of a window `dilation` times as wide, O(n · dilation · (left + right + 1) · dim). No
    memory.

    >>> DilatedWindow(2, dilation=2).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 0, 0, 0, 0],
            [0, 1, 0, 0, 0],
            [1, 0, 1, 0, 0],
            [0, 1, 0, 1, 0],
            [0, 0, 1, 0, 1]], dtype=torch.int32)
    >>> DilatedWindow(left=1, right=1, dilation=3).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 0, 0, 1, 0],
            [0, 1, 0, 0, 1],
            [0, 0, 1, 0, 0],
            [1, 0, 0, 1, 0],
            [0, 1, 0, 0, 1]], dtype=torch.int32)
    """

    left: int
    right: int
    dilation: int

    def __init__(
        self, size: int | None = None, dilation: int = 2, *, left: int | None = None, right: int | None = None
    ) -> None:
        if (size is None) == (left is None and right is None):
            raise InputError("`DilatedWindow` takes either a size or `left=` and `right=`, for example (512)")
        if size is not None:
            check_count("size", size, 1, "counts the query itself")
            left = size - 1
        for name, value in (("left", left), ("right", right)):
            check_count(name, 0 if value is None else value, 0, "counts keys")
        check_count("dilation", dilation, 1, "is the distance from key to key (1 is a window without gaps)")
        object.__setattr__(self, "left", left or 0)
        object.__setattr__(self, "right", right or 0)
        object.__setattr__(self, "dilation", dilation)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The distance is a multiple of the dilation and lies within the window."""
        near = (i - j <= self.left * self.dilation) & (j - i <= self.right * self.dilation)
        return near & ((i - j) % self.dilation == 0)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Count the distances i − j in each rectangle, and those of them that are seen."""
        least, greatest = _distances(rectangles)
        seen = _multiples(
            least.clamp(min=-self.right * self.dilation), greatest.clamp(max=self.left * self.dilation), self.dilation
        )
        return rectangles.answer(empty=seen == 0, full=seen == greatest - least + 1)

    @property
    def relative(self) -> bool:
        """The distance is all that counts."""
        return True


@dataclass(frozen=True)
class Strided(Mask):
    """(i − j) mod stride = 0 (Sparse Transformer: Child et al. 2019, 4.3, arXiv:1904.10509).

    The keys are on both sides of the query. `Causal() & Strided(stride)` is the paper's second pattern, and
    `masks.sparse_transformer` combines both patterns of the paper.

    Cost: n²/stride pairs, which are spread out. If the stride is less than a block, every block contains some of them,
    and the time is O(n² · dim). No memory.

    >>> Strided(2).bind(4, 4).dense()[0, 0].int()
    tensor([[1, 0, 1, 0],
            [0, 1, 0, 1],
            [1, 0, 1, 0],
            [0, 1, 0, 1]], dtype=torch.int32)
    """

    stride: int

    def __post_init__(self) -> None:
        check_count("stride", self.stride, 1, "is the distance from key to key")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The distance is a multiple of the stride."""
        return (i - j) % self.stride == 0

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Count the distances i − j in each rectangle, and the multiples of the stride among them."""
        least, greatest = _distances(rectangles)
        seen = _multiples(least, greatest, self.stride)
        return rectangles.answer(empty=seen == 0, full=seen == greatest - least + 1)

    @property
    def relative(self) -> bool:
        """The distance is all that counts."""
        return True


def _distances(rectangles: Rectangles) -> tuple[Int[Tensor, "*rectangles"], Int[Tensor, "*rectangles"]]:
    """The least and the greatest distance i − j in each rectangle; every distance between them occurs too."""
    return rectangles.top - (rectangles.right - 1), rectangles.bottom - 1 - rectangles.left


def _multiples(
    least: Int[Tensor, "*rectangles"], greatest: Int[Tensor, "*rectangles"], step: int
) -> Int[Tensor, "*rectangles"]:
    """How many multiples of `step` lie between `least` and `greatest`, both included."""
    last = torch.div(greatest, step, rounding_mode="floor")
    first = torch.div(least - 1, step, rounding_mode="floor")
    return (last - first).clamp(min=0)
