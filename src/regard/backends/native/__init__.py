"""Attention on CPU by kernels in C++, which the wheel carries: where `choice.py` says so, and by name.

PyTorch's fused kernel reaches the speed of its matrix products in float32 for long texts, but only a fraction of it in
bfloat16, with masks, for short texts and in decoding. These kernels hold scores in a core's cache and sums in its
registers, in float32 or in pairs of bfloat16, and visit only the blocks that the mask leaves visible. Their sources are
in native/ of the repository; native/loops.cpp begins with their plan.
"""

from regard.backends.native.backend import Native

__all__ = ["Native"]
