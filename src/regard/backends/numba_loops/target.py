"""What the loops are compiled for, and the machine code of each: known to those who compile and to those who load."""

import os
from functools import cache
from typing import NamedTuple

__all__ = ["CALLED", "LOOPS", "ObjectCode", "Processor", "has_pairs", "processor"]

LOOPS = "attend", "read", "differentiate", "add_parts", "sweep_float32", "sweep_float64", "sweep_qk", "weigh_rows"
CALLED = frozenset(("expf", "logf", "memcpy", "memset"))


class ObjectCode(NamedTuple):
    """The machine code of one loop, an object file, and the name of its function."""

    symbol: str
    object_file: bytes


class Processor(NamedTuple):
    """What the loops are compiled for: the host, or what NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name."""

    name: str
    features: frozenset[str]


@cache
def processor() -> Processor:
    """Return the processor that numba compiles for."""
    from llvmlite import binding

    name, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if features is not None or name not in (None, "host"):
        return Processor(name or "", frozenset(one[1:] for one in (features or "").split(",") if one.startswith("+")))
    host = binding.get_host_cpu_features()
    return Processor(binding.get_host_cpu_name(), frozenset(name for name, there in host.items() if there))


@cache
def has_pairs() -> bool:
    """Return whether one instruction multiplies pairs of bfloat16 and adds them to float32."""
    return "avx512bf16" in processor().features
