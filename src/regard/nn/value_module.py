"""Frozen values inside modules: their tensors become parameters and buffers, so that they are trained, moved, saved.

Buffers that are computed from sizes are made anew on a device where they had no numbers.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.masks import Mask
from regard.nn.per_sample import check_value
from regard.tensors import are_in_memory
from regard.values import flatten, names, unflatten

__all__ = ["ComputedBuffers", "ValueModule", "hold", "value_of"]


class ValueModule(nn.Module):
    """A score, mask, bias, rotary embedding or normalizer as a module; called without arguments it gives the value.

    If a tensor in the value is an `nn.Parameter`, it becomes a parameter of this module. Other tensors become buffers.
    Both have the names of their fields, follow `.to()` and are part of the state dict. Each call returns the value with
    the current tensors; a mask is made again where a buffer was replaced or changed, which PyTorch does not count for
    numbers that are written through `.data[...]` or `.numpy()`.

    Raises:
        InputError: A tensor requires gradients and is no `nn.Parameter`.

    >>> import torch
    >>> from regard.scores import Bilinear
    >>> module = ValueModule(Bilinear(nn.Parameter(torch.eye(2))))
    >>> [name for name, _ in module.named_parameters()], module().weight is module.weight
    (['weight'], True)
    """

    def __init__(self, value: object) -> None:
        super().__init__()
        leaves, self._form = flatten(value)
        self._names = tuple(names(self._form))
        self._constant = None if leaves else value
        self._mask: tuple[list[tuple[Tensor, int, torch.device, int]], Mask] | None = (
            None  # the last one, and the buffers that it copied
        )
        for name, tensor in zip(self._names, leaves, strict=True):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            elif tensor.requires_grad:
                raise InputError(
                    f"`{name}` of {type(value).__name__} requires gradients and must be a parameter of the module: "
                    "wrap it with nn.Parameter(...), or pass a module that gives the value when it is called"
                )
            else:
                self.register_buffer(name, tensor)

    def forward(self) -> Any:
        """Give the value."""
        check_value(self)  # Opacus would have no gradients of it
        if not self._names:
            return self._constant
        leaves = [getattr(self, name) for name in self._names]
        if not issubclass(self._form[0], Mask) or torch.compiler.is_compiling():
            return unflatten(self._form, leaves)
        if not are_in_memory(*leaves) or any(leaf.is_inference() for leaf in leaves):  # changes are not counted
            return unflatten(self._form, leaves, checked=(Mask,))
        buffers = [(leaf, leaf.data_ptr(), leaf.device, leaf._version) for leaf in leaves]
        if self._mask is None or not all(
            leaf is known and now == before
            for (leaf, *now), (known, *before) in zip(buffers, self._mask[0], strict=True)
        ):
            self._mask = buffers, unflatten(self._form, leaves, checked=(Mask,))  # planned once, as a mask is
        return self._mask[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mask": None}

    def extra_repr(self) -> str:
        """Name the kind of value."""
        return str(self._form[0].__name__)


def hold(value: object | None) -> nn.Module | None:
    """Make a module of a frozen value; a module that gives one when called, and None, stay as they are.

    Raises:
        InputError: It is neither: a class that wants to be called, a flag, a number or a name.
    """
    if value is None or isinstance(value, nn.Module):
        return value
    if isinstance(value, type) or not (isinstance(value, Tensor) or is_dataclass(value)):
        got = f"the class {value.__name__}: write {value.__name__}(...)" if isinstance(value, type) else repr(value)
        raise InputError(
            "a module holds a value of regard.scores, masks, positions or normalizers, or a module that gives one, "
            f"got {got}"
        )
    return ValueModule(value)


def value_of(module: nn.Module | None) -> Any:
    """Ask a held value for itself; None where nothing is held."""
    if isinstance(module, ValueModule):
        return module.forward()  # of which no hook has anything to say
    return None if module is None else module()


class ComputedBuffers(nn.Module):
    """A module whose buffers `make_buffers` computes: anew where `to_empty` or `load_state_dict(assign=True)` gives a
    module of "meta" its memory, since a state dict fills the parameters alone.
    """

    def make_buffers(self) -> None:
        """Compute and register the buffers, on the default device."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        had_numbers = not any(one.is_meta for one in self.buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if not had_numbers:
            self._fill(None)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, metadata: Any, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)
        if metadata.get("assign_to_params_buffers") and any(one.is_meta for one in self.buffers(recurse=False)):
            self._fill(next((one.device for one in state_dict.values()), torch.get_default_device()))

    def _fill(self, device: torch.device | None) -> None:
        """Compute the buffers on a device, or on those that they have."""
        empty = dict(self.named_buffers(recurse=False))
        self.make_buffers()
        for name, one in empty.items():
            setattr(self, name, getattr(self, name).to(device or one.device, one.dtype))
