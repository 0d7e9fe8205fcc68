"""What a score is."""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["Score"]


class Score:
    """A frozen value that scores a tile of queries against a tile of keys.

    Whoever wants another score writes a frozen dataclass (`eq=False` if it holds tensors) with `tile`; tensors in its
    fields get gradients on every backend. Backends ask about some sequences and heads at a time. A score with something
    of its own for each takes `batch` and `head` after j, the indices of those in the tile, as a bias does:

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

    One that holds tensors by sequence or head and takes neither gives the same, in more time: where a mask tells
    sequences or heads apart, it is asked about all of them each time.
    """

    product: ClassVar[bool] = False  # after `prepare` the score is q·kᵀ: fused kernels can compute it

    softcap: float | None = None  # scores are capped smoothly to ±softcap after scaling

    @property
    def floats_per_pair(self) -> int:
        """How many floats a pair needs while its score is computed; tiles are made smaller where it is many."""
        return 1

    def default_scale(self, dim: int) -> float:
        """The factor on the score where the caller gives none; `dim` is the width of the queries."""
        return 1.0

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Raise an InputError where q, k and v, all of four dimensions, do not fit the score."""
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
        """Score each query of the tile against each key; i and j are their positions, two consecutive runs."""
        raise NotImplementedError  # each score defines it

    def prepare(self, q: Tensor, k: Tensor, q_offset: int) -> tuple[Tensor, Tensor, "Score"]:
        """Do once what is the same in all tiles: q, k (which may have fewer heads) and the score that remains.

        `prepared.tile(*prepared q and k)` is `self.tile(q, k)`: a score with `product` leaves a plain product.
        """
        return q, k, self

    def of_heads(self, heads: slice) -> "Score":
        """The score of some heads of q: what it holds for each head, prepared or not, is cut to them."""
        return self

    def value_term(
        self, weights: Float[Tensor, "batch heads rows columns"], i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]
    ) -> Float[Tensor, "batch heads rows value_dim"] | None:
        """Give Σ_j weights_ij · a_ij, linear in the weights, where the score adds a term a_ij to the value j."""
        return None
