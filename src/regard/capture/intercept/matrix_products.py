"""Products by whatever name they are called, as an einsum's labels: which factors, and which dimensions are summed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.capture.intercept.call_names import TorchCall, tensors_in
from regard.capture.intercept.layout import Layout, einsum_labels
from regard.capture.intercept.operation_kinds import ADDED, CHAINS, PRODUCTS, ROWWISE

__all__ = ["Product", "pair_labels", "read_product"]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_REPEATED = "0123456789abcdefghijklmnop"
_NAMED = (
    *("input", "self", "other", "mat1", "mat2", "batch1", "batch2", "tensor2", "mat", "vec", "weight"),
    *("operands", "tensors", "x1", "x2", "x", "y", "a", "b"),
)


@dataclass(frozen=True, eq=False)
class Product:
    """The factors of a product, and the labels of their dimensions, those of the result at the end.

    Without labels it is a matmul of two factors, each of which has two dimensions at least.
    """

    factors: tuple[Tensor, ...]
    labels: tuple[str, ...] | None

    def pair(self, one: int, other: int) -> "Product":
        """Two of several factors."""
        labels = None if self.labels is None else (self.labels[one], self.labels[other], self.labels[-1])
        return Product((self.factors[one], self.factors[other]), labels)

    def summed(self, one: Tensor) -> list[int]:
        """The dimensions of a factor over which the product sums, by labels."""
        if self.labels is None:
            return []
        shared = "".join(self.labels[:-1])
        return [
            at
            for at, label in enumerate(self._own(one))
            if label not in self.labels[-1] and (one.shape[at] > 1 or shared.count(label) > 1)
        ]

    def relabelled(self, layout: Layout, one: Tensor) -> Layout | None:
        """The layout of the result, by labels."""
        own = self._own(one)
        if self.labels is None or len(own) != len(layout):
            return None
        letters = dict(zip(own, layout, strict=True))
        return "".join(letters.get(label, "b") for label in self.labels[-1])

    def _own(self, one: Tensor) -> str:
        at = next((at for at, factor in enumerate(self.factors) if factor is one), None)
        return "" if self.labels is None or at is None else self.labels[at]


def read_product(call: TorchCall) -> Product | None:
    """The product that a call computes, a linear layer's too; None for any other function."""
    name = call.name
    if name not in PRODUCTS and name != "linear":
        return None
    factors = tuple(tensors_in((*call.args, *(call.kwargs[key] for key in _NAMED if key in call.kwargs))))
    if name in ADDED:
        factors = factors[1:]
    if name == "__rmatmul__":
        factors = factors[::-1]
    if name == "einsum":
        equation = call.args[0] if call.args else call.kwargs.get("equation")
        labels = einsum_labels(equation, *factors) if isinstance(equation, str) else None
        return None if labels is None else Product(factors, labels)
    if name in CHAINS:
        return Product(factors, _chain(factors)) if len(factors) > 1 else None
    if len(factors) < 2 or not all(one.ndim for one in factors):
        return None
    left, right = factors = factors[:2]  # behind them a bias
    if name == "linear" or name == "inner":
        return Product(factors, _with_last(left, right))
    if name == "tensordot":
        return Product(factors, _tensordot(left, right, call.dim(2, "dims")))
    if name in ROWWISE:
        return _rowwise(left, right, call.dim(2), 1 if name == "cosine_similarity" else -1)
    return Product(factors, _matmul(left, right) if left.ndim == 1 or right.ndim == 1 else None)


