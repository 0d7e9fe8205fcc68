"""Grids: tokens as the cells of an image or a volume, row by row, and the masks that are a product over axes."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask, Rectangles

__all__ = ["Grid", "coordinates", "halves", "spans"]

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

    def window(self, axis: int, at: Tensor) -> Span:
        """The first and the last coordinate on an axis that a query at coordinate `at` sees."""
        raise NotImplementedError  # each mask defines it

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Every coordinate of the key lies within the query's window."""
        visible = torch.ones((), dtype=torch.bool, device=j.device)
        for axis, (at, key) in enumerate(zip(coordinates(i, self.shape), coordinates(j, self.shape), strict=True)):
            first, last = self.window(axis, at)
            visible = visible & (first <= key) & (key <= last)
        return visible

    def blocks(self, rectangles: Rectangles) -> Tensor:
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
        empty, full = torch.tensor(False), torch.tensor(True)
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
