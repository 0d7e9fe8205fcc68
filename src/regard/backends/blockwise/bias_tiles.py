"""Biases and factors of a tile, and the gradients of their tensors."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.backends.blockwise.block_layout import Piece, Sheet
from regard.backends.blockwise.scoring import traced
from regard.diagonals import sum_diagonals
from regard.positions import Bias, DenseBias, Relative
from regard.problem import Problem
from regard.values import flatten, tensors, unflatten

if TYPE_CHECKING:
    from regard.backends.blockwise.autograd_function import Gradients

__all__ = ["Diagonals", "Term", "diagonals_of"]


@dataclass(frozen=True, eq=False)
class Diagonals(Relative):
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


def diagonals_of(bias: Relative, problem: Problem) -> Diagonals:
    """Ask a relative bias once for every distance of a call; autograd carries the gradient back to its tensors."""
    first = problem.q_offset + problem.queries - 1
    count = problem.queries + problem.keys - 1
    return Diagonals(bias.diagonals(first - torch.arange(count, device=problem.q.device)), first)


@dataclass(frozen=True, eq=False)
class Term:
    """A bias or factor over the pieces of a sheet."""

    bias: Bias
    sheet: Sheet

    def tile(self, piece: Piece) -> Float[Tensor, "#batch #kv_heads 1 #group rows columns"]:
        """The numbers of a piece, the same for all its rows; zeros where blocks are filled up."""
        rows, columns = self.sheet.real(piece)
        return self._spaced(self._part(rows, columns))

    def back(
        self, piece: Piece, up: Float[Tensor, "batch kv_heads items group rows columns"], gradients: "Gradients"
    ) -> None:
        """Add the gradients of the bias's tensors, given that of its tile in every pair."""
        held = tensors(self.bias)
        if not any(gradients.wants(one) for one in held):
            return
        rows, columns = self.sheet.real(piece)
        batch, heads = self.bias.leading
        # (batch, heads, rows, columns), summed where one number serves many.
        whole = _sum(up, 2, keepdim=False).flatten(1, 2)[..., : rows.stop - rows.start, : columns.stop - columns.start]
        whole = _sum(whole, 0) if batch == 1 else whole
        whole = _sum(whole, 1) if heads == 1 else whole
        if isinstance(self.bias, Diagonals):
            offset = self.bias.first - (self.sheet.problem.q_offset + rows.stop - 1 - columns.start)
            into = gradients.of(self.bias.values)[self._heads()]
            into.narrow(1, offset, whole.shape[2] + whole.shape[3] - 1).add_(sum_diagonals(whole[0]))
        elif isinstance(self.bias, DenseBias):
            into = gradients.of(self.bias.values).view(self.bias.four.shape)
            for dim, where in enumerate((self._batch(), self._heads(), rows, columns)):
                if into.shape[dim] > 1:
                    into = into.narrow(dim, where.start, where.stop - where.start)
                else:
                    whole = _sum(whole, dim)
            into.add_(whole)
        else:
            tile, back = traced(lambda *new: _with(self, new)._part(rows, columns), *held)
            gradients.add(held, back(whole.expand_as(tile)))

    def _part(self, rows: slice, columns: slice) -> Tensor:
        problem = self.sheet.problem
        return self.bias.tile(self.sheet.batch, self.sheet.heads, problem.i(rows), problem.j(columns))

    def _spaced(self, part: Tensor) -> Tensor:
        block = self.sheet.block
        part = pad(part, (0, -part.shape[3] % block, 0, -part.shape[2] % block))
        if part.shape[1] == 1:
            return part[:, :, None, None]
        spaced: Tensor = part.unflatten(1, self.sheet.sizes[1:])[:, :, None]
        return spaced

    def _heads(self) -> slice:
        return self.sheet.heads if self.bias.leading[1] > 1 else slice(0, 1)

    def _batch(self) -> slice:
        return self.sheet.batch if self.bias.leading[0] > 1 else slice(0, 1)


def _with(term: Term, new: tuple[Tensor, ...]) -> Term:
    return Term(unflatten(flatten(term.bias)[1], new), term.sheet)


def _sum(x: Tensor, dim: int, *, keepdim: bool = True) -> Tensor:
    """Sum, without copying what has nothing to be summed."""
    if x.shape[dim] == 1:
        return x if keepdim else x.squeeze(dim)
    return x.sum(dim, keepdim=keepdim)
