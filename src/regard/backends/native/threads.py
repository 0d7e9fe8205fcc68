"""Kernels on PyTorch's threads, because the threads of a second pool would wait for cores."""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import torch

from regard.backends.native.library import Kernel, library
from regard.backends.native.record import START

__all__ = ["address_of", "run", "run_on_threads"]

_Region = Callable[[Any, int, int, int], None]
_ALIGNED = 64  # bytes of a vector


def run(kernel: str, call: bytearray, *, tasks: int, buffers: Sequence[object], workspace_bytes: int = 0) -> None:
    """Run a kernel over the tasks of a call, on as many threads as PyTorch may use here, each with some bytes of its
    own.

    Args:
        kernel: Its name.
        call: The record.
        tasks: How many there are.
        buffers: All that the record has addresses of.
        workspace_bytes: Of each thread.
    """
    threads = min(torch.get_num_threads(), tasks)
    workspace = bytearray(threads * workspace_bytes + _ALIGNED)
    START.pack_into(call, 0, 0, 0, 0, tasks, -(-address_of(workspace) // _ALIGNED) * _ALIGNED, workspace_bytes)
    run_on_threads(library().kernels[kernel], address_of(call), threads, (call, workspace, buffers))


def run_on_threads(kernel: Kernel, record: int, threads: int, buffers: Sequence[object]) -> None:
    """Call a kernel with the address of its record on each thread; `buffers` are alive until all of them have ended."""
    region = _region()
    if threads == 1:
        kernel.call(record)
    elif region is not None:
        region(kernel.address, record, threads, 0)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="regard") as pool:
            list(pool.map(partial(_call, kernel, buffers), [record] * threads))


def _call(kernel: Kernel, _buffers: Sequence[object], record: int) -> None:
    kernel.call(record)  # a second Ctrl-C does not wait for it, and frees what the caller holds


def address_of(memory: bytearray) -> int:
    """Return the address of bytes, which the caller keeps."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _region() -> _Region | None:
    """Return GOMP_parallel(function, data, threads, flags) of the OpenMP library of PyTorch, or None."""
    return None if _is_forked else _gomp_parallel()


# The threads of GNU's OpenMP do not exist in a child of fork, and a region that waited for them would not end.
_is_forked = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: globals().update(_is_forked=True))


@cache
def _gomp_parallel() -> _Region | None:
    """Look the function up that compilers call for `#pragma omp parallel`: GNU's library has it, and LLVM's too."""
    if not torch.backends.openmp.is_available():
        return None
    try:
        region = ctypes.CDLL(torch._C.__file__).GOMP_parallel  # symbols are searched in all linked libraries
    except (AttributeError, OSError):
        return None
    region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    region.restype = None
    return region
