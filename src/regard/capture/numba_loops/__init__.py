"""The folding of rows as one compiled loop: what the statistics ask of a block is found while each row is in cache.

In PyTorch a block is swept about a dozen times, once for each operation. numba compiles the same sums and maxima into
one sweep, without threads of its own: heads are folded side by side (`side_by_side`), and the loop lets go of Python's
lock. The rows themselves (product, mask, softmax) are PyTorch's as ever, so any score, mask and bias of a softmax is
served. Chosen by `regard.use_backend("numba")`, as numba is no dependency of regard.
"""

from regard.capture.numba_loops.dispatch import portions, refuses

__all__ = ["portions", "refuses"]
