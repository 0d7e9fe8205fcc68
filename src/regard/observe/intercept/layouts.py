"""The layout of scores and weights: the role of each dimension, followed through all torch functions.

A layout names each dimension: "q" and "k" are the two that a product of queries and keys spans, "b" is any other
(batch, heads). Before the softmax it is unknown which of the two holds the keys, so the letters only distinguish them.

Every torch function is followed, not a list of known ones: a function that preserves the dimensions of queries and keys
preserves the layout, whatever it computes (an activation, a norm, a linear layer or a convolution over heads). A sum
over queries or keys ends it, because the result is a feature; a function that rearranges these dimensions gives a
tensor that descends from scores with an unknown layout.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.observe.intercept.call_names_and_products import Layout, TorchCall, is_inexact, read_product
from regard.observe.intercept.operation_kinds import (
    JOINS,
    LINEAR,
    PARTS,
    PERMUTES,
    PRODUCTS,
    REARRANGES,
    REDUCES,
    SHAPES,
)
from regard.torch_private import DisableTorchFunction, is_functorch_wrapped_tensor, maybe_current_level

__all__ = [
    "contracted",
    "dims_of",
    "follows",
    "indexed",
    "is_plain_index",
    "is_transformed",
    "moved",
    "permuted",
    "placed",
    "product_layout",
    "reshaped",
    "summed",
]


_MAY_BE_POSITIONS = {"b": 2, "i": 1}


def product_layout(
    result: Tensor, labels: tuple[str, ...] | None, letters: Mapping[str, str] = MappingProxyType({})
) -> Layout | None:
    """Return the layout of a product: a matmul's last two dimensions, or an einsum's labels; None if it is not a
    matrix of pairs.

    With a single query without a dimension of positions, the scores have only one of the two letters. `letters` are
    what labels are known to be: "b" or nothing for what may be positions, "i" for an inserted dimension, any other for
    heads.

    >>> product_layout(torch.empty(2, 4, 5, 5), None)
    'bbqk'
    >>> product_layout(torch.empty(2, 5, 5, 4), ("bihd", "bjhd", "bijh"))
    'bqkb'
    >>> product_layout(torch.empty(2, 7), ("bd", "bnd", "bn"))
    'bk'
    >>> product_layout(torch.empty(2, 5, 4, 5), ("bshc", "btc", "bsht"), {"h": "h"})
    'bqbk'
    """
    if labels is None:
        return "b" * (result.ndim - 2) + "qk" if result.ndim >= 2 else None
    left, right, out = labels
    layout = "".join(
        "q" if one in left and one not in right else "k" if one in right and one not in left else "b" for one in out
    )
    for letter in "qk":  # of several, as with the groups of grouped queries, the last is that of positions
        every = [at for at, one in enumerate(layout) if one == letter]
        kept = max(every, key=lambda at: (_MAY_BE_POSITIONS.get(letters.get(out[at], "b"), 0), at), default=0)
        layout = "".join("b" if at in every and at != kept else one for at, one in enumerate(layout))
    return layout if len(layout) == result.ndim and ("q" in layout or "k" in layout) else None


def permuted(layout: Layout, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout | None:
    """Return the layout after a transpose, by applying the same call to a tensor whose sizes encode its dimensions."""
    probe = torch.empty([1 + at for at in range(len(layout))], dtype=args[0].dtype, device="meta")  # `.imag` needs it
    with DisableTorchFunction():
        moved = func(probe, *args[1:], **kwargs)
    same = isinstance(moved, Tensor) and moved.ndim == len(layout)
    return "".join(layout[size - 1] for size in moved.shape) if same else None


def is_plain_index(index: Any) -> bool:
    """Return whether an index is made of numbers, slices, None and `...`."""
    items = index if isinstance(index, tuple) else (index,)
    return all(one is None or one is Ellipsis or type(one) is slice or type(_number(one)) is int for one in items)


def indexed(layout: Layout, index: Any) -> Layout:
    """Return the layout of `x[index]` for a plain index.

    >>> indexed("bbqk", (slice(None), slice(None), 0)), indexed("bbqk", (..., None, slice(1, None))), indexed("bk", 0)
    ('bbk', 'bbqbk', 'k')
    """
    letters = iter(layout)
    kept = [("b" if one is None else next(letters), one) for one in _per_dimension(index, len(layout))]
    return "".join(letter for letter, one in kept if type(one) is not int)


def placed(layout: Layout, index: Any, ndim: int) -> Layout | None:
    """Return the layout of a tensor with `ndim` dimensions after weights or scores were written at a plain index, or
    None if it is unknown. A number in the index is that of a query if what is written has no dimension of queries.

    >>> placed("bbk", (slice(None), slice(None), 3), 4), placed("bqk", (slice(None), 1), 4), placed("bk", (0, 1), 4)
    ('bbqk', 'bbqk', None)
    """
    items = _per_dimension(index, ndim)
    numbers = sum(type(one) is int for one in items)
    both = "q" in layout and "k" in layout
    if None in items or len(layout) != ndim - numbers or (not both and numbers > 1):
        return None
    letters, new = iter(layout), "b" if both else "q" if "k" in layout else "k"
    return "".join(new if type(one) is int else next(letters) for one in items)


def _per_dimension(index: Any, ndim: int) -> list[Any]:
    """Return a number or slice for each of `ndim` dimensions, and None for each new one."""
    items = [_number(one) for one in (index if isinstance(index, tuple) else (index,))]
    if Ellipsis not in items:
        items.append(Ellipsis)
    at = items.index(Ellipsis)
    rest = ndim - sum(one is not None and one is not Ellipsis for one in items)
    return [*items[:at], *[slice(None)] * rest, *items[at + 1 :]]


def _number(one: Any) -> Any:
    """Return a number of NumPy or a tensor as an int, and all else as it is; one under vmap cannot be read."""
    if isinstance(one, Tensor) and not is_functorch_wrapped_tensor(one):
        return int(one) if one.ndim == 0 and not one.is_floating_point() and one.dtype != torch.bool else one
    return int(one) if isinstance(one, np.integer) else one


def reshaped(layout: Layout, before: Tensor, after: Tensor) -> Layout | None:
    """Return the layout after a view or an index, as long as the last two dimensions, or the last one in rows of keys,
    are preserved.
    """
    if before.shape == after.shape:
        return layout
    if (at := layout.lower().find("p")) >= 0:  # of all pairs, as `eager_scores` has it
        rest = layout[at + 1 :] if before.shape[at + 1 :].numel() > 1 else ""  # one score of each pair
        more = after.ndim - at - len(rest) - 1
        same = (
            before.shape[:at] == after.shape[:at]
            and before.shape[at + 1 :][: len(rest)] == after.shape[at + more + 1 :]
        )
        return (
            f"{layout[:at]}{'b' * (more - 1)}{'qk' if layout[at] == 'p' else 'kq'}{rest}" if same and more > 0 else None
        )
    wide = [(size, letter) for size, letter in zip(before.shape, layout, strict=True) if size > 1 or letter != "b"]
    for ones in (True, False):  # only dimensions of one were added or removed
        if [size for size, _ in wide] == [size for size in after.shape if ones or size > 1]:
            letters = iter(letter for _, letter in wide)
            return "".join(next(letters) if ones or size > 1 else "b" for size in after.shape)
    if after.ndim >= 2 and before.shape[-2:] == after.shape[-2:] and set(layout[:-2]) <= {"b"}:
        return "b" * (after.ndim - 2) + layout[-2:]
    if after.ndim >= 2 and before.shape[-1] == after.shape[-1] and layout[-1] in "qk":
        other = "q" if layout[-1] == "k" else "k"
        single = other not in layout or before.shape[layout.index(other)] == 1
        if single and after.shape[-2] != 1:  # a single query without a dimension of positions
            return "b" * (after.ndim - 1) + layout[-1]
        rows = layout[-2] == other or single
        return "b" * (after.ndim - 2) + other + layout[-1] if rows else None
    return None


def summed(layout: Layout, at: int, other: Tensor, labels: tuple[str, ...] | None) -> int | None:
    """Return the dimension of the values that the product sums together with the softmax's own, or None."""
    keys = layout.find("k")
    if keys < 0:
        return None
    if labels is not None:
        label = labels[at][keys]
        other_labels = labels[1 - at]
        return other_labels.index(label) if label not in labels[2] and label in other_labels else None
    if other.ndim < 2:
        return None
    if at == 0:
        return other.ndim - 2 if keys == len(layout) - 1 else None
    return other.ndim - 1 if keys == len(layout) - 2 else None


