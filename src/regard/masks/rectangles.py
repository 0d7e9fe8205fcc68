"""Rectangles of positions, and what a mask answers of them."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

__all__ = ["EMPTY", "FULL", "PARTIAL", "Rectangles", "edges"]

# Ordered, so that & is the minimum, | the maximum and ~ the mirror image.
EMPTY, PARTIAL, FULL = 0, 1, 2


@dataclass(frozen=True)
class Rectangles:
    """Arrays of half-open rectangles of positions: queries [top, bottom), keys [left, right); shapes broadcast."""

    top: Int[Tensor, "*rectangles"]
    bottom: Int[Tensor, "*rectangles"]
    left: Int[Tensor, "*rectangles"]
    right: Int[Tensor, "*rectangles"]

    @property
    def shape(self) -> torch.Size:
        """The dimensions of the array of rectangles."""
        edges = self.top, self.bottom, self.left, self.right
        return torch.Size(np.broadcast_shapes(*(edge.shape for edge in edges)))  # PyTorch's imports sympy: a second

    def answer(
        self, empty: Bool[Tensor, "*#rectangles"], full: Bool[Tensor, "*#rectangles"]
    ) -> Int8[Tensor, "#batch #heads *rectangles"]:
        """Turn two claims about each rectangle into EMPTY, FULL or PARTIAL; batch and heads may stand in front."""
        shape = np.broadcast_shapes((1, 1, *self.shape), empty.shape, full.shape)
        kinds = torch.full(shape, PARTIAL, dtype=torch.int8, device="cpu")
        return kinds.masked_fill(full, FULL).masked_fill(empty, EMPTY)


def edges(length: int, block: int) -> Int[Tensor, " edges"]:
    """Edges 0, block, 2·block, … up to `length`, which is always the last."""
    return torch.cat([torch.arange(0, length, block, device="cpu"), torch.tensor([length], device="cpu")])
