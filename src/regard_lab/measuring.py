"""Measure the cost of a call: seconds, bytes at the peak, and the power with which they grow."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["exponent", "one_thread", "peak_bytes", "seconds_in_turn"]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the power p of the best-fitting c · size^p, by least squares of the logarithms.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    x, y = [math.log(one) for one in sizes], [math.log(one) for one in values]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    across = sum((one - middle) ** 2 for one in x)
    return sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True)) / across


def seconds_in_turn(calls: Mapping[Any, Callable[[], object]], repeats: int) -> dict[Any, list[float]]:
    """Return the seconds of each call, `repeats` times, with the calls timed alternately.

    Measured is the processor time of one thread, so that other load on the machine has little effect.
    """
    found: dict[Any, list[float]] = {name: [] for name in calls}
    with one_thread():
        for call in calls.values():
            call()  # warm-up: plans, caches and memory pages
        for _ in range(repeats):
            for name, call in calls.items():
                start = time.thread_time()
                call()
                found[name].append(time.thread_time() - start)
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread inside the block: small models do not gain from more, and wait long on a busy
    machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the largest number of bytes of tensors that are alive at one time during a call, its result included.

    The results of every operation are counted while they are alive. Memory used inside an operation is not counted: in
    PyTorch's fused kernels, a few blocks.
    """
    gc.collect()
    with _Alive() as seen:
        result = call()
        del result
    peak: int = seen.peak
    return peak


class _Alive(TorchDispatchMode):
    """The bytes of all storages that were made inside the block and are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(one) for one in (*args, *(kwargs or {}).values()) if isinstance(one, Tensor)}
        results = func(*args, **(kwargs or {}))
        for one in results if isinstance(results, tuple | list) else (results,):
            if isinstance(one, Tensor) and _storage(one) not in given:
                storage = one.untyped_storage()
                self._alive[_storage(one)] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {at: one for at, one in self._alive.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return results


def _storage(one: Tensor) -> int:
    """Return what distinguishes a storage from others that are alive at the same time."""
    place: int = one.untyped_storage()._cdata
    return place
