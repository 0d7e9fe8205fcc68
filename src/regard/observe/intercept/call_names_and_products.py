"""One call of a torch function: its name, its tensors, and the matrix product that it computes, as labels of an einsum.

A product may be called by any name; its labels tell the factors and the dimensions that are summed.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.observe.intercept.operation_kinds import ADDED, CHAINS, PRODUCTS, ROWWISE
from regard.torch_private import OpOverload, OpOverloadPacket

__all__ = [
    "OPERATORS",
    "Layout",
    "Product",
    "TorchCall",
    "einsum_labels",
    "is_inexact",
    "name_of",
    "pair_labels",
    "read_lookup",
    "read_product",
    "tensors_in",
]


# torch.ops.<library>.<operator>: the form in exported programs, and of flash-attn's registered kernels.
OPERATORS = OpOverload, OpOverloadPacket


@dataclass(frozen=True, eq=False)
class TorchCall:
    """One call of a torch function."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments, including those in lists, without nested tensors."""
        return [one for one in self.tensors_and_nested if not one.is_nested]

    @property
    def tensors_and_nested(self) -> list[Tensor]:
        """The same and nested tensors."""
        return list(tensors_in((self.args, tuple(self.kwargs.values())), nested=True))

    def dim(self, at: int = 1, name: str = "dim") -> Any:
        """Return the argument `dim`, whether positional or keyword."""
        return self.kwargs.get(name, self.args[at] if len(self.args) > at else None)


def name_of(func: Callable[..., Any]) -> str:
    """Return the name of a torch function; PyTorch's operators have the name of the function that they compute.

    >>> name_of(torch.bmm), name_of(torch.ops.aten.bmm), name_of(torch.ops.aten.bmm.default)
    ('bmm', 'bmm', 'bmm')
    """
    if isinstance(func, OpOverload):
        func = func.overloadpacket
    if isinstance(func, OpOverloadPacket):
        return str(func._qualified_op_name).removeprefix("aten::")
    return getattr(func, "__name__", "")


def tensors_in(values: tuple[Any, ...], *, nested: bool = False) -> Iterator[Tensor]:
    """Yield the tensors in tuples and lists; nested tensors, which have no shape, only on request."""
    for value in values:
        if isinstance(value, Tensor) and (nested or not value.is_nested):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(tuple(value), nested=nested)


def is_inexact(one: Tensor) -> bool:
    """Return whether a tensor holds floating-point or complex numbers, as activations do."""
    return one.is_floating_point() or one.is_complex()


