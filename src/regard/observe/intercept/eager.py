"""Attention written out by hand: a softmax over products of queries and keys whose result multiplies values.

What is followed, from call to call of torch functions:

    scores   the product of two activations, and what elementwise steps and reshapes make of it
    weights  a softmax over scores, and what a dropout, a cast or a reshape make of it
    seen     the product that sums weights over the softmax's own dimension

A language model's output softmax and a router's come from a product with a parameter; a pooling's too; and the first
is multiplied with nothing. So none of them is taken for attention.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.rows import HIDDEN, Given
from regard.observe.site import Seen

__all__ = ["Eager"]

_PRODUCTS = {"matmul", "__matmul__", "bmm", "mm", "baddbmm", "einsum"}
_SHAPES = {
    *("view", "reshape", "contiguous", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "unflatten"),
    *("expand", "expand_as", "view_as", "reshape_as", "swapaxes", "movedim", "clone", "detach", "t", "T", "mT"),
    *("to", "type", "type_as", "float", "half", "bfloat16", "double", "__get__"),
}
_ELEMENTWISE = {
    *("mul", "div", "true_divide", "add", "sub", "neg", "tanh", "clamp", "clamp_min", "clamp_max", "nan_to_num"),
    *("masked_fill", "where", "cat", "concat", "__getitem__", "maximum", "minimum", "masked_scatter"),
    *("__mul__", "__rmul__", "__truediv__", "__add__", "__radd__", "__sub__", "__rsub__", "__neg__"),
    *("__iadd__", "__imul__", "__isub__", "__itruediv__", "__setitem__"),
    *("mul_", "div_", "add_", "sub_", "tanh_", "clamp_", "masked_fill_"),
}
_DROPOUTS = {"dropout", "dropout_", "alpha_dropout", "feature_dropout"}
# What changes weights after the softmax: they are seen as they are used, so the changed tensor takes their place.
_REWEIGHTS = {"masked_fill", "masked_fill_", "nan_to_num", "where", "mul", "__mul__", "div", "__truediv__", "mul_"}


@dataclass(eq=False)
class _Weights:
    """Weights on their way to the values; `source` is None for a softmax's own result, which must not keep itself."""

    source: Tensor | None
    blind: Tensor | None
    first: bool  # the softmax ran over the second-last dimension: the transposed form, values · weights
    dropped: tuple[int, int] = (0, 0)  # columns cut off at the left and right: a sink
    used: bool = False


