"""Experimental: additive scores in Triton, on CUDA and only where it is asked for by name.

Tested under Triton's interpreter on a CPU, and run on an H100 against the formula (benchmarks/on_cuda.py).
"""

from regard.backends.triton_additive.backend import AdditiveTriton

__all__ = ["AdditiveTriton"]
