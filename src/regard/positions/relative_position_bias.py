"""RelativePositionBias: one learned number for each head and distance."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InputError
from regard.positions.base import Relative
from regard.positions.checks import check_table, look_up

__all__ = ["RelativePositionBias"]


@dataclass(frozen=True, eq=False)
class RelativePositionBias(Relative):
    """table[clip(i − j, −m, m) + m, head] with m = `max_distance`, added to the scores.

    This is the bias of Swin (Liu et al. 2021, 3.2, arXiv:2103.14030) along one axis, with distances clipped as in Shaw
    et al. 2018: all distances beyond `max_distance` share a row. The first row is for the farthest later key (j = i +
    m), and the middle row for the query itself. If a table is indexed by j − i, pass table.flip(0).

    Args:
        table: A number for each distance and head (2 · max_distance + 1, heads). It gets gradients.

    Shapes: the bias is (1, heads, queries, keys), in the table's type.

    Cost: (2 · m + 1) · heads parameters, looked up for queries + keys − 1 distances: one addition a pair. O(n) memory
    in blocks; heads · queries · keys numbers for a backend that wants the bias as a tensor.

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
