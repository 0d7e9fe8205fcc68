"""What rooms below leave to rooms above, which the package names when it is imported and which load at their first use.

Calls whose sequences lie over the ranks of a process group are computed by `regard.parallel`, so nothing in the core
knows how tensors are sharded. Weights of recorded queries and keys are computed by `regard.observe`, so records and
atlases are read without torch. Who listens to attention (`regard.observe`) is notified of its calls.
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

__all__ = [
    "HEARING",
    "KEPT_WEIGHTS",
    "OVER_RANKS",
    "Listener",
    "are_sharded",
    "kept_weights",
    "over_ranks",
    "report",
]

# By the name of the class of such tensors, what loads the module that takes them: it has `attend` and `explain`.
OVER_RANKS: dict[str, Callable[[], Any]] = {}

# What loads the module that computes weights from recorded queries and keys: it has `weights`.
KEPT_WEIGHTS: list[Callable[[], Any]] = []


def are_sharded(*given: object) -> bool:
    """Return whether one of these is a tensor of which each rank has a part, without importing what defines them."""
    return any(type(one).__name__ in OVER_RANKS for one in given)


def over_ranks() -> Any:
    """Load the module that takes such calls."""
    (load,) = OVER_RANKS.values()
    return load()


def kept_weights() -> Any:
    """Load the module that computes weights from recorded queries and keys."""
    (load,) = KEPT_WEIGHTS
    return load()


class Listener(Protocol):
    """An object that is notified of each attention call in a thread."""

    def hear(self, operator: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Process a call that has returned; what is computed here is not heard."""
        ...


class _Hearing(threading.local):
    """Who is notified of this thread's calls, and whether one of these runs now, whose own parts are none."""

    listeners: tuple[Listener, ...] = ()
    inside = False


HEARING = _Hearing()


def report(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that attends, and notify the listeners of this thread of it as one call."""
    HEARING.inside = True
    try:
        result = function(*args, **kwargs)
        for one in HEARING.listeners:
            one.hear(function, args, kwargs, result)
    finally:
        HEARING.inside = False
    return result
