"""Functions of PyTorch that are replaced while any watch is active, and restored after the last one."""

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = [
    "patched",
    "with_globals",
]


@dataclass(eq=False)
class _Patch:
    owner: Any
    before: Any  # the attribute of `owner` itself; None if it is inherited
    wrapper: Any
    users: int = 1


_lock = threading.Lock()
_patches: dict[tuple[int, str], _Patch] = {}


@contextlib.contextmanager
def patched(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute by `wrap(attribute)`, once for any number of watches."""
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
        return  # other code has replaced our function, and will restore it itself
    if patch.before is None:
        delattr(patch.owner, name)
    else:
        setattr(patch.owner, name, patch.before)


def with_globals(function: types.FunctionType, **exchanged: Any) -> Callable[..., Any]:
    """Return a function with the same code, for which some global names are replaced, without effect on other code.

    >>> def area(radius):
    ...     return pi * radius**2
    >>> with_globals(area, pi=3)(2)
    12
    """
    code, known = function.__code__, function.__globals__ | exchanged
    copy = types.FunctionType(code, known, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
