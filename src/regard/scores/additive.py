"""Small networks with one hidden layer.

Additive: a small network with one hidden layer scores query and key.

Concat: a small network scores query and key, written one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_dim, check_parameter, check_softcap
from regard.errors import InputError
from regard.scores.base import Score, check_parts

__all__ = ["Additive", "Concat"]


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """v · tanh(W q + U k) (Bahdanau et al. 2015, arXiv:1409.0473); the scale is 1.

    `w_query` is W of shape (hidden, dim_q), and `w_key` is U of shape (hidden, dim_k). Both are shared by the heads.
    `vector` is v of shape (hidden,), or (heads, hidden) with one vector for each head of q. `bias` of shape (hidden,)
    is added inside the tanh; the paper has no bias. Queries and keys may have different widths. If `w_query` or `w_key`
    is None, it is the identity, and the width of its input is `hidden`:

        Additive(None, None, v)     v · tanh(q + k), Keras' AdditiveAttention (v a vector of ones without use_scale)
        Additive(w, None, v)        v · tanh(W q + k), "concat" as the code of Luong et al. 2015 has it

    Cost: O(queries · keys · hidden) time, each a tanh; a tile needs rows · columns · hidden floats
    (`floats_per_pair`), and both projections are computed once.

    Raises:
        InputError: A tensor has another shape, type or device than these, or does not fit the widths or heads of q, k.

    >>> import torch
    >>> q, k = torch.tensor([[[[0.0], [1.0]]]]), torch.tensor([[[[0.0], [9.0]]]])
    >>> Additive(torch.ones(1, 1), torch.ones(1, 1), torch.tensor([5.0])).tile(q, k, torch.arange(2), torch.arange(2))
    tensor([[[[0.0000, 5.0000],
              [3.8080, 5.0000]]]])
    """

    per_head: ClassVar[Mapping[str, int]] = {"vector": 2}

    w_query: Float[Tensor, "hidden dim_q"] | None
    w_key: Float[Tensor, "hidden dim_k"] | None
    vector: Float[Tensor, "*heads hidden"]
    bias: Float[Tensor, " hidden"] | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        check_parameter("vector", self.vector, "(hidden,)", "(heads, hidden)")
        for name, tensor, layout in (
            ("w_query", self.w_query, "(hidden, dim_q)"),
            ("w_key", self.w_key, "(hidden, dim_k)"),
            ("bias", self.bias, "(hidden,)"),
        ):
            if tensor is not None:
                check_parameter(name, tensor, layout)
                check_dim(name, tensor, 0, self.hidden, "`vector`")

    @property
    def hidden(self) -> int:
        """Width of the hidden layer."""
        return self.vector.shape[-1]

    @property
    def floats_per_pair(self) -> int:
        """The hidden layer of each pair."""
        return self.hidden

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """The widths and heads of what is held."""
        check_parts(self, q)
        for name, tensor, of, x in (("w_query", self.w_query, "q", q), ("w_key", self.w_key, "k", k)):
            if tensor is None:
                check_dim("vector", self.vector, -1, x.shape[-1], f"{of}, as `{name}` is None,")
            else:
                check_dim(name, tensor, 1, x.shape[-1], of)

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim_q"],
        k: Float[Tensor, "batch heads columns dim_k"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The sum over the hidden layer of each pair."""
        a, b = self._project(q, k)
        hidden = (a.unsqueeze(-2) + b.unsqueeze(-3)).tanh_()
        vector = self.vector.to(q.dtype)
        if vector.ndim == 1:
            return hidden @ vector
        pairs = hidden.flatten(-3, -2) @ vector.unsqueeze(-1)
        return pairs.reshape(hidden.shape[:-1])

    def prepare(self, q: Tensor, k: Tensor, q_offset: int) -> tuple[Tensor, Tensor, Score]:
        """Both projections; the sum over the hidden layer remains."""
        return *self._project(q, k), replace(self, w_query=None, w_key=None, bias=None)

    def _project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        dtype = q.dtype
        a = q if self.w_query is None else q @ self.w_query.to(dtype).T
        b = k if self.w_key is None else k @ self.w_key.to(dtype).T
        return a if self.bias is None else a + self.bias.to(dtype), b


