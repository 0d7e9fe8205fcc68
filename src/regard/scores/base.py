"""What a score is, and its dot products.

ScaledDot: the dot product of query and key, scaled or not, with an optional softcap.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_softcap
from regard.errors import InputError

__all__ = ["Dot", "ScaledDot", "Score", "check_parts"]


class Score:
    """A frozen value that scores a tile of queries against a tile of keys.

    To define a score of your own, write a frozen dataclass (`eq=False` if it holds tensors) with a method `tile`.
    Tensors in its fields get gradients on every backend. A backend calls `tile` for a part of the sequences and heads.
    If the score has parameters for each sequence or head, `tile` takes two more arguments after j, as a bias does. They
    are `batch` and `head`, the indices of the sequences and heads of the tile:

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

    If such a score does not take `batch` and `head`, the result is the same but takes more time, because the score may
    be computed for all sequences and heads in each call of `tile`.
    """

    product: ClassVar[bool] = False  # after `prepare` the score is q·kᵀ: fused kernels can compute it

    # Fields, by the number of their dimensions where the first of these is q's heads.
    per_head: ClassVar[Mapping[str, int]] = {}

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
        """Return the score for a part of q's heads, with the parameters in `per_head` restricted to these."""
        parts = {name: held[heads] for name, held in _parts_per_head(self)}
        return replace(self, **parts) if parts else self  # type: ignore[type-var]  # a score is a dataclass

    def value_term(
        self, weights: Float[Tensor, "batch heads rows columns"], i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]
    ) -> Float[Tensor, "batch heads rows value_dim"] | None:
        """Return Σ_j weights_ij · a_ij, which is linear in the weights, if the score adds a term a_ij to the
        value j.
        """
        return None


@dataclass(frozen=True)
class ScaledDot(Score):
    """q·k / √d (Vaswani et al. 2017, arXiv:1706.03762), then softcap · tanh(s / softcap) where one is given.

    The softcap is that of Gemma 2 (2024, arXiv:2408.00118): scores stay between −softcap and softcap.

    Cost: O(queries · keys · d) time; fused kernels need O(n) memory, but none of PyTorch's takes a softcap.

    >>> import torch
    >>> q, k = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> ScaledDot().tile(q, k, torch.arange(1), torch.arange(2))
    tensor([[[[3., 4.]]]])
    >>> round(ScaledDot().default_scale(4), 3)
    0.5
    """

    product: ClassVar[bool] = True

    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)

    def default_scale(self, dim: int) -> float:
        """1/√d, which keeps the variance of the score at 1."""
        return 1 / math.sqrt(dim)

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The products q·k, not yet scaled."""
        return q @ k.transpose(-2, -1)


@dataclass(frozen=True)
class Dot(ScaledDot):
    """q·k (Luong et al. 2015, arXiv:1508.04025, "dot"): the dot product as it is, not divided by √d; T5 has it too.

    Cost: that of ScaledDot, O(queries · keys · d) time; fused kernels need O(n) memory.
    """

    def default_scale(self, dim: int) -> float:
        """1: the plain product."""
        return 1.0


def check_parts(score: Score, q: Tensor) -> None:
    """Raise unless the tensors of a score are on the device of q, those in `per_head` with an entry for each head."""
    for part in fields(score):  # type: ignore[arg-type]  # a score is a dataclass
        held = getattr(score, part.name)
        if isinstance(held, Tensor) and held.device != q.device:
            raise InputError(
                f"`{part.name}` must be on the device of q ({q.device}), got {held.device}: move it with .to()"
            )
    for name, held in _parts_per_head(score):
        if held.shape[0] != q.shape[1]:
            raise InputError(
                f"`{name}` must have one entry for each head of q ({q.shape[1]}), got {held.shape[0]} in shape "
                f"{tuple(held.shape)}"
            )


def _parts_per_head(score: Score) -> list[tuple[str, Tensor]]:
    """The tensors of a score that have an entry for each head of q, by name."""
    held = [(name, getattr(score, name), dims) for name, dims in score.per_head.items()]
    return [(name, part) for name, part, dims in held if isinstance(part, Tensor) and part.ndim == dims]
