"""A relative bias that was asked once for every distance of a call."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.positions.base import Bias, Relative

__all__ = ["Evaluated", "evaluate"]


@dataclass(frozen=True, eq=False)
class Evaluated(Relative):
    """A bias of i − j as one number for each distance of a call, from `first` falling: O(n), and no rule any more."""

    values: Float[Tensor, "#heads distances"]
    first: int

    @property
    def leading(self) -> tuple[int, int]:
        """One row of numbers a head, or one for all."""
        return 1, self.values.shape[0]

    def diagonals(self, distance: Int[Tensor, " n"]) -> Float[Tensor, "#heads n"]:
        """A part of the numbers; distances fall by 1."""
        return self.values[:, self.first - int(distance[0]) :][:, : distance.shape[0]]

    def within(self, batch: slice, heads: slice, rows: slice, columns: slice) -> Bias:
        """The numbers of the distances that occur there."""
        first = rows.stop - 1 - columns.start
        count = rows.stop - rows.start + columns.stop - columns.start - 1
        return Evaluated(self.values.narrow(1, self.first - first, count), first)


def evaluate(bias: Relative, queries: int, keys: int, q_offset: int, device: torch.device) -> Evaluated:
    """Ask a relative bias once for every distance of a call; autograd carries the gradient back to its tensors."""
    first = q_offset + queries - 1
    return Evaluated(bias.diagonals(first - torch.arange(queries + keys - 1, device=device)), first)
