"""Neighborhood: a cell of an image sees the cells around it."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from regard.errors import InputError
from regard.masks.grid import Grid, Span

__all__ = ["Neighborhood"]


@dataclass(frozen=True)
class Neighborhood(Grid):
    """|a − b| ≤ (size − 1)/2 on every axis of a grid: neighborhood attention (Hassani et al. 2023, arXiv:2204.07143).

    The tokens are the cells of a grid of `shape`, in row-major order; `size`, one odd number or one for each axis,
    counts the cells of the window along an axis, the query's own included. At the border, `border="shift"` (the
    default, as in NATTEN) moves the window inwards, so that every query sees exactly `size` cells along each axis;
    `border="crop"` cuts off what lies outside.

    Cost: n · Π size pairs; visited is every block that holds one, in an image about size rows of cells: O(n · size ·
    columns · dim) time. No memory.

    >>> Neighborhood((5,), 3).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 1, 1, 0, 0],
            [1, 1, 1, 0, 0],
            [0, 1, 1, 1, 0],
            [0, 0, 1, 1, 1],
            [0, 0, 1, 1, 1]], dtype=torch.int32)
    >>> Neighborhood((2, 3), (1, 3), border="crop").bind(6, 6).dense()[0, 0].int()
    tensor([[1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [0, 1, 1, 0, 0, 0],
            [0, 0, 0, 1, 1, 0],
            [0, 0, 0, 1, 1, 1],
            [0, 0, 0, 0, 1, 1]], dtype=torch.int32)
    """

    size: int | tuple[int, ...]
    border: Literal["shift", "crop"] = "shift"

    def __post_init__(self) -> None:
        super().__post_init__()
        size = (self.size,) * len(self.shape) if isinstance(self.size, int) else self.size
        if not isinstance(size, tuple | list) or len(size) != len(self.shape):
            raise InputError(f"`size` must be one number or one for each axis of the grid {self.shape}, got {size}")
        object.__setattr__(self, "size", tuple(size))
        if not all(isinstance(one, int) and one % 2 == 1 and one > 0 for one in size):
            raise InputError(
                f"`size` counts the query's own cell and as many on either side, so it must be odd, got {size}"
            )
        if not isinstance(self.border, str) or self.border not in ("shift", "crop"):
            raise InputError(f'`border` must be "shift" or "crop", got {self.border!r}')
        if self.border == "shift" and any(one > cells for one, cells in zip(size, self.shape, strict=True)):
            raise InputError(
                f"a window of {size} does not fit into a grid of {self.shape}: make `size` smaller, or cut the window "
                'off at the border with border="crop"'
            )

    def window(self, axis: int, at: Tensor) -> Span:
        """The window around a coordinate, moved into the grid if it is to be shifted."""
        size = self._sizes[axis]
        first = at - size // 2
        if self.border == "shift":
            first = first.clamp(0, self.shape[axis] - size)
        return first, first + size - 1

    @property
    def _sizes(self) -> tuple[int, ...]:
        assert isinstance(self.size, tuple)
        return self.size
