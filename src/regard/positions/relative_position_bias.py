"""Learned biases of relative positions.

RelativePositionBias: one learned number for each head and distance.

RelativePositionBiasND: one learned number for each head and offset between two cells of a grid.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_count
from regard.errors import InputError
from regard.positions.base import Bias, Relative, check_table, look_up

__all__ = ["RelativePositionBias", "RelativePositionBiasND"]


@dataclass(frozen=True, eq=False)
class RelativePositionBias(Relative):
    """table[clip(i − j, −m, m) + m, head] with m = `max_distance`, added to the scores.

    This is the bias of Swin (Liu et al. 2021, 3.2, arXiv:2103.14030) along one axis. Distances are clipped as in Shaw
    et al. 2018: all distances beyond `max_distance` share a row of the table. The first row is for the farthest later
    key (j = i + m), and the middle row is for the query itself. If a table is indexed by j − i, pass table.flip(0).

    Args:
        table: A number for each distance and head (2 · max_distance + 1, heads). It gets gradients.

    Shapes: the bias is (1, heads, queries, keys), in the table's type.

    Cost: (2 · m + 1) · heads parameters, looked up for queries + keys − 1 distances, and one addition per pair. O(n)
    memory in blocks. A backend that needs the bias as a tensor uses heads · queries · keys numbers.

    Raises:
        InputError: The table is not (distances, heads) with an odd number of distances.

    >>> import torch
    >>> at = torch.arange(4)
    >>> RelativePositionBias(torch.tensor([[-1.0], [0.0], [1.0]])).tile(slice(0, 1), slice(0, 1), at, at)[0, 0]
    tensor([[ 0., -1., -1., -1.],
            [ 1.,  0., -1., -1.],
            [ 1.,  1.,  0., -1.],
            [ 1.,  1.,  1.,  0.]])
    """

    table: Float[Tensor, "distances heads"]

    def __post_init__(self) -> None:
        check_table("table", self.table, "2 · max_distance + 1")
        if self.table.shape[0] % 2 == 0:
            raise InputError(
                f"`table` must have 2 · max_distance + 1 rows, the middle one for distance 0, got "
                f"{self.table.shape[0]} in shape {tuple(self.table.shape)}"
            )

    @property
    def max_distance(self) -> int:
        """The distance, in tokens, from which on all are alike."""
        return self.table.shape[0] // 2

    @property
    def leading(self) -> tuple[int, int]:
        """The same for all sequences."""
        return 1, self.table.shape[1]

    def diagonals(self, distance: Int[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        """Look each distance up."""
        return look_up(self.table, self._row(distance)).T

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Look the pair's distance up."""
        return look_up(self.table, self._row(i - j), head)

    def _row(self, distance: Tensor) -> Tensor:
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance


@dataclass(frozen=True, eq=False)
class RelativePositionBiasND(Bias):
    """table[offset of the cells, head], added to the scores: Swin's relative position bias in any dimension.

    Source: Liu et al. 2021, 3.2, arXiv:2103.14030. The positions are the cells of a grid in row-major order. In Swin,
    the grid is a window of the image, and the windows are the batch. The offset along axis a is i_a − j_a + (size_a −
    1), which has 2 · size_a − 1 possible values. The table has one row for each combination of offsets, in row-major
    order.

    Args:
        table: A number for each offset and head (Π (2 · size − 1), heads): transformers'
            relative_position_bias_table. It gets gradients.
        grid: Its size, such as (height, width).

    Shapes: the bias is (1, heads, queries, keys), in the table's type.

    Cost: Π (2 · size − 1) · heads parameters; a look-up and an addition for each pair and head. A backend that needs
    the bias as a tensor uses heads · queries · keys numbers.

    Raises:
        InputError: The table does not fit the grid; or, with a call, there are more tokens than cells.

    >>> bias, at = RelativePositionBiasND(torch.arange(9.0)[:, None], (2, 2)), torch.arange(4)
    >>> bias.tile(slice(0, 1), slice(0, 1), at, at)[0, 0]
    tensor([[4., 3., 1., 0.],
            [5., 4., 2., 1.],
            [7., 6., 4., 3.],
            [8., 7., 5., 4.]])
    """

    table: Float[Tensor, "offsets heads"]
    grid: tuple[int, ...]

    def __post_init__(self) -> None:
        check_table("table", self.table, "offsets")
        if not isinstance(self.grid, tuple) or not self.grid:
            raise InputError(f"`grid` must be a tuple of sizes, such as (height, width), got {self.grid!r}")
        for size in self.grid:
            check_count("grid", size, 1, "counts the cells along each axis")
        offsets = math.prod([2 * size - 1 for size in self.grid])  # a generator would break a compiled graph
        if self.table.shape[0] != offsets:
            raise InputError(
                f"`table` must have a row for each of {offsets} offsets in a grid of {self.grid}, "
                f"Π (2 · size − 1), got {self.table.shape[0]} in shape {tuple(self.table.shape)}"
            )

    @property
    def leading(self) -> tuple[int, int]:
        """The same for all sequences."""
        return 1, self.table.shape[1]

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Look the offset of the two cells up."""
        row = torch.zeros_like(i - j)
        step = 1
        for size in reversed(self.grid):
            row = row + (i % size - j % size + size - 1) * step
            i, j, step = i // size, j // size, step * (2 * size - 1)
        return look_up(self.table, row, head)

    def resolve(self, queries: int, keys: int, q_offset: int) -> "RelativePositionBiasND":
        """Check that every token has a cell."""
        cells, tokens = math.prod(self.grid), max(keys, q_offset + queries)
        if tokens > cells or q_offset < 0:
            first = f", the first query at {q_offset}" if q_offset else ""
            raise InputError(
                f"`grid` must have a cell for each token, got {cells} cells in {self.grid} for {queries} queries and "
                f"{keys} keys{first}: cut them into windows of {cells} tokens, as the batch"
            )
        return self
