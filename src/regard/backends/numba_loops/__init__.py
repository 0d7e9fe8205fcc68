"""Softmax attention on CPU in loops that numba compiles, for those who ask for it by name: backend="numba".

PyTorch's fused kernel reaches the speed of its matrix products in float32 over long texts, and a fraction of it in
bfloat16, under masks, in short texts and in decoding. These loops keep scores in a core's own cache and sums in its
registers, in float32 or in pairs of bfloat16, and visit the blocks that the mask leaves.
"""

from regard.backends.numba_loops.backend import Compiled

__all__ = ["Compiled"]
