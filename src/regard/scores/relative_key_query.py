"""Relative positions in the scores of both queries and keys."""

from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from regard.scores.base import Score
from regard.scores.checks import check_devices, check_heads, check_softcap, check_width, cut
from regard.scores.distance_tables import along, by_key, by_query, check_table

__all__ = ["RelativeKeyQuery"]


@dataclass(frozen=True, eq=False)
class RelativeKeyQuery(Score):
    """(q·k + q·a_ij + k·a_ij) / √d (Huang et al. 2020, method 4, arXiv:2009.13658).

    The table is indexed by key − query, as in Shaw: for query i and key j, a_ij is row clip(j − i, −c, c) + c of
    `table` (2c + 1, dim). With `left` and `right` the table has left + 1 + right rows, and a_ij is row clip(j − i,
    −left, right) + left. The table is shared by the heads, or has one part per head, (heads, 2c + 1, dim).

    BERT's position type "relative_key_query" indexes by query − key: it is
    `RelativeKeyQuery(distance_embedding.weight.flip(0))`.

    Cost: O(queries · keys · dim) time, about five times that of the product where tiles are square, as each row and
    each column is scored against the rows + columns − 1 diagonals of its tile. Nothing of rows · columns · dim is
    written.

    Raises:
        InputError: The table has another shape, type or device than these, or does not fit the width or heads of q;
            one of `left` and `right` is given without the other.

    >>> import torch
    >>> q, k = torch.ones(1, 1, 3, 1), 10 * torch.ones(1, 1, 3, 1)
    >>> score = RelativeKeyQuery(torch.tensor([[-1.0], [0.0], [7.0]]))
    >>> score.tile(q, k, torch.arange(3), torch.arange(3)) - 10  # without q·k, which is 10
    tensor([[[[  0.,  77.,  77.],
              [-11.,   0.,  77.],
              [-11., -11.,   0.]]]])
    """

    table: Float[Tensor, "*heads distances dim"]
    softcap: float | None = None
    left: int | None = None
    right: int | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        check_table("table", self.table, "dim", self.left, self.right)

    @property
    def floats_per_pair(self) -> int:
        """The score, and rows and columns scored against up to twice as many diagonals as each has pairs."""
        return 5

    def default_scale(self, dim: int) -> float:
        """1/√d, on the sum."""
        return float(dim**-0.5)

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """The width and heads of the table."""
        super().check(q, k, v)
        check_devices(self, q)
        check_width("table", self.table, -1, q.shape[-1], "q")
        if self.table.ndim == 3:
            check_heads("table", self.table, q)

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """q·k + q·a + k·a, the last two over the diagonals of the tile."""
        a = along(self.table, i, j, self.left)
        return q @ k.transpose(-2, -1) + by_query(q, a) + by_key(k, a)

    def of_heads(self, heads: slice) -> "RelativeKeyQuery":
        """With the tables of some heads."""
        return replace(self, table=cut(self.table, heads, 3))
