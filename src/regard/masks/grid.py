"""Tokens as the cells of an image or a volume, row by row, and the masks that are a product over axes.

Neighborhood: a cell of an image sees the cells around it.

Axial: a cell of an image sees its row, or its column.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.rectangles import Rectangles

__all__ = ["Axial", "Grid", "Neighborhood", "coordinates", "halves", "spans"]

Span = tuple[Tensor, Tensor]  # the first and the last coordinate on one axis


@dataclass(frozen=True)
class Grid(Mask):
    """Query cell a sees key cell b if their coordinates meet a rule on every axis.

    On each axis the coordinates that a query sees are one interval, `window`, whose ends never decrease from one
    query coordinate to the next: so the corners of a box of cells speak for all of it.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        shape = self.shape
        if not isinstance(shape, tuple | list) or not shape or not all(_is_count(size) and size > 0 for size in shape):
            raise InputError(
                f"`shape` must give the cells along each axis of the grid, for example (14, 14), got {shape}"
            )
        object.__setattr__(self, "shape", tuple(shape))

    def window(self, axis: int, at: Tensor, /) -> Span:
        """The first and the last coordinate on an axis that a query at coordinate `at` sees."""
        raise NotImplementedError  # each mask defines it

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Every coordinate of the key lies within the query's window."""
        visible = torch.ones((), dtype=torch.bool, device=j.device)
        for axis, (at, key) in enumerate(zip(coordinates(i, self.shape), coordinates(j, self.shape), strict=True)):
            first, last = self.window(axis, at)
            visible = visible & (first <= key) & (key <= last)
        return visible

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Cover both ranges of positions with a box of cells; where that leaves open what is seen, with two each."""
        places = rectangles.top, rectangles.bottom - 1, rectangles.left, rectangles.right - 1
        empty, full = self._claims(*places)
        unsure = (~(empty | full)).nonzero(as_tuple=True)
        top, bottom, left, right = (place.expand(empty.shape)[unsure] for place in places)
        finer = [
            self._claims(*queries, *keys)
            for queries in halves(top, bottom, self.shape)
            for keys in halves(left, right, self.shape)
        ]
        empty[unsure] = torch.stack([one for one, _ in finer]).all(0)
        full[unsure] = torch.stack([one for _, one in finer]).all(0)
        return rectangles.answer(empty=empty, full=full)

    def _claims(self, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Whether boxes around queries top … bottom and keys left … right are empty for sure, or full for sure."""
        empty, full = torch.tensor(False, device="cpu"), torch.tensor(True, device="cpu")
        boxes = zip(spans(top, bottom, self.shape), spans(left, right, self.shape), strict=True)
        for axis, ((lowest, highest), (first, last)) in enumerate(boxes):
            (earliest, least), (latest, greatest) = self.window(axis, lowest), self.window(axis, highest)
            empty = empty | (last < earliest) | (first > greatest)
            full = full & (first >= latest) & (last <= least)
        return empty, full

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Check that keys and queries are cells of the grid."""
        cells = prod(self.shape)
        if kv_len != cells:
            raise InputError(
                f"a grid of {' × '.join(map(str, self.shape))} has {cells} cells, got {kv_len} keys: tokens beside the "
                "grid, as a class token, need a mask of their own"
            )
        if q_offset < 0 or q_offset + q_len > cells:
            raise InputError(
                f"every query must stand on one of the {cells} cells of the grid, got {q_len} queries from position "
                f"{q_offset} on"
            )
        return self


def coordinates(position: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    """The coordinates of flat positions, outermost axis first."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return [position // stride % size for stride, size in zip(strides, shape, strict=True)]


def spans(first: Tensor, last: Tensor, shape: tuple[int, ...]) -> list[Span]:
    """The box of cells around the flat positions first … last, axis by axis from the outside in.

    As long as both ends share their coordinates on the outer axes, the ends bound the next axis too; behind the first
    axis on which they differ, the positions run over whole axes.
    """
    box: list[Span] = []
    together = torch.ones_like(first == last)
    for low, high, size in zip(coordinates(first, shape), coordinates(last, shape), shape, strict=True):
        box.append((torch.where(together, low, 0), torch.where(together, high, size - 1)))
        together = together & (low == high)
    return box


