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

    Use this for models, in which you cannot pass a backend to each call. A call that names a backend keeps it. The
    preference applies to this thread (or asyncio task), so the block must not stay open over the `yield` of a
    generator. Compiled code ignores the preference.

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
