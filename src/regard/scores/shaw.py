"""Learned vectors of relative positions.

Shaw: relative positions in keys and values.

RelativeKeyQuery: relative positions in the scores of both queries and keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_dim, check_softcap
from regard.diagonals import unskew
from regard.scores.base import Score, check_parts
from regard.scores.distance_tables import along, by_key, by_query, check_table

__all__ = ["RelativeKeyQuery", "Shaw"]


@dataclass(frozen=True, eq=False)
class Shaw(Score):
    """q · (k + a^K_ij) / √d, and output_i = Σ_j weights_ij (v_j + a^V_ij) (Shaw et al. 2018, arXiv:1803.02155).

    The tables are indexed by key − query, as in the paper. For query i and key j, a^K_ij is row clip(j − i, −c, c) + c
    of `key_table` (2c + 1, dim), and a^V_ij is the same row of `value_table` (2c + 1, value_dim). Row 0 is for keys at
    a distance of c or more before the query, row c is for the query itself, and row 2c is for keys at a distance of c
    or more after it.

    Other code may index its table by query − key; for such a table pass `table.flip(-2)`. BERT's "relative_key" is
    `Shaw(distance_embedding.weight.flip(0))`. BERT's "relative_key_query" is `scores.RelativeKeyQuery`.

    With `left` and `right` the tables have left + 1 + right rows, and the index is clip(j − i, −left, right) + left.
    For Wav2Vec2-BERT and SeamlessM4T-v2, use `Shaw(distance_embedding.weight, left=64, right=8)`. There
    `left_max_position_embeddings` is 64 and `right_max_position_embeddings` is 8.

    Tables are shared by the heads, as in the paper, or (heads, 2c + 1, ...). Without a value table no term is added to
    the values.

    Cost: O(queries · keys · dim) time. For square tiles it is about three times the time of the product. Each row is
    scored against the rows + columns − 1 diagonals of its tile, which need twice the memory of the tile. No tensor of
    rows · columns · dim is made.

    Raises:
        InputError: A table has another shape, type or device than these, or does not fit the widths or heads of q, v;
            one of `left` and `right` is given without the other.

    >>> import torch
    >>> q, k = torch.ones(1, 1, 3, 1), torch.zeros(1, 1, 3, 1)
    >>> score = Shaw(torch.tensor([[-1.0], [0.0], [7.0]]), torch.tensor([[-2.0], [0.0], [5.0]]))
    >>> score.tile(q, k, torch.arange(3), torch.arange(3))
    tensor([[[[ 0.,  7.,  7.],
              [-1.,  0.,  7.],
              [-1., -1.,  0.]]]])
    >>> score.value_term(torch.ones(1, 1, 3, 3), torch.arange(3), torch.arange(3)).flatten()
    tensor([10.,  3., -4.])
    """

    per_head: ClassVar[Mapping[str, int]] = {"key_table": 3, "value_table": 3}

    key_table: Float[Tensor, "*heads distances dim"]
    value_table: Float[Tensor, "*heads distances value_dim"] | None = None
    softcap: float | None = None
    left: int | None = None
    right: int | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        check_table("key_table", self.key_table, "dim", self.left, self.right)
        if self.value_table is not None:
            check_table("value_table", self.value_table, "value_dim", self.left, self.right)

    @property
    def floats_per_pair(self) -> int:
        """The score, and a row scored against up to twice as many diagonals as there are columns."""
        return 3

    def default_scale(self, dim: int) -> float:
        """1/√d, on the sum."""
        return float(dim**-0.5)

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """The widths and heads of the tables."""
        super().check(q, k, v)
        check_parts(self, q)
        for name, table, of, x in (("key_table", self.key_table, "q", q), ("value_table", self.value_table, "v", v)):
            if table is not None:
                check_dim(name, table, -1, x.shape[-1], of)

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """q·k + q·a, the second over the diagonals of the tile."""
        return q @ k.transpose(-2, -1) + by_query(q, along(self.key_table, i, j, self.left))

    def value_term(
        self, weights: Float[Tensor, "batch heads rows columns"], i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]
    ) -> Float[Tensor, "batch heads rows value_dim"] | None:
        """Σ_j weights_ij · a^V_ij, over the diagonals of the tile; None without a value table."""
        if self.value_table is None:
            return None
        return unskew(weights) @ along(self.value_table, i, j, self.left).to(weights.dtype)


@dataclass(frozen=True, eq=False)
class RelativeKeyQuery(Score):
    """(q·k + q·a_ij + k·a_ij) / √d (Huang et al. 2020, method 4, arXiv:2009.13658).

    The table is indexed by key − query, as in Shaw. For query i and key j, a_ij is row clip(j − i, −c, c) + c of
    `table` (2c + 1, dim). With `left` and `right` the table has left + 1 + right rows, and a_ij is row clip(j − i,
    −left, right) + left. All heads share one table, or each head has its own: (heads, 2c + 1, dim).

    BERT's position type "relative_key_query" indexes by query − key: it is
    `RelativeKeyQuery(distance_embedding.weight.flip(0))`.

    Cost: O(queries · keys · dim) time. For square tiles it is about five times the time of the product. Each row and
    each column is scored against the rows + columns − 1 diagonals of its tile. No tensor of rows · columns · dim is
    made.

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

    per_head: ClassVar[Mapping[str, int]] = {"table": 3}

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
        check_parts(self, q)
        check_dim("table", self.table, -1, q.shape[-1], "q")

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
