"""Determine whether the result of a call still contains scores or weights, and the meaning of its dimensions.

Every torch function is followed, not a list of known ones. A function that preserves the dimensions of queries and
keys preserves the layout, whatever it computes (an activation, a norm, a linear layer or a convolution over heads). A
sum over queries or keys ends it, since the result has features. A rearrangement leaves a tensor with an unknown
layout.
"""

from typing import Any

from torch import Tensor

from regard.capture.intercept.call_names import TorchCall
from regard.capture.intercept.layout import Layout, permuted, reshaped
from regard.capture.intercept.matrix_products import read_product
from regard.capture.intercept.operation_kinds import (
    JOINS,
    LINEAR,
    PARTS,
    PERMUTES,
    PRODUCTS,
    REARRANGES,
    REDUCES,
    SHAPES,
)

__all__ = ["dims_of", "follows", "moved"]

_DIMENSIONS = {"stack", "unsqueeze", "squeeze", "unbind", "select"}


def follows(layout: Layout | None, call: TorchCall, one: Tensor, result: Tensor) -> bool:
    """Return whether the result still contains the pairs of queries and keys in `one`."""
    if not result.is_floating_point():
        return False
    if call.name in LINEAR or call.name in PRODUCTS:
        axis = _contracted(call, one)
        # A layer over queries or keys computes features, as every classifier does.
        return layout is not None and axis is not None and layout[axis] == "b"
    if call.name in REDUCES and len(call.tensors) == 1:
        dims = dims_of(call.dim(), one)
        return layout is not None and bool(dims) and all(layout[at] == "b" for at in dims)
    return True


def moved(layout: Layout, call: TorchCall, one: Tensor, result: Tensor) -> Layout | None:
    """Return the layout of a result that follows, or None if it is unknown."""
    name, first = call.name, bool(call.args) and call.args[0] is one
    if name in PERMUTES and first:
        return permuted(layout, call.func, call.args, call.kwargs)
    if name in REARRANGES:
        return None
    if (product := read_product(call)) is not None and product.labels is not None:
        return product.relabelled(layout, one)
    if name in JOINS and name != "stack":
        return layout if result.ndim == one.ndim else None  # a sink's column next to the keys
    if name in ("__getitem__", "slice") and result.ndim == one.ndim:
        return layout  # a slice: rows, or a sink's column cut off
    if name in _DIMENSIONS or (name in REDUCES and result.ndim < one.ndim):
        return _more_or_fewer(layout, call, one, result)
    if name in SHAPES or name == "__setitem__":
        return reshaped(layout, one, result)
    return _as_wide(layout, one, result, parts=name in PARTS)


def _more_or_fewer(layout: Layout, call: TorchCall, one: Tensor, result: Tensor) -> Layout | None:
    """Return the layout after dimensions were inserted or removed by index."""
    name, at = call.name, call.dim()
    if name in ("stack", "unsqueeze"):
        at = (at or 0) % result.ndim
        return f"{layout[:at]}b{layout[at:]}"
    if name in ("unbind", "select"):
        at = (at or 0) % one.ndim
        return layout[:at] + layout[at + 1 :] if layout[at] == "b" else None
    gone = dims_of(at, one)
    if name == "squeeze":  # without indices, all dimensions of size one
        gone = [dim for dim in (range(one.ndim) if at is None else gone) if one.shape[dim] == 1]
    return "".join(letter for at, letter in enumerate(layout) if at not in gone)


def _as_wide(layout: Layout, one: Tensor, result: Tensor, *, parts: bool) -> Layout | None:
    """Return the layout after elementwise functions and those that mix other dimensions: queries and keys have the
    same sizes or were broadcast.
    """
    more = result.ndim - one.ndim
    if more < 0 or (parts and more):
        return None
    pairs = [at for at, letter in enumerate(layout) if letter != "b"]
    same = all(result.shape[at + more] == one.shape[at] or (one.shape[at] == 1 and not parts) for at in pairs)
    return "b" * more + layout if same else None


def _contracted(call: TorchCall, one: Tensor) -> int | None:
    """Return the dimension of scores or weights over which a layer sums, or None if they are not its input."""
    product = read_product(call)
    if product is not None and product.labels is not None:
        gone = product.summed(one)
        return gone[0] if len(gone) == 1 else None
    first = call.args[0] if call.args else call.kwargs.get("input")
    if first is not one or call.name == "embedding":
        return None
    return int(one.ndim) - 1 - (int(call.name[-2]) if "conv" in call.name else 0)


def dims_of(dim: Any, one: Tensor) -> list[int]:
    """Return dimensions as non-negative numbers; an empty list if they are not given."""
    if dim is None:
        return []
    return [at % one.ndim for at in (dim if isinstance(dim, list | tuple) else [dim]) if isinstance(at, int)]
