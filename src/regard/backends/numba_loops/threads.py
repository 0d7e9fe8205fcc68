"""Run compiled loops on PyTorch's threads, because the threads of a second pool would wait for cores."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import types

from regard.backends.numba_loops import decode, prefill
from regard.backends.numba_loops.compile_cache import callback
from regard.backends.numba_loops.kernel_args import Job

__all__ = ["run"]

_LOOPS = {"pack": prefill.pack, "attend": prefill.attend, "read": decode.read, "merge": decode.merge}
_Region = Callable[[Any, int, int, int], None]


def run(loop: str, job: npt.NDArray[np.void], *, tasks: int) -> None:
    """Run a loop over a job's tasks, on as many threads as PyTorch may use here."""
    job["counter"], job["tasks"] = 0, tasks
    address = job.ctypes.data
    threads, region = min(torch.get_num_threads(), tasks), _region()
    if threads == 1:
        _function(loop)(address)
    elif region is not None:
        region(_loop(loop).address, address, threads, 0)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="regard") as pool:
            list(pool.map(_function(loop), [address] * threads))


@cache
def _loop(loop: str) -> Any:
    """Return the compiled loop, which is compiled in some seconds at the first call and then cached on disk."""
    return callback(_LOOPS[loop], types.void(types.CPointer(Job)))


@cache
def _function(loop: str) -> Callable[[int], None]:
    function: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_loop(loop).address)
    return function


@cache
def _region() -> _Region | None:
    """Return GOMP_parallel(function, data, threads, flags) of the OpenMP library that PyTorch is linked with, or None.

    Compilers call it for `#pragma omp parallel`; it exists in GNU's library and, for compatibility, in LLVM's.
    """
    if not torch.backends.openmp.is_available():
        return None
    try:
        library = ctypes.CDLL(torch._C.__file__)  # symbols are searched in all linked libraries
        region = library.GOMP_parallel
    except (AttributeError, OSError):
        return None
    region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    region.restype = None
    return region
