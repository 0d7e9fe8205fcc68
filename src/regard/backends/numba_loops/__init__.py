"""Softmax attention on CPU in loops compiled by numba: where `auto.py` says so, and by name.

PyTorch's fused kernel reaches the speed of its matrix products in float32 for long texts, but only a fraction of it in
bfloat16, with masks, for short texts and in decoding. These loops hold scores in a core's cache and sums in its
registers, in float32 or in pairs of bfloat16, and visit only the blocks that the mask leaves visible.
"""

from regard.backends.numba_loops.backend import Compiled

__all__ = ["Compiled"]
