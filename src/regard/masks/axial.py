"""Axial: a cell of an image sees its row, or its column."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import InputError
from regard.masks.grid import Grid, Span

__all__ = ["Axial"]


@dataclass(frozen=True)
class Axial(Grid):
    """a = b on every axis but one: axial attention (Ho et al. 2019, arXiv:1912.12180).

    The tokens are the cells of a grid of `shape`, in row-major order; a query sees the line of cells through it along
    `axis`. In an image of (rows, columns), axis=1 is the query's row and axis=0 its column; both are
    `Axial(shape, 0) | Axial(shape, 1)`, as in criss-cross attention (Huang et al. 2019, arXiv:1811.11721).
    Axial-DeepLab (Wang et al. 2020, arXiv:2003.07853) gives each axis a layer of its own.

    Cost: n · shape[axis] pairs. Along the last axis they lie near the diagonal and the rest is skipped; along another
    they are spread, and more is visited than seen. No memory.

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

    def window(self, axis: int, at: Tensor) -> Span:
        """The whole axis, or the query's own coordinate."""
        if axis == self.axis:
            return torch.zeros_like(at), torch.full_like(at, self.shape[axis] - 1)
        return at, at