def pair_labels(
    left: Tensor, right: Tensor, new: tuple[Collection[int], Collection[int]] = ((), ())
) -> tuple[str, str, str] | None:
    """Labels of two tensors that are broadcast against each other; each has those of its dimensions that are its own.

    `new` are the dimensions of each, from the end (-1, -2, …), known to have been put in: they tell positions from
    what they are broadcast over where there is one query and one key, or where entries are repeated.

    >>> import torch
    >>> pair_labels(torch.empty(2, 5, 1, 4), torch.empty(2, 1, 7, 4))
    ('ABD', 'ACD', 'ABCD')
    >>> pair_labels(torch.empty(2, 1, 1, 4), torch.empty(2, 1, 1, 4), ({-2}, {-3}))
    ('ABD', 'ACD', 'ABCD')
    """
    ndim = max(left.ndim, right.ndim)
    if ndim > len(_LETTERS):
        return None
    out = _LETTERS[:ndim]
    mine, others = _wide(left, ndim, *new), _wide(right, ndim, *new[::-1])
    # Where both have one entry only, neither sees its positions there.
    own = "".join(letter for at, letter in enumerate(out) if at in mine)
    other = "".join(letter for at, letter in enumerate(out) if at in others)
    return own, other, out


def _wide(one: Tensor, ndim: int, new: Collection[int] = (), others: Collection[int] = ()) -> set[int]:
    """The dimensions of which a tensor has several entries of its own: `expand` repeats one.

    A single entry is its own where the other tensor's dimension was put in, and its own was not.
    """
    strides = one.stride() if one.layout is torch.strided else (1,) * one.ndim
    own = [
        at
        for at, size in enumerate(one.shape, -one.ndim)
        if at not in new and ((size > 1 and strides[at]) or (size == 1 and at in others))
    ]
    return {ndim + at for at in own}


def _rowwise(left: Tensor, right: Tensor, dim: Any, default: int) -> Product | None:
    """One product of vectors for each pair of what is broadcast."""
    labels = pair_labels(left, right)
    dim = default if dim is None else dim
    if labels is None or not isinstance(dim, int):
        return None
    own, other, out = labels
    full = (_filled(one, mine, out) for one, mine in ((left, own), (right, other)))
    return Product((left, right), (*full, out.replace(out[dim], "")))


def _filled(one: Tensor, own: str, out: str) -> str:
    """Labels of all dimensions: where a tensor is repeated, one that nothing else has."""
    first = len(out) - one.ndim
    return "".join(label if label in own else _REPEATED[at] for at, label in enumerate(out))[first:]


def _with_last(left: Tensor, right: Tensor) -> tuple[str, str, str]:
    """The last dimensions of both are summed, all others are the result's."""
    own, other = _LETTERS[1 : left.ndim], _LETTERS[left.ndim : left.ndim + right.ndim - 1]
    return own + "A", other + "A", own + other


def _matmul(left: Tensor, right: Tensor) -> tuple[str, str, str]:
    """A matmul with a vector."""
    own, other = _LETTERS[1 : left.ndim], _LETTERS[left.ndim : left.ndim + right.ndim - 1]
    inner = other[:-1] + "A" + other[-1:] if right.ndim > 1 else "A"
    return own + "A", inner, own + other


def _chain(factors: Sequence[Tensor]) -> tuple[str, ...]:
    """Matrices one after the other; the first and the last may be vectors."""
    labels = [_LETTERS[at : at + 2] for at in range(len(factors))]
    if factors[0].ndim == 1:
        labels[0] = labels[0][1:]
    if factors[-1].ndim == 1:
        labels[-1] = labels[-1][:1]
    ends = (_LETTERS[0] if factors[0].ndim > 1 else "") + (labels[-1][-1] if factors[-1].ndim > 1 else "")
    return (*labels, ends)


def _tensordot(left: Tensor, right: Tensor, dims: Any) -> tuple[str, str, str] | None:
    """The dimensions that are named are summed; a number counts the last of one and the first of the other."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    dims = 2 if dims is None else dims
    if isinstance(dims, int):
        dims = list(range(left.ndim - dims, left.ndim)), list(range(dims))
    pairs = [(dims[0], dims[1])] if isinstance(dims[0], int) else list(zip(*dims, strict=True))
    if left.ndim + right.ndim > len(_LETTERS):
        return None
    own = list(_LETTERS[: left.ndim])
    other = list(_LETTERS[left.ndim : left.ndim + right.ndim])
    for one, two in pairs:
        other[two] = own[one]
    out = [label for label in own + other if (label in own) != (label in other)]
    return "".join(own), "".join(other), "".join(out)