class Eager:
    """Follows scores and weights through the calls of a forward pass."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = {_storage(one) for one in parameters}
        self._scores = WeakIdKeyDictionary()
        self._weights = WeakIdKeyDictionary()

    def after(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Seen | None:
        """Take note of one call that has returned; give what was seen if it was the last step of an attention."""
        if not isinstance(result, Tensor):
            return None
        if name == "softmax":
            self._softmax(args, kwargs, result)
        elif name in _PRODUCTS:
            return self._product(name, args, result)
        elif name in _SHAPES or name in _DROPOUTS or name in _ELEMENTWISE:
            self._pass_on(name, args, kwargs, result)
        return None

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Save weights that a dropout is about to overwrite."""
        inplace = name == "dropout_" or kwargs.get("inplace") or (name == "dropout" and len(args) > 3 and args[3])
        if name in _DROPOUTS and inplace and args and (weights := self._weights.get(args[0])) is not None:
            weights.source = args[0].clone() if weights.source is None else weights.source

    def _softmax(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(scores, Tensor) or scores not in self._scores or result.ndim < 2:
            return
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim is None or dim % result.ndim < result.ndim - 2:
            return
        first = dim % result.ndim == result.ndim - 2
        blind = scores.detach().amax(dim) <= HIDDEN
        self._weights[result] = _Weights(None, blind if bool(blind.any()) else None, first)

    def _pass_on(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """What is made of scores is scores; what is made of weights is weights."""
        tensors = list(_tensors(args)) + list(_tensors(tuple(kwargs.values())))
        if name not in _DROPOUTS and any(one in self._scores for one in tensors):
            self._scores[result] = True
        for one in tensors:
            weights = self._weights.get(one)
            if weights is None or result is one:
                continue
            source = one if weights.source is None else weights.source
            if name in _REWEIGHTS:
                self._weights[result] = _Weights(None, weights.blind, weights.first)
            elif name == "__getitem__":
                cut = _cut(args[1], one, result)
                if cut is not None:
                    self._weights[result] = _Weights(source, weights.blind, weights.first, cut)
            elif name in _SHAPES or name in _DROPOUTS:
                self._weights[result] = _Weights(source, weights.blind, weights.first, weights.dropped)

    def _product(self, name: str, args: tuple[Any, ...], result: Tensor) -> Seen | None:
        equation = args[0] if name == "einsum" else None
        operands = list(_tensors(args))[1 if name == "baddbmm" else 0 :]
        if len(operands) != 2 or (name == "einsum" and not isinstance(equation, str)):
            return None
        for at, one in enumerate(operands):
            weights = self._weights.get(one)
            if weights is not None and not weights.used and _sums(weights, one, operands[1 - at], at, equation):
                weights.used = True
                return _seen(weights, one, operands[1 - at])
        if not any(one in self._weights or _storage(one) in self._parameters for one in operands):
            self._scores[result] = True
        return None


def _seen(weights: _Weights, used: Tensor, values: Tensor) -> Seen:
    """The weights as queries × keys in four dimensions, a sink's column cut off."""
    matrix = (used if weights.source is None else weights.source).detach()
    blind = weights.blind
    if weights.first:
        matrix = matrix.transpose(-2, -1)
    left, right = weights.dropped
    matrix = matrix[..., left : matrix.shape[-1] - right]
    four = _four(matrix)
    if blind is not None:
        blind = blind.reshape(four.shape[:3]) if blind.numel() == four[..., 0].numel() else None
    marks = values.detach().transpose(-2, -1) if weights.first else values.detach()
    marks = _four(marks) if marks.ndim >= 2 and marks.shape[-2] == four.shape[-1] else four[:, :, :1].transpose(2, 3)
    return Seen(Given(four, blind), marks)


def _four(matrix: Tensor) -> Tensor:
    """(n, m) is one sequence and head, (batch, n, m) one head a sequence; more leading dimensions are batch."""
    if matrix.ndim == 2:
        return matrix[None, None]
    return matrix[:, None] if matrix.ndim == 3 else matrix.reshape(-1, *matrix.shape[-3:])


def _sums(weights: _Weights, one: Tensor, other: Tensor, at: int, equation: str | None) -> bool:
    """Whether the product sums over the dimension that the softmax ran over, and so weighs values."""
    if equation is not None:
        left, _, out = equation.replace(" ", "").partition("->")
        labels = left.split(",")
        label = labels[at].replace("...", "")[-2 if weights.first else -1]
        return bool(out) and label not in out and label in labels[1 - at]
    if other.ndim < 2:
        return False
    if weights.first:
        return at == 1 and other.shape[-1] == one.shape[-2]
    return at == 0 and other.shape[-2] == one.shape[-1]


def _cut(index: Any, whole: Tensor, part: Tensor) -> tuple[int, int] | None:
    """How many columns an index cuts off at the left and the right; None if it does anything else."""
    last = index[-1] if isinstance(index, tuple) and index else None
    plain = isinstance(index, tuple) and all(one is Ellipsis or one == slice(None) for one in index[:-1])
    if not plain or not isinstance(last, slice) or last.step not in (None, 1) or part.ndim != whole.ndim:
        return None
    start, stop, _ = last.indices(whole.shape[-1])
    return start, whole.shape[-1] - stop


def _tensors(values: tuple[Any, ...]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(tuple(value))


def _storage(tensor: Tensor) -> int:
    """Views of a parameter (its transpose, a slice) share its storage."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse and nested tensors have no storage of their own
        return -1