def read_lookup(call: TorchCall, result: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the numbers and the table of a call that looks up rows; those of one-hot vectors have a table without
    columns.

    >>> table, ids = torch.empty(9, 2), torch.tensor([[3, 1]])
    >>> read_lookup(TorchCall(torch.Tensor.__getitem__, "__getitem__", (table, ids), {}), table[ids])[0].tolist()
    [[3, 1]]
    """
    if call.name == "__getitem__":
        index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
        tensors = [call.args[0], *index[:1]] if all(type(one) is slice for one in index[1:]) else []
    else:
        tensors = call.tensors[:2]
    numbers = [one for one in tensors if isinstance(one, Tensor) and one.dtype in (torch.int64, torch.int32)]
    tables = [one for one in tensors if isinstance(one, Tensor) and one.is_floating_point() and one.ndim == 2]
    tables += [result.new_empty(result.shape[-1], 0)] if call.name == "one_hot" else []
    return (numbers[0], tables[0]) if len(numbers) == len(tables) == 1 else None


def einsum_labels(equation: str, *operands: Tensor) -> tuple[str, ...] | None:
    """Return labels of the operands and of the result, with "..." replaced by capitals that the equation does
    not use.
    """
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    sides = inputs.split(",")
    if len(sides) != len(operands):
        return None
    spare = [one for one in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if one not in equation]
    wide = max(one.ndim - len(side.replace("...", "")) for one, side in zip(operands, sides, strict=True))
    rest = "".join(spare[:wide])
    spelled = []
    for one, side in zip(operands, sides, strict=True):
        missing = one.ndim - len(side.replace("...", ""))
        spelled.append(side.replace("...", rest[len(rest) - missing :]))
    if not arrow:
        both = "".join(spelled)
        out = "".join(sorted(one for one in set(both) if both.count(one) == 1 and one not in rest))
        out = ("..." if "..." in inputs else "") + out
    return (*spelled, out.replace("...", rest))


Layout = str  # one letter for each dimension, see `layouts`

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_REPEATED = "0123456789abcdefghijklmnop"
_NAMED = (
    *("input", "self", "other", "mat1", "mat2", "batch1", "batch2", "tensor2", "mat", "vec", "weight"),
    *("operands", "tensors", "x1", "x2", "x", "y", "a", "b"),
)


@dataclass(frozen=True, eq=False)
class Product:
    """The factors of a product, and the labels of their dimensions, with those of the result last.

    Without labels it is a matmul of two factors with at least two dimensions each.
    """

    factors: tuple[Tensor, ...]
    labels: tuple[str, ...] | None

    def pair(self, one: int, other: int) -> "Product":
        """Return the product of two of several factors."""
        labels = None if self.labels is None else (self.labels[one], self.labels[other], self.labels[-1])
        return Product((self.factors[one], self.factors[other]), labels)

    def summed(self, one: Tensor) -> list[int]:
        """Return the dimensions of a factor over which the product sums, by labels."""
        if self.labels is None:
            return []
        shared = "".join(self.labels[:-1])
        return [
            at
            for at, label in enumerate(self._own(one))
            if label not in self.labels[-1] and (one.shape[at] > 1 or shared.count(label) > 1)
        ]

    def relabelled(self, layout: Layout, one: Tensor) -> Layout | None:
        """Return the layout of the result, by labels."""
        own = self._own(one)
        if self.labels is None or len(own) != len(layout):
            return None
        letters = dict(zip(own, layout, strict=True))
        return "".join(letters.get(label, "b") for label in self.labels[-1])

    def _own(self, one: Tensor) -> str:
        at = next((at for at, factor in enumerate(self.factors) if factor is one), None)
        return "" if self.labels is None or at is None else self.labels[at]


def read_product(call: TorchCall) -> Product | None:
    """Return the product that a call computes, including linear layers; None for any other function."""
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
    left, right = factors = factors[:2]  # followed by a bias
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
    """Return labels of two tensors that are broadcast against each other; dimensions that only one of them has get
    their own label.

    `new` are the dimensions of each, counted from the end (-1, -2, …), that are known to be inserted. They distinguish
    positions from broadcast dimensions if there is one query and one key, or if entries are repeated.

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
    # If both have size one, neither has its positions there.
    own = "".join(letter for at, letter in enumerate(out) if at in mine)
    other = "".join(letter for at, letter in enumerate(out) if at in others)
    return own, other, out


def _wide(one: Tensor, ndim: int, new: Collection[int] = (), others: Collection[int] = ()) -> set[int]:
    """Return the dimensions in which a tensor has several distinct entries; `expand` repeats one.

    A dimension of size one counts as its own if the other tensor's dimension was inserted and its own was not.
    """
    strides = one.stride() if one.layout is torch.strided else (1,) * one.ndim
    own = [
        at
        for at, size in enumerate(one.shape, -one.ndim)
        if at not in new and ((size > 1 and strides[at]) or (size == 1 and at in others))
    ]
    return {ndim + at for at in own}


def _rowwise(left: Tensor, right: Tensor, dim: Any, default: int) -> Product | None:
    """Return the product of vectors for each pair of broadcast entries."""
    labels = pair_labels(left, right)
    dim = default if dim is None else dim
    if labels is None or not isinstance(dim, int):
        return None
    own, other, out = labels
    full = (_filled(one, mine, out) for one, mine in ((left, own), (right, other)))
    return Product((left, right), (*full, out.replace(out[dim], "")))


def _filled(one: Tensor, own: str, out: str) -> str:
    """Return labels of all dimensions; repeated dimensions get a unique label."""
    first = len(out) - one.ndim
    return "".join(label if label in own else _REPEATED[at] for at, label in enumerate(out))[first:]


def _with_last(left: Tensor, right: Tensor) -> tuple[str, str, str]:
    """Return labels that sum the last dimensions of both and keep all others."""
    own, other = _LETTERS[1 : left.ndim], _LETTERS[left.ndim : left.ndim + right.ndim - 1]
    return own + "A", other + "A", own + other


def _matmul(left: Tensor, right: Tensor) -> tuple[str, str, str]:
    """Return the labels of a matmul with a vector."""
    own, other = _LETTERS[1 : left.ndim], _LETTERS[left.ndim : left.ndim + right.ndim - 1]
    inner = other[:-1] + "A" + other[-1:] if right.ndim > 1 else "A"
    return own + "A", inner, own + other


def _chain(factors: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the labels of a chain of matrices, of which the first and the last may be vectors."""
    labels = [_LETTERS[at : at + 2] for at in range(len(factors))]
    if factors[0].ndim == 1:
        labels[0] = labels[0][1:]
    if factors[-1].ndim == 1:
        labels[-1] = labels[-1][:1]
    ends = (_LETTERS[0] if factors[0].ndim > 1 else "") + (labels[-1][-1] if factors[-1].ndim > 1 else "")
    return (*labels, ends)


def _tensordot(left: Tensor, right: Tensor, dims: Any) -> tuple[str, str, str] | None:
    """Return labels that sum the given dimensions; a number means the last of one and the first of the other."""
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