@dataclass(frozen=True, eq=False)
class Concat(Score):
    """v · tanh(W [q; k]) (Luong et al. 2015, arXiv:1508.04025, "concat"); the scale is 1.

    `weight` is W of shape (hidden, dim_q + dim_k), with the columns of the query first. `vector` is v of shape
    (hidden,), or (heads, hidden) with one vector for each head of q. `bias` (hidden,) is added inside the tanh; the
    paper has no bias. The authors' code computes v · tanh(W q + k) instead, which is Additive(w, None, v).

    Cost: as for Additive, because W is split into a part for the query and a part for the key: O(queries · keys ·
    hidden) time, and rows · columns · hidden floats per tile. Without this preparation the formula is computed as it
    is, with all pairs [q; k].

    Raises:
        InputError: A tensor has another shape, type or device than these, or does not fit the widths or heads of q, k.

    >>> import torch
    >>> q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0], [1.0]]]])
    >>> score = Concat(torch.tensor([[1.0, 9.0, -1.0]]), torch.tensor([1.0]))  # tanh(q0 + 9 q1 - k)
    >>> score.tile(q, k, torch.arange(1), torch.arange(2))
    tensor([[[[0.7616, 0.0000]]]])
    """

    per_head: ClassVar[Mapping[str, int]] = {"vector": 2}

    weight: Float[Tensor, "hidden dim_q+dim_k"]
    vector: Float[Tensor, "*heads hidden"]
    bias: Float[Tensor, " hidden"] | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        check_softcap(self.softcap)
        check_parameter("vector", self.vector, "(hidden,)", "(heads, hidden)")
        check_parameter("weight", self.weight, "(hidden, dim_q + dim_k)")
        check_dim("weight", self.weight, 0, self.vector.shape[-1], "`vector`")
        if self.bias is not None:
            check_parameter("bias", self.bias, "(hidden,)")
            check_dim("bias", self.bias, 0, self.vector.shape[-1], "`vector`")

    @property
    def floats_per_pair(self) -> int:
        """The pair [q; k] or its hidden layer."""
        return max(self.weight.shape)

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """The widths of q and k together, and the heads of the vector."""
        check_parts(self, q)
        if self.weight.shape[1] != q.shape[-1] + k.shape[-1]:
            raise InputError(
                f"`weight` must have a column for each of {q.shape[-1]} + {k.shape[-1]} entries of q and k, got "
                f"{self.weight.shape[1]} in shape {tuple(self.weight.shape)}: for v · tanh(W q + k) write "
                "Additive(w, None, v)"
            )

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim_q"],
        k: Float[Tensor, "batch heads columns dim_k"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The formula, pair by pair."""
        rows, columns = q.shape[-2], k.shape[-2]
        left = q.unsqueeze(-2).expand(-1, -1, -1, columns, -1)
        right = k.unsqueeze(-3).expand(-1, -1, rows, -1, -1)
        hidden = torch.cat([left, right], -1) @ self.weight.to(q.dtype).T
        hidden = torch.tanh(hidden if self.bias is None else hidden + self.bias.to(q.dtype))
        vector = self.vector.to(q.dtype)
        scores: Tensor = torch.linalg.vecdot(hidden, vector if vector.ndim == 1 else vector[:, None, None])
        return scores

    def prepare(self, q: Tensor, k: Tensor, q_offset: int) -> tuple[Tensor, Tensor, Score]:
        """Both halves of the projection; the sum over the hidden layer remains."""
        w_query, w_key = self.weight.split([q.shape[-1], k.shape[-1]], 1)
        return Additive(w_query, w_key, self.vector, self.bias, self.softcap).prepare(q, k, q_offset)
