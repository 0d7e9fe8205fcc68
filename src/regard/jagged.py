"""Sequences of different length without padding: PyTorch's jagged tensors, packed into one sequence of documents."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import InputError
from regard.masks import Document, Mask
from regard.normalizers import Sigmoid
from regard.positions import Bias, Relative, Rotary
from regard.problem import Options

__all__ = ["Packing"]


@dataclass(frozen=True, eq=False)
class Packing:
    """Jagged q, k and v as one sequence each, and the way back."""

    q: Float[Tensor, "1 heads total_queries dim"]
    k: Float[Tensor, "1 kv_heads total_keys dim"]
    v: Float[Tensor, "1 kv_heads total_keys value_dim"]
    edges: Int[Tensor, " documents_and_1"]
    key_edges: Int[Tensor, " documents_and_1"]
    headed: bool

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> "Packing":
        """Take the values of jagged (batch, n*, dim) or (batch, heads, n*, dim), as SDPA takes them."""
        for name, one in (("q", q), ("k", k), ("v", v)):
            if (
                not one.is_nested
                or one.layout != torch.jagged
                or one.ndim not in (3, 4)
                or _ragged(one) != one.ndim - 2
            ):
                raise InputError(
                    f"`{name}` must be jagged like the others, (batch, n*, dim) or (batch, heads, n*, dim): make it "
                    "with torch.nested.nested_tensor(list, layout=torch.jagged), and .transpose(1, 2) for heads last"
                )
            if _inside(one).lengths() is not None:
                raise InputError(f"`{name}` must have no holes between its sequences: call {name}.contiguous()")
        if not q.ndim == k.ndim == v.ndim:
            raise InputError(f"q, k and v must have equally many dimensions, got {q.ndim}, {k.ndim} and {v.ndim}")
        edges, key_edges, value_edges = (_inside(one).offsets() for one in (q, k, v))
        if len(edges) != len(key_edges) or not torch.equal(key_edges, value_edges):
            raise InputError(
                "q, k and v must hold equally many sequences, and k and v of the same lengths, got lengths "
                f"{edges.diff().tolist()}, {key_edges.diff().tolist()} and {value_edges.diff().tolist()}"
            )
        headed = q.ndim == 4
        q, k, v = (one.values()[None] if headed else one.values()[None, None] for one in (q, k, v))
        return cls(q, k, v, edges, key_edges, headed)

    @property
    def aligned(self) -> bool:
        """Whether queries and keys have the same lengths: i − j is then the same inside a sequence and over all."""
        return self.edges is self.key_edges or torch.equal(self.edges, self.key_edges)

    def asked(self, asked: Options) -> Options:
        """The options of a call, which speak of each sequence, for the packed whole."""
        mask, score = asked["mask"], asked["score"]
        if asked["return_weights"]:
            raise InputError("`return_weights=True` has no shape for different lengths: pass them one by one")
        if mask is not None and not isinstance(mask, Mask):
            raise InputError(
                "`mask` for jagged tensors is a mask over positions inside each sequence, such as masks.Causal(), got "
                f"{type(mask).__name__}"
            )
        for name, term in (("bias", asked["bias"]), ("weight_factor", asked["weight_factor"])):
            if term is not None and not (isinstance(term, Relative) and self.aligned):
                _refuse_positions(name, term, isinstance(term, Bias) and self.aligned)
        if isinstance(normalizer := asked["normalizer"], Sigmoid) and normalizer.shift is None:
            raise InputError(
                "`normalizer` for jagged tensors must be the same in every sequence, and Sigmoid() shifts by −ln of "
                "its length: write Sigmoid(shift=…), or pass the sequences one by one"
            )
        if score is not None and not score.product and not self.aligned:
            _refuse_positions("score", score, False)
        whole = Document.from_cu_seqlens(self.key_edges, None if self.aligned else self.edges, within=mask)
        return {**asked, "mask": whole, "rotary": None}

    def rotated(self, rotary: Rotary | None) -> "Packing":
        """Turn q and k by their positions inside each sequence, of which the queries are the last."""
        if rotary is None:
            return self
        total = int(self.key_edges[-1])
        if not isinstance(rotary, Rotary) or rotary.resolve(total, total, 0) is not rotary:
            _refuse_positions("rotary", rotary, aligned=True)
        rotary.check(self.q.shape[-1])
        lengths, key_lengths = self.edges.diff(), self.key_edges.diff()
        j = torch.arange(self.k.shape[2], device=self.k.device) - self.key_edges[:-1].repeat_interleave(key_lengths)
        first = key_lengths - lengths - self.edges[:-1]
        i = torch.arange(self.q.shape[2], device=self.q.device) + first.repeat_interleave(lengths)
        return replace(self, q=rotary.rotate(self.q, i), k=rotary.rotate(self.k, j))

    def restore(self, rows: Float[Tensor, "1 heads total_queries *width"]) -> Tensor:
        """Make what was computed for each query jagged again."""
        if not self.headed:
            return torch.nested.nested_tensor_from_jagged(rows[0, 0], self.edges)
        return torch.nested.nested_tensor_from_jagged(rows[0].transpose(0, 1), self.edges).transpose(1, 2)


def _refuse_positions(name: str, what: object, aligned: bool) -> None:
    reason = "depends on more than i − j" if aligned else "needs queries and keys of the same lengths"
    raise InputError(
        f"`{name}` for jagged tensors counts positions over all sequences, and {type(what).__name__} {reason}: pad "
        "with .to_padded_tensor(0.0) and mask with masks.Padding instead"
    )


def _inside(nested: Tensor) -> Any:
    """A nested tensor with its own methods, which PyTorch's type stubs do not know."""
    return nested


def _ragged(nested: Tensor) -> int:
    ragged: int = getattr(nested, "_ragged_idx", 1)
    return ragged
