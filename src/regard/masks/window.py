"""Window: a query sees the keys near it."""

from dataclasses import dataclass

from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask, Rectangles

__all__ = ["Window"]


@dataclass(frozen=True, init=False)
class Window(Mask):
    """−after ≤ i − j ≤ before: the keys near a query (Beltagy et al. 2020, arXiv:2004.05150).

    `Window(size)` sees the query itself and the size − 1 keys before it, the count of Mistral 7B (2023,
    arXiv:2310.06825); `Window(before=a, after=b)` sees a keys before and b after it, besides itself.

    Cost: O(n · (before + after + 1) · dim) time where blocks are skipped; no memory.

    >>> Window(2).bind(4, 4).dense()[0, 0].int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    >>> Window(before=1, after=1).bind(4, 4).dense()[0, 0].int()
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """

    before: int
    after: int

    def __init__(self, size: int | None = None, *, before: int | None = None, after: int | None = None) -> None:
        if (size is None) == (before is None and after is None):
            raise InputError("`Window` takes either a size or `before=` and `after=`, for example Window(512)")
        for name, value in (("size", size), ("before", before), ("after", after)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InputError(f"`{name}` counts keys and must be an integer, got {value!r}")
            if value is not None and value > 2**31:
                raise InputError(f"`{name}` counts keys and must be at most {2**31:,}, got {value:,}")
        if size is not None and size < 1:
            raise InputError(f"`size` counts the query itself and must be at least 1, got {size}")
        object.__setattr__(self, "before", size - 1 if size is not None else before or 0)
        object.__setattr__(self, "after", after or 0)
        if self.before < 0 or self.after < 0:
            raise InputError(f"`before` and `after` must be 0 or more, got {self.before} and {self.after}")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The distance lies within the window."""
        return (i - j <= self.before) & (j - i <= self.after)

    def blocks(self, rectangles: Rectangles) -> Tensor:
        """Compare the least and the greatest distance i − j in each rectangle with the window."""
        least = rectangles.top - (rectangles.right - 1)
        greatest = rectangles.bottom - 1 - rectangles.left
        return rectangles.answer(
            empty=(least > self.before) | (greatest < -self.after),
            full=(greatest <= self.before) & (least >= -self.after),
        )

    @property
    def relative(self) -> bool:
        """The distance is all that counts."""
        return True
