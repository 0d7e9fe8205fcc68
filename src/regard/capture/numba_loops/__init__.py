"""The statistics of a block of rows in one compiled loop, which computes all of them while a row is in cache.

PyTorch passes over a block about a dozen times, once per operation. numba compiles the same sums and maxima to one
pass, without threads of its own: heads are processed in parallel (`side_by_side`), and the loop releases Python's
lock. The rows themselves (product, mask, softmax) are computed by PyTorch, so every score, mask and bias of a softmax
is supported. It is selected by `regard.use_backend("numba")`, because numba is not a dependency of regard.
"""

from regard.capture.numba_loops.dispatch import portions, refuses

__all__ = ["portions", "refuses"]
