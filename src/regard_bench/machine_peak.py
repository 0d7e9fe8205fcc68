"""Measure the machine's limits on PyTorch's threads: fused multiply–adds in registers, and memory that is read."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from regard.backends.native import library
from regard.backends.native.threads import run_on_threads
from regard_bench.cases.inputs import flops, products
from regard_bench.shares import Peaks, Resource
from regard_bench.timing import Call, Ratio, in_turn

__all__ = ["PeakLoop", "PeakMeter", "last_cache_bytes", "refuses_peak"]

_ROUNDS = 5  # of each sample
_TIMES = 1 << 20  # how often a loop adds: some milliseconds, and sums that float32 holds exactly
_SQUARE = 1024**3 // 128  # pairs of attention that have as many operations as the product of two such matrices
_LEAST_BYTES = 1 << 28  # of the memory that is read; at least twice the caches
_CACHES = Path("/sys/devices/system/cpu")


class PeakMeter:
    """The machine's limits, of which a run takes samples at its beginning, between cases and at its end."""

    def __init__(self) -> None:
        """Prepare the loops for as many threads as PyTorch uses now."""
        self._found: dict[str, list[float]] = {}
        self._sides: dict[str, tuple[Call, float]] | None = None
        self._missing = {one: why for one in (Resource.FLOAT32, Resource.BFLOAT16) if (why := refuses_peak(one))}

    def sample(self) -> None:
        """Time each limit in turn, five times."""
        self._sides = self._prepared() if self._sides is None else self._sides
        times = in_turn({name: call for name, (call, _) in self._sides.items()}, max_seconds=60, max_rounds=_ROUNDS)
        for name, (call, amount) in list(self._sides.items()):
            if isinstance(call, PeakLoop) and not call.is_right():
                self._missing[call.resource] = "its loop gives other sums than numpy"
                del self._sides[name]
                self._found.pop(name, None)
            else:
                self._found.setdefault(name, []).extend(amount / one for one in times.seconds[name])

    def peaks(self) -> Peaks:
        """Return the medians of all samples until now."""
        rates = {one: Ratio.of(self._found[one]) for one in Resource if one in self._found}
        squares = {one: Ratio.of(self._found[_product(one)]) for one in Resource if _product(one) in self._found}
        return Peaks(rates, squares, dict(self._missing), last_cache_bytes())

    def _prepared(self) -> dict[str, tuple[Call, float]]:
        """Return what is timed, each with its operations or bytes: the loops, products beside them, and memory."""
        sides: dict[str, tuple[Call, float]] = {}
        for one, dtype in ((Resource.FLOAT32, torch.float32), (Resource.BFLOAT16, torch.bfloat16)):
            if one not in self._missing:
                loop = PeakLoop(one)
                sides[one] = loop, loop.flops
            if dtype is torch.float32 or _has_bfloat16_products():
                sides[_product(one)] = products(_SQUARE, dtype), flops(_SQUARE, dtype).amount
        memory = torch.arange(max(_LEAST_BYTES, 2 * (last_cache_bytes() or 0)) // 8)
        sides[Resource.MEMORY] = memory.sum, 8.0 * len(memory)
        return sides


class PeakLoop:
    """A call that adds the same products to sums in registers, on each of PyTorch's threads (native/peak.h)."""

    def __init__(self, resource: Resource) -> None:
        """Make the factors and the sums."""
        self.resource = resource
        pairs, kernels = resource is Resource.BFLOAT16, library.library()
        self._kernel = kernels.kernels["add_products_of_pairs" if pairs else "add_products"]
        self._threads = torch.get_num_threads()
        lanes = np.arange(32 if pairs else 16)
        self.factors = np.stack([lanes % 5 - 2, lanes % 3 - 1])  # small, so that all sums are exact
        self.stored: npt.NDArray[np.generic] = _bfloat16(self.factors) if pairs else self.factors.astype(np.float32)
        self.start = np.arange(self._threads * kernels.accumulators, dtype=np.float32)
        self.sums = np.zeros((self._threads, kernels.accumulators, 16), np.float32)
        # A multiplication and an addition of each factor, in each sum.
        self.flops = 2.0 * _TIMES * self._threads * kernels.accumulators * len(lanes)

    def __call__(self) -> None:
        """Add to sums that begin anew."""
        self.sums[:] = self.start.reshape(self._threads, -1, 1)
        record = np.array([0, _TIMES, self.stored.ctypes.data, self.sums.ctypes.data], np.int64)
        run_on_threads(self._kernel, record.ctypes.data, self._threads, (self, record))

    def is_right(self) -> bool:
        """Return whether the sums of the last call are those of numpy, so that each thread has added each product."""
        added = self.factors.prod(0).reshape(16, -1).sum(1)
        return bool((self.sums == self.start.reshape(self._threads, -1, 1) + _TIMES * added).all())


def refuses_peak(resource: Resource) -> str | None:
    """Say why the peak of fused multiply–adds cannot be measured here; None where it can."""
    if (reason := library.refuses()) is not None:
        return reason
    if resource is Resource.FLOAT32:
        return None
    if not _has_bfloat16_products():
        return "the processor has no AVX-512 BF16"
    amx = "amx" in library.instruction_sets()
    return "the products of AMX, which this processor has, are not in the loop" if amx else None


def last_cache_bytes() -> int | None:
    """Return the size of the last caches before memory, those of all cores together, as Linux reports it, or None."""
    found: dict[tuple[int, str], int] = {}
    try:
        for folder in _CACHES.glob("cpu[0-9]*/cache/index*"):
            level, cores, size = ((folder / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
            found[int(level), cores] = int(size.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return None
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last) or None


def _has_bfloat16_products() -> bool:
    """Return whether the processor has instructions for them, without which a product takes seconds; no if unknown."""
    return library.refuses() is None and library.library().has_bf16


def _product(resource: Resource) -> str:
    return f"product, {resource}"


def _bfloat16(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    """Return small whole numbers in bfloat16, which is the upper half of float32."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
