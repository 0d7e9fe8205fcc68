"""Experimental: additive scores in Triton, on CUDA and only where it is asked for by name.

Tested under Triton's interpreter on a CPU and compiled for sm_90 there; it has not been run on a GPU.
"""

from regard.backends.triton_additive.backend import AdditiveTriton

__all__ = ["AdditiveTriton"]
