"""Attention written out by hand: a softmax over products of queries and keys whose result multiplies values.

What is followed, from call to call of torch functions:

    scores   the product of two activations, and what elementwise steps and reshapes make of it
    weights  a softmax over scores, and what a dropout, a cast or a reshape make of it
    seen     the product that sums weights over the softmax's own dimension

A language model's output softmax and a router's come from a product with a parameter; a pooling's too; and the first
is multiplied with nothing. So none of them is taken for attention.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.intercept.calls import refuse_transforms
from regard.observe.intercept.layout import Layout, einsum_labels, permuted, product_layout, reshaped, summed
from regard.observe.second_pass import HIDDEN, Given
from regard.observe.site import Seen

__all__ = ["Eager"]

_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "addmm", "addbmm", "einsum"}
_OPERANDS = ("input", "self", "other", "mat1", "mat2", "batch1", "batch2", "tensor2", "operands")
_PERMUTES = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint", "__get__"}
_SHAPES = _PERMUTES | {
    *("view", "reshape", "contiguous", "unsqueeze", "squeeze", "flatten", "unflatten", "expand", "expand_as"),
    *("view_as", "reshape_as", "clone", "detach", "__getitem__", "narrow", "to", "type", "type_as", "float", "half"),
    *("bfloat16", "double"),
}
_CASTS = {"to", "type", "type_as", "float", "half", "bfloat16", "double", "clone", "detach"}
_ELEMENTWISE = {
    *("mul", "multiply", "div", "divide", "true_divide", "add", "sub", "subtract", "neg", "tanh", "clamp", "clip"),
    *("clamp_min", "clamp_max", "nan_to_num", "masked_fill", "where", "cat", "concat", "maximum", "minimum", "max"),
    *("min", "masked_scatter", "tril", "triu", "repeat", "normalize", "__setitem__", "pad", "as_strided", "roll"),
    *("__mul__", "__rmul__", "__truediv__", "__add__", "__radd__", "__sub__", "__rsub__", "__neg__", "index_fill"),
    *("__iadd__", "__imul__", "__isub__", "__itruediv__", "mul_", "div_", "add_", "sub_", "tanh_", "clamp_"),
    *("rsub", "masked_fill_", "clamp_min_", "tril_", "index_fill_", "copy_", "repeat_interleave"),
}
_REARRANGES = {"repeat", "pad", "as_strided", "roll", "repeat_interleave"}
_DROPOUTS = {"dropout", "dropout_", "alpha_dropout", "feature_dropout"}
# What changes weights after the softmax: they are seen as they are used, so the changed tensor takes their place.
_REWEIGHTS = {"masked_fill", "masked_fill_", "nan_to_num", "nan_to_num_", "where", "mul", "__mul__", "__rmul__", "mul_"}
_REWEIGHTS |= {"div", "__truediv__", "div_", "__imul__", "__itruediv__"}
# Of these the result may be negative, which no weights are.
_MIXES = {"add", "__add__", "__radd__", "add_", "__iadd__", "sub", "subtract", "__sub__", "__rsub__", "rsub", "sub_"}
_MIXES |= {"__isub__", "neg", "__neg__"}
_PARTS = {"chunk", "split", "unbind", "tensor_split", "stack", "cat", "concat"}
_SOFTMAXES = {"softmax", "special_softmax", "_safe_softmax"}


@dataclass(eq=False)
class _Softmax:
    """One softmax over scores: where it ran, and whether its weights were seen on values."""

    place: str
    known: bool  # whether its scores were still queries × keys
    used: bool = False


@dataclass(eq=False)
class _Weights:
    """Weights on their way to the values.

    `source` is what they were before dropout and casts, in the same layout; None for the tensor itself, which must not
    keep itself alive.
    """

    source: Tensor | None
    softmaxes: tuple[_Softmax, ...]  # of several, weights were added to or taken from one another
    layout: Layout | None  # of which "k" is the dimension that the softmax ran over
    mixed: bool = False  # something was added or taken away


class Eager:
    """Follows scores and weights through the calls of a forward pass."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = {_storage(one) for one in parameters}
        self._learned = WeakIdKeyDictionary()  # reshaped and cast parameters
        self._scores = WeakIdKeyDictionary()  # their layouts
        self._weights = WeakIdKeyDictionary()
        self._merged = WeakIdKeyDictionary()  # (batch, heads) of tensors of which the first dimension is both
        self._softmaxes: list[_Softmax] = []

    def after(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        place: Callable[[], str | None],
    ) -> Seen | None:
        """Take note of one call that has returned; give what was seen if it was the last step of an attention."""
        name = getattr(func, "__name__", "")
        if name == "__setitem__":
            result = args[0]
        if name in _PARTS:
            self._lose(args)
        if not isinstance(result, Tensor) or result.is_nested:
            return None
        if name in _PRODUCTS:
            return self._product(name, args, kwargs, result)
        if name in _SOFTMAXES:
            self._softmax(args, kwargs, result, place)
        elif name in _SHAPES or name in _DROPOUTS or name in _ELEMENTWISE:
            self._pass_on(func, args, kwargs, result)
        return None

    def _lose(self, args: tuple[Any, ...]) -> None:
        """Weights that are taken apart or put together are not followed further."""
        for softmax in (one for x in _tensors(args) if x in self._weights for one in self._weights[x].softmaxes):
            softmax.known = False

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Save weights that a dropout is about to overwrite."""
        inplace = name == "dropout_" or kwargs.get("inplace") or (name == "dropout" and len(args) > 3 and args[3])
        if name in _DROPOUTS and inplace and args and (weights := self._weights.get(args[0])) is not None:
            weights.source = args[0].detach().clone() if weights.source is None else weights.source

    def unread(self, *, rearranged: bool) -> list[str]:
        """Where a softmax over products ran whose weights never met values as queries × keys."""
        found = {one.place for one in self._softmaxes if not one.used and (not one.known or not rearranged)}
        return sorted(found)

    def _softmax(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, find_place: Callable[[], str | None]
    ) -> None:
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(scores, Tensor) or scores not in self._scores or result.ndim < 2:
            return
        if not result.numel():
            return  # no queries or no keys: nothing to see
        if (place := find_place()) is None:
            return  # of another model
        refuse_transforms(place)
        dim, layout = kwargs.get("dim", args[1] if len(args) > 1 else None), self._scores[scores]
        softmax = _Softmax(place, isinstance(dim, int) and layout is not None and layout[dim] in "qk")
        self._softmaxes.append(softmax)
        if not softmax.known or dim is None:
            self._weights[result] = _Weights(None, (softmax,), None)
            return
        if layout[dim] == "q":
            layout = layout.translate(str.maketrans("qk", "kq"))
        # Where all is hidden the model spreads its weight evenly, or has NaN; nothing is seen there.
        blind = scores.detach().amax(dim, keepdim=True) <= HIDDEN
        source = result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None
        self._weights[result] = _Weights(source, (softmax,), layout)
        self._keep_merge([scores], result)

    def _pass_on(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """What is made of scores is scores; what is made of weights is weights."""
        name = func.__name__
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        if tensors and name not in _DROPOUTS and name != "__setitem__" and all(map(self._is_learned, tensors)):
            self._learned[result] = True
            return
        self._keep_merge(tensors, result)
        for one in tensors:
            weights = self._weights.get(one)
            if weights is not None:
                self._pass_weights(func, (args, kwargs), weights, one, result)
                return
        for one in tensors:
            if one in self._scores and name not in _DROPOUTS:
                layout = self._scores[one]
                self._scores[result] = layout and self._moved(layout, func, (args, kwargs), one, result)
                return

    def _pass_weights(
        self, func: Callable[..., Any], given: Any, weights: _Weights, one: Tensor, result: Tensor
    ) -> None:
        name, (args, kwargs) = func.__name__, given
        if name in _REWEIGHTS or name in _MIXES:
            self._weights[result] = self._reweighted(name, args, weights, one, result)
        elif result is one:
            return
        elif name in _DROPOUTS or name in _CASTS:
            kept = one.detach() if weights.source is None else weights.source
            self._weights[result] = replace(weights, source=kept)
        elif name in _SHAPES:
            layout = weights.layout and self._moved(weights.layout, func, given, one, result)
            source = weights.source
            if source is not None and args and args[0] is one:
                with torch._C.DisableTorchFunction():
                    # A view may need the strides that `contiguous` gave to the tensor in use.
                    source = source.reshape(result.shape) if name == "view" else func(source, *args[1:], **kwargs)
            self._weights[result] = replace(weights, source=source, layout=layout)

    def _reweighted(self, name: str, args: tuple[Any, ...], weights: _Weights, one: Tensor, result: Tensor) -> _Weights:
        """Weights after the softmax are seen as they are used; other weights may have a part in them."""
        parts = [weights, *(found for x in _tensors(args) if (found := self._weights.get(x)) is not None)]
        same = result.shape == one.shape and all(part.layout == weights.layout for part in parts)
        layout = weights.layout if same else None
        softmaxes = tuple(dict.fromkeys(softmax for part in parts for softmax in part.softmaxes))
        mixed = name in _MIXES or any(part.mixed for part in parts)
        return _Weights(_still_blind(weights, layout, result), softmaxes, layout, mixed)

    def _moved(
        self, layout: Layout, func: Callable[..., Any], given: Any, one: Tensor, result: Tensor
    ) -> Layout | None:
        """The layout after one call."""
        name, (args, kwargs) = func.__name__, given
        if name in _PERMUTES and args and args[0] is one:
            return permuted(layout, func, args, kwargs)
        if name in _REARRANGES:
            return None
        if name in _SHAPES or name == "__setitem__":
            same = result.ndim == one.ndim and name == "__getitem__"  # a slice: rows, or a sink's column cut off
            return layout if same else reshaped(layout, one, result)
        return "b" * (result.ndim - len(layout)) + layout if result.ndim >= len(layout) else None

    def _product(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Seen | None:
        equation = (args[0] if args else kwargs.get("equation")) if name == "einsum" else None
        named = tuple(kwargs[key] for key in _OPERANDS if key in kwargs)
        operands = list(_tensors((*args, *named)))[1 if name in ("baddbmm", "addmm", "addbmm") else 0 :]
        if len(operands) != 2 or (name == "einsum" and not isinstance(equation, str)):
            return None
        if name == "__rmatmul__":
            operands.reverse()
        labels = None if equation is None else einsum_labels(equation, operands[0], operands[1])
        if equation is not None and labels is None:
            return None
        for at, one in enumerate(operands):
            weights, other = self._weights.get(one), operands[1 - at]
            if weights is None or weights.layout is None or all(softmax.used for softmax in weights.softmaxes):
                continue
            axis = summed(weights.layout, at, other, labels)
            if axis is not None:
                negative = weights.mixed and bool(((one if weights.source is None else weights.source) < 0).any())
                for softmax in weights.softmaxes:
                    softmax.used, softmax.known = softmax.used or not negative, not negative
                if negative:
                    return None
                plain = at == 0 and labels is None and result.ndim == 4 and weights.layout == "bbqk"
                return replace(self._seen(weights, one, other, axis), output=result if plain else None)
        if not any(one in self._weights or self._is_learned(one) for one in operands):
            self._scores[result] = product_layout(result, labels)
            self._keep_merge(operands, result)
        return None

    def _seen(self, weights: _Weights, used: Tensor, values: Tensor, axis: int) -> Seen:
        """The weights as queries × keys in four dimensions."""
        layout = weights.layout or ""
        matrix = used.detach() if weights.source is None else weights.source
        order = [at for at, letter in enumerate(layout) if letter == "b"] + [layout.index("q"), layout.index("k")]
        merged = self._merged.get(used) if matrix.ndim == 3 else None
        values = values.detach().movedim(axis, -2)
        shared = (values.ndim == matrix.ndim == 5 and values.shape[2] == 1) or values.ndim + 1 == matrix.ndim == 5
        four = _four(matrix.permute(order), merged, shared_values=shared)
        marks = values.reshape(*(merged or ()), -1, *values.shape[-2:]) if merged and values.ndim == 3 else values
        marks = marks[(None,) * (4 - marks.ndim)] if marks.ndim < 3 else marks
        marks = marks.reshape(marks.shape[0], -1, *marks.shape[-2:])
        return Seen(Given(four), marks, values=marks)

    def _is_learned(self, one: Tensor) -> bool:
        return one in self._learned or _storage(one) in self._parameters

    def _keep_merge(self, tensors: list[Tensor], result: Tensor) -> None:
        """Remember which (batch, heads) became one dimension, as bmm needs it."""
        if result.ndim != 3:
            return
        for one in tensors:
            whole = tuple(one.shape)
            if one.ndim == 4 and tuple(result.shape) == (whole[0] * whole[1], *whole[2:]):
                self._merged[result] = whole[:2]
            elif one in self._merged and one.shape[0] == result.shape[0]:
                self._merged[result] = self._merged[one]


def _still_blind(weights: _Weights, layout: Layout | None, result: Tensor) -> Tensor | None:
    """What stands for reweighted weights: nothing but themselves, unless queries that see nothing were taken out."""
    if weights.source is None or layout is None:
        return None
    blind = (weights.source == 0).all(layout.index("k"), keepdim=True)
    return result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None


def _four(matrix: Tensor, merged: tuple[int, int] | None, *, shared_values: bool) -> Tensor:
    """(n, m) is one sequence and head, (batch, n, m) one head a sequence; more leading dimensions are batch.

    Five dimensions of which the third shares its values are (batch, kv_heads, group, n, m).
    """
    pairs = matrix.shape[-2:]
    if matrix.ndim == 2:
        return matrix[None, None]
    if matrix.ndim == 3:
        return matrix.reshape(*merged, *pairs) if merged else matrix[:, None]
    if shared_values:
        return matrix.reshape(matrix.shape[0], -1, *pairs)
    return matrix.reshape(-1, *matrix.shape[-3:])


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
