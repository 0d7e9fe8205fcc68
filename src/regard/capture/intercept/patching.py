"""Functions of PyTorch that are exchanged while anything is watched, and given back by the last watch."""

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Namespace", "is_patched", "patched", "with_globals"]


@dataclass(eq=False)
class _Patch:
    owner: Any
    before: Any  # what `owner` itself had; None where it inherits
    wrapper: Any
    users: int = 1


_lock = threading.Lock()
_patches: dict[tuple[int, str], _Patch] = {}


@contextlib.contextmanager
def patched(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Put `wrap(attribute)` in the place of an attribute, once for however many watches use it."""
    key = id(owner), name
    with _lock:
        if key in _patches:
            _patches[key].users += 1
        else:
            _patches[key] = _Patch(owner, vars(owner).get(name), wrap(getattr(owner, name)))
            setattr(owner, name, _patches[key].wrapper)
    try:
        yield
    finally:
        with _lock:
            patch = _patches[key]
            patch.users -= 1
            if not patch.users:
                del _patches[key]
                _restore(name, patch)


def _restore(name: str, patch: _Patch) -> None:
    if vars(patch.owner).get(name) is not patch.wrapper:
        return  # somebody has put his own in our place, and takes that away himself
    if patch.before is None:
        delattr(patch.owner, name)
    else:
        setattr(patch.owner, name, patch.before)


def is_patched(owner: Any, name: str) -> bool:
    """Whether the attribute is one that was put there by `patched`."""
    return (id(owner), name) in _patches


class Namespace:
    """A module of which some names mean something else."""

    def __init__(self, module: Any, **exchanged: Any) -> None:
        self.__dict__.update(exchanged, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def with_globals(function: types.FunctionType, **exchanged: Any) -> Callable[..., Any]:
    """The code of a function, for which some names of its module mean something else, and for nobody besides.

    >>> def area(radius):
    ...     return pi * radius**2
    >>> with_globals(area, pi=3)(2)
    12
    """
    code, known = function.__code__, function.__globals__ | exchanged
    copy = types.FunctionType(code, known, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