def is_transformed() -> bool:
    """Return whether the code runs under torch.func, whose tensors have no values of their own."""
    return maybe_current_level() is not None


_DIMENSIONS = {"stack", "unsqueeze", "squeeze", "unbind", "select"}


def follows(layout: Layout | None, call: TorchCall, one: Tensor, result: Tensor) -> bool:
    """Return whether the result still contains the pairs of queries and keys in `one`."""
    if not is_inexact(result):
        return False
    if call.name in LINEAR or call.name in PRODUCTS:
        axis = contracted(call, one)
        # A layer over queries or keys computes features, as every classifier does.
        return layout is not None and axis is not None and layout[axis] == "b"
    if call.name in REDUCES and len(call.tensors) == 1:
        dims = dims_of(call.dim(), one)
        return layout is not None and bool(dims) and all(layout[at] == "b" for at in dims)
    return True


def moved(layout: Layout, call: TorchCall, one: Tensor, result: Tensor) -> Layout | None:
    """Return the layout of a result that follows, or None if it is unknown."""
    found = _moved(layout, call, one, result) if len(layout) == one.ndim else None
    return found if found is not None and len(found) == result.ndim else None


def _moved(layout: Layout, call: TorchCall, one: Tensor, result: Tensor) -> Layout | None:
    name, first = call.name, bool(call.args) and call.args[0] is one
    if name in PERMUTES and first:
        return permuted(layout, call.func, call.args, call.kwargs)
    if name in ("view_as_real", "view_as_complex"):  # the last dimension is a number's two parts
        return f"{layout}b" if name == "view_as_real" else layout[:-1]
    if name in REARRANGES:
        return layout if name == "pad" and first and len(call.args[1]) == 2 and layout[-1] in "qk" else None  # a sink
    if (product := read_product(call)) is not None and product.labels is not None:
        return product.relabelled(layout, one)
    if name in JOINS and name != "stack":
        return layout if result.ndim == one.ndim else None  # a sink's column next to the keys
    if name in ("__getitem__", "__setitem__"):
        return _at_index(layout, call, one, result)
    if name in ("slice", "narrow"):
        return layout  # rows, or a sink's column cut off
    if name in _DIMENSIONS or (name in REDUCES and result.ndim < one.ndim):
        return _more_or_fewer(layout, call, one, result)
    if name in SHAPES:
        return reshaped(layout, one, result)
    return _as_wide(layout, one, result, parts=name in PARTS)


def _at_index(layout: Layout, call: TorchCall, one: Tensor, result: Tensor) -> Layout | None:
    """Return the layout after a part was read or written."""
    if result is one or not is_plain_index(call.args[1]):
        return layout if result is one else None  # tensors and lists of numbers may permute
    return indexed(layout, call.args[1]) if call.name == "__getitem__" else placed(layout, call.args[1], result.ndim)


def _more_or_fewer(layout: Layout, call: TorchCall, one: Tensor, result: Tensor) -> Layout | None:
    """Return the layout after dimensions were inserted or removed by index."""
    name, at = call.name, call.dim()
    if name in ("stack", "unsqueeze"):
        at = (at or 0) % result.ndim
        return f"{layout[:at]}b{layout[at:]}"
    if name in ("unbind", "select"):
        at = (at or 0) % one.ndim
        return layout[:at] + layout[at + 1 :] if layout[at] == "b" or name == "select" else None
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


def contracted(call: TorchCall, one: Tensor) -> int | None:
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
