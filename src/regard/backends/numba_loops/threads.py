"""Run compiled loops on PyTorch's threads, because the threads of a second pool would wait for cores."""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

from regard.backends.numba_loops.kernel_args import START
from regard.backends.numba_loops.object_code import loops

__all__ = ["address_of", "run", "run_on_threads"]

_Region = Callable[[Any, int, int, int], None]
_ALIGNED = 64  # bytes of a vector


def run(loop: str, job: bytearray, *, tasks: int, room_bytes: int = 0) -> None:
    """Run a loop over a job's tasks, on as many threads as PyTorch may use here, each with some bytes for itself."""
    threads, found = min(torch.get_num_threads(), tasks), loops()
    room = bytearray(threads * room_bytes + _ALIGNED)
    START.pack_into(job, 0, 0, 0, 0, tasks, -(-address_of(room) // _ALIGNED) * _ALIGNED, room_bytes)
    run_on_threads(found.functions[loop], found.addresses[loop], address_of(job), threads)


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


def address_of(memory: bytearray) -> int:
    """Return the address of bytes, which the caller keeps."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


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
