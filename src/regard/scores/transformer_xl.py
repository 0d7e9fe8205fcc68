"""Scores with a content term and a distance term, each with a bias that replaces the query's position."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_dim, check_parameter, check_softcap
from regard.diagonals import distances, skew
from regard.scores.base import Score, check_parts

__all__ = ["TransformerXL"]


class _Relative(Score):
    """What the score and what remains of it have in common: ((q + u)·k + (q + v)·r_{i−j}) / √d."""

    content_bias: Float[Tensor, "heads dim"]
    position_bias: Float[Tensor, "heads dim"]

    @property
    def floats_per_pair(self) -> int:
        """The score, and a row scored against up to twice as many diagonals as there are columns."""
        return 3

    def default_scale(self, dim: int) -> float:
        """1/√d, on the sum."""
        return float(dim**-0.5)

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """Content and distance, the second over the diagonals of the tile."""
        u, v = (bias.to(q.dtype)[:, None] for bias in (self.content_bias, self.position_bias))
        r = self._far(distances(i, j)).to(q.dtype)
        return (q + u) @ k.transpose(-2, -1) + skew((q + v) @ r.transpose(-2, -1))

    def _far(self, distance: Int[Tensor, " n"]) -> Float[Tensor, "heads n dim"]:
        """Give r for each distance i − j."""
        raise NotImplementedError  # computed by one of both below, looked up by the other


@dataclass(frozen=True, eq=False)
class TransformerXL(_Relative):
    """((q + u)·k + (q + v)·(W_R R_{i−j})) / √d (Dai et al. 2019, arXiv:1901.02860).

    `content_bias` u and `position_bias` v have the shape (heads, dim), and `w_r` W_R has the shape (heads, dim,
    model_dim). R_p is the sinusoid of the distance p = i − j, with sines and cosines in separate halves: [sin(p ω_t) |
    cos(p ω_t)] for ω_t = 10000^(−2t / model_dim). R_p is also defined for keys after the query. If there is a memory
    before the queries, the queries are the last positions. Values have no positional term. XLNet (2019,
    arXiv:1906.08237) has the same scores.

    Cost: O(queries · keys · dim) time. For square tiles it is about three times the time of the product. W_R R is
    computed once for all queries + keys − 1 distances: O((queries + keys) · heads · dim · model_dim) time and
    (queries + keys) · heads · dim floats.

    Raises:
        InputError: A tensor has another shape, type or device than these, or does not fit the heads or width of q.

    >>> import torch
    >>> q = k = torch.zeros(1, 1, 2, 1)
    >>> one = torch.ones(1, 1)
    >>> TransformerXL(one, one, torch.tensor([[[1.0, 0.0]]])).tile(q, k, torch.arange(2), torch.arange(2))  # sin(i - j)
    tensor([[[[ 0.0000, -0.8415],
              [ 0.8415,  0.0000]]]])
    """

    per_head: ClassVar[Mapping[str, int]] = {"content_bias": 2, "position_bias": 2, "w_r": 3}

    content_bias: Float[Tensor, "heads dim"]
    position_bias: Float[Tensor, "heads dim"]
    w_r: Float[Tensor, "heads dim model_dim"]
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        check_parameter("content_bias", self.content_bias, "(heads, dim)")
        check_parameter("position_bias", self.position_bias, "(heads, dim)")
        check_parameter("w_r", self.w_r, "(heads, dim, model_dim)")

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """The heads and the width of q."""
        super().check(q, k, v)
        check_parts(self, q)
        for name, held in (
            ("content_bias", self.content_bias),
            ("position_bias", self.position_bias),
            ("w_r", self.w_r),
        ):
            check_dim(name, held, 1, q.shape[-1], "q")

    def prepare(self, q: Tensor, k: Tensor, q_offset: int) -> tuple[Tensor, Tensor, Score]:
        """W_R R of all distances of the call; the products remain."""
        first = q_offset + q.shape[-2] - 1
        distance = first - torch.arange(q.shape[-2] + k.shape[-2] - 1, device=q.device)
        return q, k, _Looked(self.content_bias, self.position_bias, self._far(distance), first, self.softcap)

    def _far(self, distance: Int[Tensor, " n"]) -> Float[Tensor, "heads n dim"]:
        wide = torch.promote_types(self.w_r.dtype, torch.float32)
        return _sinusoids(distance, self.w_r.shape[-1]).to(wide) @ self.w_r.to(wide).transpose(-2, -1)


@dataclass(frozen=True, eq=False)
class _Looked(_Relative):
    """What remains: r (heads, distances, dim) of the distances `first`, first − 1, … is at hand."""

    per_head: ClassVar[Mapping[str, int]] = {"content_bias": 2, "position_bias": 2, "r": 3}

    content_bias: Float[Tensor, "heads dim"]
    position_bias: Float[Tensor, "heads dim"]
    r: Float[Tensor, "heads distances dim"]
    first: int
    softcap: float | None = None

    def _far(self, distance: Int[Tensor, " n"]) -> Float[Tensor, "heads n dim"]:
        return self.r.index_select(1, self.first - distance)


def _sinusoids(distance: Int[Tensor, " n"], width: int) -> Float[Tensor, "n width"]:
    """[sin | cos] halves, in float64: large angles would lose their digits in narrower types."""
    wide = torch.float32 if distance.device.type == "mps" else torch.float64
    powers = torch.arange(0, width, 2, dtype=wide, device=distance.device) / width
    angles = distance.to(wide)[:, None] * 10000**-powers
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :width]
