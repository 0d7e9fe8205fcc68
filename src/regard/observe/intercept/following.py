"""Whether scores or weights live on in what a call made of them, and which of its dimensions is which then.

Every torch function is followed, not a list of known ones: what keeps the dimensions of queries and keys keeps the
layout, whatever it computes (an activation, a norm, a linear layer or a convolution over heads). What sums over queries
or keys ends it, as features begin there; what rearranges them leaves a tensor that descends from scores in an order
that is not known.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.observe.intercept.layout import Layout, einsum_labels, permuted, reshaped
from regard.observe.intercept.operations import JOINS, LINEAR, PARTS, PERMUTES, PRODUCTS, REARRANGES, REDUCES, SHAPES

__all__ = ["TorchCall", "follows", "moved", "tensors_in"]


@dataclass(frozen=True, eq=False)
class TorchCall:
    """One call of a torch function."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments, those in lists too."""
        return [*tensors_in(self.args), *tensors_in(tuple(self.kwargs.values()))]

    def dim(self, at: int = 1, name: str = "dim") -> Any:
        """The argument `dim`, wherever it is."""
        return self.kwargs.get(name, self.args[at] if len(self.args) > at else None)


def tensors_in(values: tuple[Any, ...]) -> Iterator[Tensor]:
    """The tensors of tuples and lists in each other; nested tensors, which have no shape, are left out."""
    for value in values:
        if isinstance(value, Tensor):
            if not value.is_nested:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(tuple(value))


def follows(layout: Layout | None, call: TorchCall, one: Tensor, result: Tensor) -> bool:
    """Whether the result still descends from the pairs of queries and keys in `one`."""
    if not result.is_floating_point():
        return False
    if call.name in LINEAR or call.name in PRODUCTS:
        axis = _contracted(call, one)
        # A layer over queries or keys makes features of them, as every classifier does.
        return layout is not None and axis is not None and layout[axis] == "b"
    if call.name in REDUCES and len(call.tensors) == 1:
        dims = _dims(call.dim(), one)
        return layout is not None and bool(dims) and all(layout[at] == "b" for at in dims)
    return True


def moved(layout: Layout, call: TorchCall, one: Tensor, result: Tensor) -> Layout | None:
    """The layout of a result that follows; None where it is not known."""
    name, first = call.name, bool(call.args) and call.args[0] is one
    if name in PERMUTES and first:
        return permuted(layout, call.func, call.args, call.kwargs)
    if name in REARRANGES:
        return None
    if name == "einsum":
        return _relabelled(layout, call, one)
    if name in REDUCES and result.ndim < one.ndim:
        gone = _dims(call.dim(), one)
        return "".join(letter for at, letter in enumerate(layout) if at not in gone)
    if name in ("stack", "unsqueeze") and isinstance(at := call.dim(), int | None):
        at = (at or 0) % result.ndim
        return f"{layout[:at]}b{layout[at:]}"
    if name in ("unbind", "select") and isinstance(at := call.dim(), int | None):
        at = (at or 0) % one.ndim
        return layout[:at] + layout[at + 1 :] if layout[at] == "b" else None
    if name in JOINS:
        return layout if result.ndim == one.ndim else None  # a sink's column beside the keys
    if name == "__getitem__" and result.ndim == one.ndim:
        return layout  # a slice: rows, or a sink's column cut off
    if name in SHAPES or name == "__setitem__":
        return reshaped(layout, one, result)
    return _as_wide(layout, one, result, parts=name in PARTS)


def _as_wide(layout: Layout, one: Tensor, result: Tensor, *, parts: bool) -> Layout | None:
    """Elementwise and what mixes other dimensions: queries and keys are as many as before, or were broadcast."""
    more = result.ndim - one.ndim
    if more < 0 or (parts and more):
        return None
    pairs = [at for at, letter in enumerate(layout) if letter != "b"]
    same = all(result.shape[at + more] == one.shape[at] or (one.shape[at] == 1 and not parts) for at in pairs)
    return "b" * more + layout if same else None


def _contracted(call: TorchCall, one: Tensor) -> int | None:
    """The dimension of scores or weights over which a layer sums; None if they are not its input."""
    if call.name == "einsum":
        equation, operands = call.args[0] if call.args else "", call.tensors
        labels = einsum_labels(equation, *operands) if isinstance(equation, str) and len(operands) == 2 else None
        if labels is None:
            return None
        own = labels[0] if operands[0] is one else labels[1]
        gone = [at for at, label in enumerate(own) if label not in labels[2]]
        return gone[0] if len(gone) == 1 else None
    first = call.args[0] if call.args else call.kwargs.get("input")
    if first is not one or call.name == "embedding":
        return None
    return int(one.ndim) - 1 - (int(call.name[-2]) if "conv" in call.name else 0)


def _relabelled(layout: Layout, call: TorchCall, one: Tensor) -> Layout | None:
    """The layout by an einsum's labels."""
    operands = call.tensors
    labels = einsum_labels(call.args[0], *operands) if len(operands) == 2 else None
    if labels is None:
        return None
    letters = dict(zip(labels[0 if operands[0] is one else 1], layout, strict=True))
    return "".join(letters.get(label, "b") for label in labels[2])


def _dims(dim: Any, one: Tensor) -> list[int]:
    """Dimensions as positive numbers; none where they are not given."""
    if dim is None:
        return []
    return [at % one.ndim for at in (dim if isinstance(dim, list | tuple) else [dim]) if isinstance(at, int)]
