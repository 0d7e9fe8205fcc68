"""What `auto` sees of the compiled loops on a processor for which they were measured, whatever this one is."""

from typing import Any

from regard.backends.numba_loops import object_code
from regard.backends.numba_loops.target import Processor

__all__ = ["MeasuredProcessor"]


class MeasuredProcessor:
    """`object_code` with another processor; loops are still compiled, and kept, for the real one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(object_code, name)

    def processor(self) -> Processor:
        here = object_code.processor()
        amx = {one for one in here.features if one.startswith("amx")}
        return Processor(here.name, (here.features | {"avx512f", "avx512bf16"}) - amx)

    def has_pairs(self) -> bool:
        return True
