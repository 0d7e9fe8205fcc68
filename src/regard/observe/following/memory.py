"""What is known of the memory that a model computes in, and of the tensors in it.

Facts belong to a storage, and those about dimensions to the tensors that lie in it, by offset, sizes and strides:
autograd makes new tensors for views. They end with the storage, which nothing here keeps alive.
"""

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.observe.following.axes import Axes, plain
from regard.observe.following.origins import Origin

__all__ = ["LEARNED", "MADE", "Cell", "Memory", "View", "is_inexact", "key_of", "put"]

LEARNED, MADE = 1, 2  # parameters, and what is computed of parameters alone by a product

Key = tuple[Any, ...]


@dataclass(slots=True, eq=False)
class Cell:
    """One storage: what it was made of, and the tensors in it of which something is known."""

    learned: int = 0
    origin: Origin | None = None
    roots: list[tuple[int, int, Origin]] = field(default_factory=list)  # parts that were not computed here
    views: dict[Key, "View"] = field(default_factory=dict)
    has_weights: bool = False
    ids: Origin | None = None  # of ids: the text that they are


@dataclass(slots=True, eq=False)
class View:
    """One tensor in a storage: its dimensions, None if they are unknown, and what it is of attention."""

    cell: Cell
    key: Key
    axes: Axes | None = None
    role: Any = None
    whole: "tuple[View, str, int] | None" = None  # what it was selected or sliced from, and by which dimension


class Memory:
    """The storages of a thread that were met."""

    def __init__(self) -> None:
        self._cells: dict[int, tuple[Any, Cell]] = {}

    def cell(self, tensor: Tensor) -> Cell:
        """Return what is known of a tensor's storage; one without a storage (sparse) stands for itself."""
        if tensor.layout is _JAGGED:
            tensor = tensor._values  # type: ignore[assignment]
        try:
            owner: Any = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            owner = tensor
        number = id(owner)
        found = self._cells.get(number)
        if found is not None:
            return found[1]
        cell, cells = Cell(), self._cells
        cells[number] = weakref.ref(owner, lambda _: cells.pop(number, None)), cell
        return cell

    def view(self, tensor: Tensor) -> View:
        """Return what is known of a tensor."""
        cell = self.cell(tensor)
        views = cell.views
        key = key_of(tensor)
        view = views.get(key)
        if view is not None:
            return view
        view = View(cell, key)
        if not views:
            view.axes = plain(key[1]) if key else None
        else:  # a view that was made unseen
            role = next((one.role for one in views.values() if one.role is not None), None)
            view.role, view.axes = role, None if role is not None or not key else plain(key[1])
        views[key] = view
        return view


def put(cell: Cell, tensor: Tensor, axes: Axes | None, role: Any, whole: Any = None) -> View:
    """Note what a tensor in a storage is from now on."""
    key = key_of(tensor)
    view = cell.views[key] = View(cell, key, axes, role, whole)
    return view


def key_of(tensor: Tensor) -> Key:
    """Return where a tensor lies in its storage, and its sizes; nothing for those without strides."""
    if tensor.layout is not _STRIDED or tensor.is_nested:
        return ()
    return tensor.storage_offset(), tensor.shape, tensor.stride()


_STRIDED, _JAGGED = torch.strided, torch.jagged


def is_inexact(value: Any) -> bool:
    """Return whether it is a tensor of floating-point or complex numbers, as activations are."""
    return isinstance(value, Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)