def halves(first: Tensor, last: Tensor, shape: tuple[int, ...]) -> list[Span]:
    """Cut the flat positions first … last where the outermost axis takes its last step: two small boxes for a wide one.

    Positions that run over the end of one row fill a box of two whole rows; cut there, they are two parts of rows.
    Where only the innermost axis steps, both halves are the whole.
    """
    cut = first
    for axis in range(len(shape) - 1, 0, -1):
        stride = prod(shape[axis:])
        cut = torch.where(first // stride == last // stride, cut, last // stride * stride)
    return [(first, torch.where(cut > first, cut - 1, last)), (cut, last)]


def _is_count(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool)


@dataclass(frozen=True)
class Neighborhood(Grid):
    """|a − b| ≤ (size − 1)/2 on every axis of a grid: neighborhood attention (Hassani et al. 2023, arXiv:2204.07143).

    The tokens are the cells of a grid of `shape`, in row-major order. `size` is the number of cells of the window along
    an axis, including the query's own cell. It is one odd number, or one odd number for each axis. At the boundary of
    the grid there are two options. `boundary="shift"` (the default, as in NATTEN) moves the window inwards, so every
    query sees exactly `size` cells along each axis. `boundary="crop"` cuts off the part of the window that is outside
    the grid.

    Cost: n · Π size pairs. Every block that contains one of these pairs is visited. In an image these are about `size`
    rows of cells: O(n · size · columns · dim) time. No memory.

    >>> Neighborhood((5,), 3).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 1, 1, 0, 0],
            [1, 1, 1, 0, 0],
            [0, 1, 1, 1, 0],
            [0, 0, 1, 1, 1],
            [0, 0, 1, 1, 1]], dtype=torch.int32)
    >>> Neighborhood((2, 3), (1, 3), boundary="crop").bind(6, 6).dense()[0, 0].int()
    tensor([[1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [0, 1, 1, 0, 0, 0],
            [0, 0, 0, 1, 1, 0],
            [0, 0, 0, 1, 1, 1],
            [0, 0, 0, 0, 1, 1]], dtype=torch.int32)
    """

    size: int | tuple[int, ...]
    boundary: Literal["shift", "crop"] = "shift"

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
        if not isinstance(self.boundary, str) or self.boundary not in ("shift", "crop"):
            raise InputError(f'`boundary` must be "shift" or "crop", got {self.boundary!r}')
        if self.boundary == "shift" and any(one > cells for one, cells in zip(size, self.shape, strict=True)):
            raise InputError(
                f"a window of {size} does not fit into a grid of {self.shape}: make `size` smaller, or cut the window "
                'off at the edge with boundary="crop"'
            )

    def window(self, axis: int, at: Tensor, /) -> Span:
        """The window around a coordinate, moved into the grid if it is to be shifted."""
        size = self._sizes[axis]
        first = at - size // 2
        if self.boundary == "shift":
            first = first.clamp(0, self.shape[axis] - size)
        return first, first + size - 1

    @property
    def _sizes(self) -> tuple[int, ...]:
        assert isinstance(self.size, tuple)
        return self.size


@dataclass(frozen=True)
class Axial(Grid):
    """a = b on every axis but one: axial attention (Ho et al. 2019, arXiv:1912.12180).

    The tokens are the cells of a grid of `shape`, in row-major order. A query sees all cells on the line through its
    own cell along `axis`. In an image of (rows, columns), this line is the query's row for axis=1 and its column for
    axis=0. `Axial(shape, 0) | Axial(shape, 1)` combines both, as in criss-cross attention (Huang et al. 2019,
    arXiv:1811.11721). Axial-DeepLab (Wang et al. 2020, arXiv:2003.07853) has a separate layer for each axis.

    Cost: n · shape[axis] pairs. Along the last axis the pairs are near the diagonal, and all other blocks are skipped.
    Along another axis the pairs are spread out, and more pairs are visited than seen. No memory.

    >>> Axial((2, 3), axis=1).bind(6, 6).dense()[0, 0].int()
    tensor([[1, 1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [0, 0, 0, 1, 1, 1],
            [0, 0, 0, 1, 1, 1],
            [0, 0, 0, 1, 1, 1]], dtype=torch.int32)
    >>> Axial((2, 3), axis=0).bind(6, 6).dense()[0, 0].int()
    tensor([[1, 0, 0, 1, 0, 0],
            [0, 1, 0, 0, 1, 0],
            [0, 0, 1, 0, 0, 1],
            [1, 0, 0, 1, 0, 0],
            [0, 1, 0, 0, 1, 0],
            [0, 0, 1, 0, 0, 1]], dtype=torch.int32)
    """

    axis: int

    def __post_init__(self) -> None:
        super().__post_init__()
        axes = len(self.shape)
        if not isinstance(self.axis, int) or not -axes <= self.axis < axes:
            raise InputError(f"`axis` must be one of the {axes} axes of the grid {self.shape}, got {self.axis!r}")
        object.__setattr__(self, "axis", self.axis % axes)

    def window(self, axis: int, at: Tensor, /) -> Span:
        """The whole axis, or the query's own coordinate."""
        if axis == self.axis:
            return torch.zeros_like(at), torch.full_like(at, self.shape[axis] - 1)
        return at, at
