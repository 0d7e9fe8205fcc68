"""What depends on i − j alone: one number a diagonal, and the matrix that it makes.

A tile of `rows` × `columns` consecutive positions has rows + columns − 1 diagonals. They are ordered by j − i, from
1 − rows to columns − 1: entry (r, c) of the tile lies on diagonal c − r + rows − 1.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.torch_private import is_exporting

__all__ = ["distances", "skew", "spread", "sum_diagonals", "unskew"]


def distances(i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]) -> Int[Tensor, " diagonals"]:
    """Give the distance i − j of each diagonal, in the order above; i and j are runs of consecutive positions.

    >>> distances(torch.tensor([5, 6]), torch.tensor([3, 4, 5]))
    tensor([3, 2, 1, 0])
    """
    return i[-1] - j[0] - torch.arange(i.shape[0] + j.shape[0] - 1, device=i.device)


def spread(diagonals: Float[Tensor, "*leading diagonals"], rows: int) -> Float[Tensor, "*leading rows columns"]:
    """Write each diagonal's number along it; the gradient is `sum_diagonals`.

    >>> spread(torch.tensor([7.0, 8.0, 9.0]), rows=2)
    tensor([[8., 9.],
            [7., 8.]])
    """
    if torch.compiler.is_compiling():
        # A compiler makes a gradient of its own, and `unfold` would fix lengths that may be symbols.
        columns = diagonals.shape[-1] - rows + 1
        at = torch.arange(columns, device=diagonals.device) - torch.arange(rows, device=diagonals.device)[:, None]
        return diagonals[..., at + (rows - 1)]
    matrix: Tensor = _Spread.apply(diagonals, rows)  # type: ignore[no-untyped-call]
    return matrix


def sum_diagonals(matrix: Float[Tensor, "*leading rows columns"]) -> Float[Tensor, "*leading diagonals"]:
    """Add up a matrix along its diagonals.

    >>> sum_diagonals(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([3., 5., 2.])
    """
    return unskew(matrix).sum(-2)


def skew(values: Float[Tensor, "*leading rows diagonals"]) -> Float[Tensor, "*leading rows columns"]:
    """Take from each row the diagonals that cross it: a number for each row and diagonal becomes one for each pair.

    >>> skew(torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))
    tensor([[1., 2.],
            [3., 4.]])
    """
    rows, diagonals = values.shape[-2:]
    width = diagonals - 1
    if is_exporting():  # a program is for one row too, of which a row that is one shorter would lack the last column
        values, width = functional.pad(values, (0, 1)), diagonals
    elif rows == 1:
        return values
    # Row r begins at r · (width + 1) + rows − 1 − r: with rows one shorter, all begin in the same column.
    flat = values.flatten(-2).narrow(-1, rows - 1, rows * width)
    matrix: Tensor = flat.unflatten(-1, (rows, width))[..., : diagonals - rows + 1]
    return matrix


def unskew(matrix: Float[Tensor, "*leading rows columns"]) -> Float[Tensor, "*leading rows diagonals"]:
    """Put each row back on the diagonals that cross it, zeros elsewhere: the adjoint of `skew`.

    >>> unskew(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[0., 1., 2.],
            [3., 4., 0.]])
    """
    rows, columns = matrix.shape[-2:]
    diagonals = rows + columns - 1
    if is_exporting():  # as in `skew`, and without writing into a part of a tensor
        flat = functional.pad(matrix, (0, rows - 1)).flatten(-2)
        padded: Tensor = functional.pad(flat, (rows - 1, 1)).unflatten(-1, (rows, diagonals + 1))[..., :diagonals]
        return padded
    if rows == 1:
        return matrix
    values = matrix.new_zeros(*matrix.shape[:-2], rows * diagonals)
    inner = values.narrow(-1, rows - 1, rows * (diagonals - 1)).unflatten(-1, (rows, diagonals - 1))
    inner[..., :columns] = matrix
    whole: Tensor = values.unflatten(-1, (rows, diagonals))
    return whole


def _windows(diagonals: Tensor, rows: int) -> Tensor:
    # `flip` would keep the order of the windows' strides, and give a matrix that lies column by column.
    upwards = torch.arange(rows - 1, -1, -1, device=diagonals.device)
    return diagonals.unfold(-1, diagonals.shape[-1] - rows + 1, 1).index_select(-2, upwards)


class _Spread(torch.autograd.Function):
    """A copy of overlapping windows, of which autograd's own gradient is slow."""

    generate_vmap_rule = True

    @staticmethod
    def forward(diagonals: Tensor, rows: int) -> Tensor:
        return _windows(diagonals, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
        ctx.rows = inputs[1]

    @staticmethod
    def backward(_: Any, up: Tensor) -> tuple[Tensor, None]:
        return sum_diagonals(up), None

    @staticmethod
    def jvp(ctx: Any, change: Tensor, _: None) -> Tensor:
        return _windows(change, ctx.rows)
