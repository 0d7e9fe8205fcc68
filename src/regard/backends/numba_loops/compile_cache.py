"""Compile functions with numba, and cache them on disk for later processes.

numba identifies a function by its own bytecode and by the date of its file. These functions call one another and use
instructions of this folder, so the cache key here includes all files of the folder.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import sigutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc

__all__ = ["callback", "compiled"]

_SOURCES = b"\0".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
_VERSION = hashlib.sha256(_SOURCES).hexdigest()


class _Kept(FunctionCache):
    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return *super()._index_key(sig, codegen), _VERSION


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when a compiled function calls it."""
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    dispatcher._cache = _Kept(function)
    return dispatcher


def callback(function: Callable[..., Any], signature: Any) -> Any:
    """Compile a function immediately, so that it has an address for calls from C."""
    made: Any = CFunc(function, sigutils.normalize_signature(signature), locals={}, options={"error_model": "numpy"})
    made._cache = _Kept(function)
    made.compile()
    return made
