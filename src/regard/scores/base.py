"""Score, the base class of all scores."""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["Score"]


class Score:
    """A frozen value that scores a tile of queries against a tile of keys.

    To define a score of your own, write a frozen dataclass (`eq=False` if it holds tensors) with a method `tile`.
    Tensors in its fields get gradients on every backend. A backend calls `tile` for a part of the sequences and heads.
    If the score has parameters per sequence or head, `tile` takes `batch` and `head` after j, the indices of the
    tile's sequences and heads, as a bias does:

    >>> import regard, torch
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False)
    ... class Gained(Score):
    ...     gain: Tensor  # (heads,)
    ...
    ...     def tile(self, q, k, i, j, batch, head):
    ...         return self.gain[head][:, None, None] * (q @ k.mT)
    >>> x = torch.eye(2)[None, None].expand(1, 2, 2, 2)
    >>> regard.attention(x, x, x, score=Gained(torch.tensor([0.0, 9.0])))[0, :, 0]
    tensor([[5.0000e-01, 5.0000e-01],
            [9.9988e-01, 1.2339e-04]])

    If such a score takes neither argument, the result is the same but takes more time, because the score may then be
    computed for all sequences and heads each time.
    """

    product: ClassVar[bool] = False  # after `prepare` the score is q·kᵀ: fused kernels can compute it

    softcap: float | None = None  # scores are capped smoothly to ±softcap after scaling

    @property
    def floats_per_pair(self) -> int:
        """The number of floats per pair that the computation needs; tiles are smaller if it is large."""
        return 1

    def default_scale(self, dim: int) -> float:
        """Return the factor on the score if the caller gives none; `dim` is the width of the queries."""
        return 1.0

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Raise an InputError if q, k and v, all with four dimensions, do not fit the score."""
        if k.shape[-1] != q.shape[-1]:
            raise InputError(
                f"`k` must have the width of `q` ({q.shape[-1]}), got {k.shape[-1]} in q {tuple(q.shape)}, "
                f"k {tuple(k.shape)}"
            )

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns key_dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """Return the score of each query of the tile with each key; i and j are their positions, two runs of
        consecutive numbers.
        """
        raise NotImplementedError  # each score defines it

    def prepare(self, q: Tensor, k: Tensor, q_offset: int) -> tuple[Tensor, Tensor, "Score"]:
        """Compute once what is the same in all tiles, and return q, k (which may have fewer heads) and the remaining
        score.

        `prepared.tile(*prepared q and k)` equals `self.tile(q, k)`. The remaining score of a score with `product` is a
        plain product.
        """
        return q, k, self

    def of_heads(self, heads: slice) -> "Score":
        """Return the score for a part of q's heads, with parameters per head restricted to these."""
        return self

    def value_term(
        self, weights: Float[Tensor, "batch heads rows columns"], i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]
    ) -> Float[Tensor, "batch heads rows value_dim"] | None:
        """Return Σ_j weights_ij · a_ij, which is linear in the weights, if the score adds a term a_ij to the
        value j.
        """
        return None
