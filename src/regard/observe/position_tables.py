"""The tables of positions that a model reads while it runs: vectors for positions, and numbers for a bias on scores.

A name makes a module a candidate; what is noted is measured. A table of positions gives its rows one after the other,
row s + i for position i. It is one of sines and cosines if each of its columns f is one, and each row has their length:

    f(i + 1) + f(i - 1) = 2 cos(ω) f(i),   |row|² = width / 2      (Vaswani et al. 2017, arXiv:1706.03762, section 3.5)

A bias comes from a table (a column for each head, as T5's: Raffel et al. 2020, arXiv:1910.10683) if each of its numbers
is in the column of its head.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.problem import Problem

__all__ = ["PositionTable", "bias_table", "is_position_name"]

_NAMES = ("position", "wpe", "embed_pos", "pos_emb")
_HIDDEN = -1e4  # of a key, models write at most this in place of -inf
_TOLERANCE = 1e-2  # of sines stored in 16 bits


def is_position_name(leaf: str) -> bool:
    """Return whether a module's name speaks of positions."""
    return any(part in leaf for part in _NAMES)


class PositionTable:
    """A module that may hold a table of positions; `kind` is what was measured of it.

    `kind`: None until rows one after the other were read, then "sinusoidal" or "other" for the numbers in them. An
    "other" table is a learned one as a rule, which cannot be seen from outside.
    """

    def __init__(self, module: nn.Module) -> None:
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        self._table = next((tensor.detach() for tensor in own if tensor.ndim == 2), None)
        self._last: int | None = None  # the row that was read last
        self.kind: Literal["sinusoidal", "other"] | None = None

    def read(self, output: Any) -> None:
        """Compare an output (…, positions, width) of the module with its table."""
        table = self._table
        if self.kind is not None or table is None or not isinstance(output, Tensor) or output.ndim < 2:
            return
        rows = output.detach().flatten(0, -3)[0] if output.ndim > 2 else output.detach()
        if rows.shape[-1] != table.shape[1] or rows.dtype != table.dtype or not len(rows):
            return
        rows = _without_padding(rows)
        for start in (table == rows[0]).all(-1).nonzero().flatten().tolist():
            follows = len(rows) > 1 or self._last == start - 1
            if follows and torch.equal(table[start : start + len(rows)], rows):
                self.kind = "sinusoidal" if _is_sinusoidal(table) else "other"
                return
            if len(rows) == 1:
                self._last = start


def _without_padding(rows: Float[Tensor, "positions width"]) -> Float[Tensor, "positions width"]:
    """Return rows without those at either end that repeat their neighbour: the positions of padding."""
    differs = (rows[1:] != rows[:-1]).any(-1).nonzero().flatten().tolist()
    if not differs:
        return rows[:1]
    first, last = differs[0], differs[-1]  # between a row and the next
    start = first + 1 if first > 0 else 0
    end = last + 1 if last < len(rows) - 2 else len(rows)
    return rows[start:end] if end - start > 1 else rows


def _is_sinusoidal(table: Float[Tensor, "positions width"]) -> bool:
    rows = table.double()
    rows = rows[rows.any(-1)]  # a row for padding is 0
    if len(rows) < 4:
        return False
    rows = rows[1:]  # after a row for padding one position is missing
    length = rows.square().sum(-1)
    if bool((length / (rows.shape[1] / 2) - 1).abs().max() > _TOLERANCE):
        return False
    around, middle = rows[2:] + rows[:-2], rows[1:-1]
    factor = (around * middle).sum(0) / middle.square().sum(0).clamp_min(1e-30)
    return bool((around - factor * middle).abs().max() <= 2 * _TOLERANCE) and bool((factor.abs() <= 2.001).all())


def bias_table(problem: Problem, tables: Mapping[str, Tensor]) -> str | None:
    """Return the name of the table (rows, heads) that the bias of a call was read from; None where there is none."""
    if problem.bias is None or not problem.queries or not problem.keys:
        return None
    candidates = {name: table for name, table in tables.items() if table.shape[1] == problem.heads}
    if not candidates:
        return None
    row = problem.bias.tile(slice(0, 1), slice(0, problem.heads), problem.i()[-1:], problem.j())[0, :, 0]
    if len(row) != problem.heads:
        return None
    return next((name for name, table in candidates.items() if _is_from(table.detach(), row)), None)


def _is_from(table: Float[Tensor, "rows heads"], bias: Float[Tensor, "heads keys"]) -> bool:
    numbers = [row[row > _HIDDEN] for row in bias.to(table.dtype)]
    columns = zip(numbers, table.T, strict=True)
    return any(bool(row.any()) for row in numbers) and all(bool(torch.isin(row, own).all()) for row, own in columns)
