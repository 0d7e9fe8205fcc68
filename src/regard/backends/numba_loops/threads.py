"""Run compiled loops on PyTorch's threads, because the threads of a second pool would wait for cores."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from regard.backends.numba_loops.object_code import loops

__all__ = ["run", "run_on_threads"]

_Region = Callable[[Any, int, int, int], None]
_ALIGNED = 64  # bytes of a vector


def run(loop: str, job: npt.NDArray[np.void], *, tasks: int, room_bytes: int = 0) -> None:
    """Run a loop over a job's tasks, on as many threads as PyTorch may use here, each with some bytes for itself."""
    threads = min(torch.get_num_threads(), tasks)
    room = np.zeros(threads * room_bytes + _ALIGNED, np.uint8)
    job["counter"], job["seats"], job["packed"], job["tasks"] = 0, 0, 0, tasks
    job["room"], job["room_bytes"] = -(-room.ctypes.data // _ALIGNED) * _ALIGNED, room_bytes
    found = loops()
    run_on_threads(found.functions[loop], found.addresses[loop], job.ctypes.data, threads)


def run_on_threads(function: Callable[[int], None], code: int, data: int, threads: int) -> None:
    """Call a function of C, whose machine code is at an address, with the address of its data on each thread."""
    region = _region()
    if threads == 1:
        function(data)
    elif region is not None:
        region(code, data, threads, 0)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="regard") as pool:
            list(pool.map(function, [data] * threads))


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
