"""Track the meaning of each dimension of scores or weights through transposes, reshapes and einsum labels.

A layout has one letter per dimension: "q" and "k" are the two dimensions of a product of queries and keys, "b" is any
other (batch, heads). Before the softmax it is unknown which of the two is that of the keys, so the letters only
distinguish them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Layout", "einsum_labels", "inserted_by", "permuted", "product_layout", "reshaped", "summed"]

Layout = str


def product_layout(result: Tensor, labels: tuple[str, ...] | None) -> Layout | None:
    """Return the layout of a product: a matmul's last two dimensions, or an einsum's labels; None if it is not a
    matrix of pairs.

    With a single query without a dimension of positions, the scores have only one of the two letters.

    >>> product_layout(torch.empty(2, 4, 5, 5), None)
    'bbqk'
    >>> product_layout(torch.empty(2, 5, 5, 4), ("bihd", "bjhd", "bijh"))
    'bqkb'
    >>> product_layout(torch.empty(2, 7), ("bd", "bnd", "bn"))
    'bk'
    """
    if labels is None:
        return "b" * (result.ndim - 2) + "qk" if result.ndim >= 2 else None
    left, right, out = labels
    layout = "".join(
        "q" if one in left and one not in right else "k" if one in right and one not in left else "b" for one in out
    )
    for letter in "qk":  # of several, as with the groups of grouped queries, the last is that of positions
        head, _, tail = layout.rpartition(letter)
        layout = head.replace(letter, "b") + letter + tail if letter in layout else layout
    return layout if len(layout) == result.ndim and ("q" in layout or "k" in layout) else None


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


def permuted(layout: Layout, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout | None:
    """Return the layout after a transpose, by applying the same call to a tensor whose sizes encode its dimensions."""
    probe = torch.empty([1 + at for at in range(len(layout))], device="meta")
    with torch._C.DisableTorchFunction():
        moved = func(probe, *args[1:], **kwargs)
    same = isinstance(moved, Tensor) and moved.ndim == len(layout)
    return "".join(layout[size - 1] for size in moved.shape) if same else None


def inserted_by(index: Any, ndim: int) -> list[int]:
    """Return the dimensions, counted from the end, that None in an index inserts into a result with `ndim` dimensions;
    none next to tensors.

    >>> inserted_by((slice(None), None), 4), inserted_by((..., None, slice(None)), 4), inserted_by(0, 4)
    ([-3], [-2], [])
    """
    items = index if isinstance(index, tuple) else (index,)
    if not all(one is None or one is Ellipsis or type(one) in (int, slice) for one in items):
        return []
    kept = [one for one in items if type(one) is not int]
    if Ellipsis in kept:
        at = kept.index(Ellipsis)
        kept[at : at + 1] = [slice(None)] * (ndim - len(kept) + 1)
    return [at - ndim for at, one in enumerate(kept) if one is None]


def reshaped(layout: Layout, before: Tensor, after: Tensor) -> Layout | None:
    """Return the layout after a view or an index, as long as the last two dimensions, or the last one in rows of keys,
    are preserved.
    """
    if before.shape == after.shape:
        return layout
    if after.ndim >= 2 and before.shape[-2:] == after.shape[-2:] and set(layout[:-2]) <= {"b"}:
        return "b" * (after.ndim - 2) + layout[-2:]
    if after.ndim >= 2 and before.shape[-1] == after.shape[-1] and layout[-1] in "qk":
        other = "q" if layout[-1] == "k" else "k"
        single = other not in layout or before.shape[layout.index(other)] == 1
        if single and after.shape[-2] != 1:  # a single query without a dimension of positions
            return "b" * (after.ndim - 1) + layout[-1]
        return "b" * (after.ndim - 2) + other + layout[-1]
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
