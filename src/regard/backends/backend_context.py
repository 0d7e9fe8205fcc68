"""A backend for all calls of a block of code that leave the choice open."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from regard.backends.selection import check_name

__all__ = ["preferred", "use_backend"]

_PREFERRED: ContextVar[str] = ContextVar("preferred", default="auto")


@contextmanager
def use_backend(backend: str) -> Iterator[None]:
    """Have attention() take a backend for each call inside that it does not refuse; other calls go as ever.

    For models, whose calls cannot be told one by one. Calls that name a backend keep to it. The preference is that of
    this thread (or task of asyncio), so it must not stay open over a generator's `yield`. Compiled code does not see
    it.

    Args:
        backend: The name of one, as `regard doctor` lists them, or "auto" for none.

    Raises:
        InputError: There is no such backend.

    >>> import torch, regard
    >>> x = torch.zeros(1, 1, 8, 4)
    >>> with regard.use_backend("reference"):
    ...     print(str(regard.explain(x, x, x)).splitlines()[0])
    reference runs it
    """
    check_name(backend)
    token = _PREFERRED.set(backend)
    try:
        yield
    finally:
        _PREFERRED.reset(token)


def preferred() -> str:
    """The backend that is preferred here, or "auto"."""
    return "auto" if torch.compiler.is_compiling() else _PREFERRED.get()
