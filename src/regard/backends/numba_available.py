"""What code that numba compiles shares: whether it can be compiled here."""

from importlib import util

__all__ = ["refuses_here"]

_works = False  # once it has, it does


def refuses_here() -> str | None:
    """Say why numba cannot compile in this environment; None where it can."""
    global _works
    if not _works:
        reason = _refuses()
        _works = reason is None
        return reason
    return None


def _refuses() -> str | None:
    if util.find_spec("numba") is None:
        return "the package `numba` is not installed: pip install 'regard[numba]'"
    try:
        from numba.core.caching import FunctionCache

        FunctionCache(_refuses)
    except (ImportError, OSError) as problem:  # another numpy, a library that does not load
        return f"the package `numba` is installed and cannot be imported ({problem})"
    except RuntimeError as problem:  # there is no folder in which it may keep what it compiles
        return f"numba cannot compile here ({problem}): set NUMBA_CACHE_DIR to a folder that can be written"
    return None
