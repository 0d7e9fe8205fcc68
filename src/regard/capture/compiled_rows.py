"""The rows of a few heads by a compiled loop, where `auto` takes the loops: one call for PyTorch's fifteen operators.

What a tap adds to a decoding step is mostly the time in which operators are found and called, on caches that the
weights of the model have emptied. The loop is one of numba's (`backends/numba_loops/head_rows.py`), without threads of
its own. It reads q, k and the mask where they lie, and writes the weights alone.
"""

import functools
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from regard.backends import preferred
from regard.backends.numba_loops import object_code
from regard.backends.numba_loops.auto import takes_some
from regard.backends.numba_loops.kernel_args import HEAD_ROWS
from regard.capture.weights_from_qk import HIDDEN

__all__ = ["weights_by_loop"]

_MOST_ROWS = 8  # more are a product of matrices, which PyTorch computes faster
_MOST_PRODUCTS = 1 << 21  # of one thread; of more, PyTorch's threads are faster than finding its operators is slow
_JOB = struct.Struct("".join("f" if HEAD_ROWS[name] == np.float32 else "q" for name in HEAD_ROWS.names or ()))


def weights_by_loop(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    rows: slice,
    heads: tuple[int, ...],
    mask: Tensor | None,
    *,
    is_causal: bool,
    scale: float,
) -> Float[Tensor, "batch heads rows keys"] | None:
    """Return weights as `row_weights.weights_of_sdpa` does, or None for a call that the loop does not take."""
    (batch, every, _, depth), count, kv_heads, keys = q.shape, rows.stop - rows.start, k.shape[1], k.shape[2]
    *q_strides, q_step = q.stride()
    *k_strides, k_step = k.stride()
    alike = type(q) is type(k) is Tensor and q.dtype is k.dtype is torch.float32 and q_step == k_step == 1
    few = count <= _MOST_ROWS and batch * len(heads) * count * keys * depth <= _MOST_PRODUCTS
    taken = alike and few and preferred() in ("auto", "numba") and takes_some(q.device)
    if not taken or (hidden := _placed(mask, keys)) is None:
        return None
    weights = q.new_empty(batch, len(heads), count, keys)
    numbers, address = _numbers_of(heads)
    given = q.data_ptr(), *q_strides, k.data_ptr(), *k_strides, *hidden, weights.data_ptr(), address
    sizes = batch, len(numbers), every // kv_heads, rows.start, count, keys, depth
    job = _JOB.pack(*given, *sizes, is_causal, scale, HIDDEN)
    object_code.loops().functions["weigh_rows"](job)
    return weights


def _placed(mask: Tensor | None, keys: int) -> Sequence[int] | None:
    """Return the address of a mask, its strides, and whether it hides, or None if the loop cannot read it."""
    if mask is None:
        return 0, 0, 0, 0, 0
    known = type(mask) is Tensor and mask.dtype in (torch.bool, torch.float32) and 2 <= mask.ndim <= 4
    if not known or mask.shape[-1] != keys or mask.stride(-1) != 1:
        return None
    strides = [step if length > 1 else 0 for length, step in zip(mask.shape[:-1], mask.stride()[:-1], strict=True)]
    return mask.data_ptr(), *(0,) * (3 - len(strides)), *strides, mask.dtype == torch.bool


@functools.lru_cache(1024)
def _numbers_of(heads: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the numbers of the heads in memory, and their address."""
    numbers = np.array(heads, np.int64)
    return numbers, numbers.ctypes.data
