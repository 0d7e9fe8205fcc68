"""The disentangled score of DeBERTa: queries and keys of content, and queries and keys of distance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_dim, check_parameter, check_softcap
from regard.diagonals import distances
from regard.errors import InputError
from regard.scores.base import Score, check_parts
from regard.scores.distance_tables import by_key, by_query

__all__ = ["DeBERTa"]


@dataclass(frozen=True, eq=False)
class DeBERTa(Score):
    """(q·k + q·kʳ_δ(i,j) + k·qʳ_δ(i,j)) / √(d · terms): disentangled attention (He et al. 2021, arXiv:2006.03654).

    `position_keys` kʳ and `position_queries` qʳ have the shape (heads, 2 · span, dim). They are the keys and queries
    that a layer projects from the embeddings of the distances. There are three terms: content to content, content to
    position ("c2p", which needs `position_keys`) and position to content ("p2c", which needs `position_queries`). One
    of the two tensors may be None. The scale uses the number of terms that are present, 2 or 3. `from_embeddings`
    computes both projections of a layer. If `share_att_key` is true, as in v2 and v3, the projections of the content
    are used for the positions too.

    In both terms δ(i, j) = clip(i − j + span, 0, 2 · span − 1), which is query − key. The authors' code and
    transformers have the same definition, and checkpoints were trained with it. The third term of equation 4 of the
    paper has δ(j, i) instead.

    In v2 and v3, distances beyond `position_buckets` / 2 share logarithmic buckets. In this case span is
    `position_buckets`, and the last bucket begins at the distance `max_relative_positions` (if the config has −1, this
    is the model's `max_position_embeddings`). Without buckets (−1, as in v1), span is `max_relative_positions`.

    Cost: O(queries · keys · dim) time. For square tiles it is about five times the time of the product. Each row and
    each column is scored against the rows + columns − 1 diagonals of its tile. No tensor of rows · columns · dim is
    made.

    Raises:
        InputError: Both tensors are None; a tensor has another shape, type or device than these, or does not fit the
            heads or width of q; buckets do not fit the number of rows or reach beyond max_relative_positions.

    >>> import torch
    >>> q = k = torch.ones(1, 1, 3, 1)
    >>> score = DeBERTa(torch.tensor([[[-2.0], [-1.0], [0.0], [1.0]]]), None)  # span 2: i − j from −2 to 1
    >>> score.tile(q, k, torch.arange(3), torch.arange(3))
    tensor([[[[ 1.,  0., -1.],
              [ 2.,  1.,  0.],
              [ 2.,  2.,  1.]]]])
    """

    per_head: ClassVar[Mapping[str, int]] = {"position_keys": 3, "position_queries": 3}

    position_keys: Float[Tensor, "heads distances dim"] | None
    position_queries: Float[Tensor, "heads distances dim"] | None
    position_buckets: int = -1
    max_relative_positions: int = -1
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        if not self._tables():
            raise InputError("`position_keys` or `position_queries` must be given: without both write ScaledDot()")
        for name in ("position_buckets", "max_relative_positions"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int):
                raise InputError(f"`{name}` must be an integer, −1 for none, got {number!r}")
        for name, table in self._tables():
            check_parameter(name, table, "(heads, 2 · span, dim)")
            if table.shape[1] % 2 or table.shape[1] != 2 * self._span:
                raise InputError(
                    f"`{name}` must have 2 · span rows, an even number, where span is `position_buckets` or, without "
                    f"buckets, `max_relative_positions`, got {table.shape[1]} in shape {tuple(table.shape)} with "
                    f"position_buckets {self.position_buckets} and max_relative_positions {self.max_relative_positions}"
                )
        if self.position_buckets > 0 and not 2 <= self.position_buckets < 2 * (self.max_relative_positions - 1):
            raise InputError(
                "`position_buckets` must be 2 or more, and half of it less than `max_relative_positions` − 1, got "
                f"{self.position_buckets} and {self.max_relative_positions}: give the model's max_position_embeddings "
                "where its config has max_relative_positions −1, or position_buckets=-1 for distances without buckets"
            )

    @classmethod
    def from_embeddings(
        cls,
        rel_embeddings: Float[Tensor, "distances hidden_size"],
        num_heads: int,
        *,
        pos_key_proj: Callable[[Tensor], Tensor] | None,
        pos_query_proj: Callable[[Tensor], Tensor] | None,
        position_buckets: int = -1,
        max_relative_positions: int = -1,
    ) -> "DeBERTa":
        """Project the embeddings of distances with a layer's `nn.Linear`s; None leaves out a term.

        They are transformers' `pos_key_proj` and `pos_query_proj` (v1: `pos_proj`, `pos_q_proj`), and where
        `share_att_key` is true `key_proj` and `query_proj`. `rel_embeddings` is what `encoder.get_rel_embedding()`
        gives; of its rows the first 2 · span are used.
        """
        span = position_buckets if position_buckets > 0 else max_relative_positions
        rows = rel_embeddings[: 2 * span] if span > 0 else rel_embeddings
        keys, queries = (
            None if project is None else project(rows).unflatten(-1, (num_heads, -1)).transpose(0, 1)
            for project in (pos_key_proj, pos_query_proj)
        )
        return cls(keys, queries, position_buckets, max_relative_positions)

    @property
    def floats_per_pair(self) -> int:
        """The score, and for each term rows or columns scored against up to twice as many diagonals."""
        return 1 + 2 * len(self._tables())

    def default_scale(self, dim: int) -> float:
        """1/√(d · terms), on the sum."""
        return float((dim * (1 + len(self._tables()))) ** -0.5)

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """The heads and the width of q."""
        super().check(q, k, v)
        check_parts(self, q)
        for name, table in self._tables():
            check_dim(name, table, -1, q.shape[-1], "q")

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """c2c + c2p + p2c, the last two over the diagonals of the tile."""
        span, scores = self._span, q @ k.transpose(-2, -1)
        distance = distances(i, j)
        if self.position_buckets > 0:
            distance = _log_buckets(distance, self.position_buckets, self.max_relative_positions)
        at = (distance + span).clamp(0, 2 * span - 1)
        if self.position_keys is not None:
            scores = scores + by_query(q, _rows(self.position_keys, at))
        if self.position_queries is not None:
            scores = scores + by_key(k, _rows(self.position_queries, at))
        return scores

    @property
    def _span(self) -> int:
        if self.position_buckets > 0:
            return self.position_buckets
        return self.max_relative_positions if self.max_relative_positions > 0 else self._tables()[0][1].shape[1] // 2

    def _tables(self) -> list[tuple[str, Tensor]]:
        given = (("position_keys", self.position_keys), ("position_queries", self.position_queries))
        return [(name, table) for name, table in given if table is not None]


def _rows(table: Tensor, at: Tensor) -> Tensor:
    """Rows in float32 at least, in which the gradient of one that many diagonals share is summed."""
    return table.to(torch.promote_types(table.dtype, torch.float32)).index_select(1, at)


def _log_buckets(distance: Int[Tensor, " n"], buckets: int, most: int) -> Int[Tensor, " n"]:
    """Distances as they are to half the buckets, then logarithmic to `most`, in float32 as checkpoints were trained."""
    middle = buckets // 2
    far = distance.abs().clamp(min=middle)
    last = torch.log(torch.tensor((most - 1) / middle, dtype=torch.float32, device="cpu"))
    steps = torch.ceil(torch.log(far.float() / middle) / last * (middle - 1)) + middle
    return torch.where(distance.abs() <= middle, distance, steps.long() * distance.sign())
