"""Whether numba and Triton can compile kernels here, and the sizes in which a Triton program works."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import util
from typing import Any

import torch
from torch import Tensor

from regard.torch_private import assume_constant_result

__all__ = ["Blocks", "interprets", "kernel", "refuses_numba", "refuses_triton"]

_numba_works = False  # once it has, it does


@assume_constant_result
def refuses_numba() -> str | None:
    """Say why numba cannot compile in this environment; None where it can."""
    global _numba_works
    if not _numba_works:
        reason = _numba_refusal()
        _numba_works = reason is None
        return reason
    return None


def _numba_refusal() -> str | None:
    if util.find_spec("numba") is None:
        return "the package `numba` is not installed: pip install 'regard[numba]'"
    try:
        from numba.core.caching import FunctionCache

        FunctionCache(_numba_refusal)
    except (ImportError, OSError) as problem:  # another numpy, a library that does not load
        return f"the package `numba` is installed and cannot be imported ({problem})"
    except RuntimeError as problem:  # there is no folder in which it may keep what it compiles
        return f"numba cannot compile here ({problem}): set NUMBA_CACHE_DIR to a folder that can be written"
    return None


@dataclass(frozen=True)
class Blocks:
    """How many queries and keys a program takes at once, powers of two from 16 on."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 2

    @property
    def options(self) -> dict[str, Any]:
        """As a kernel is told of them."""
        return {
            "block_q": self.queries,
            "block_k": self.keys,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def kernel(function: Callable[..., Any]) -> Any:
    """Compile where there is Triton, which reads TRITON_INTERPRET here; without it a kernel can be read, not run."""
    try:
        import triton
    except ImportError:
        return function
    return triton.jit(function)


@assume_constant_result
def interprets() -> bool:
    """Whether Triton's interpreter runs kernels on the CPU, as TRITON_INTERPRET=1 has it, for tests."""
    try:
        from triton import knobs
    except ImportError:
        return False
    return bool(knobs.runtime.interpret)


def refuses_triton(q: Tensor) -> str | None:
    """Say why kernels cannot take queries of this type and device here; None where they can."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return "the package `triton` is not installed"
    if not (q.is_cuda or interprets()):
        return f"it runs on CUDA, and the queries are on {q.device}"
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"it takes float32, float16 and bfloat16, and the queries are {q.dtype}"
    return None
