"""The statistics of a block of rows in one compiled loop, which computes all of them while a row is in cache.

PyTorch passes over a block about a dozen times, once per operation. The loop is one of numba's loops
(`backends/numba_loops/weight_statistics.py`), without threads of its own: heads are processed in parallel
(`side_by_side`), and Python's lock is released. The rows themselves (product, mask, softmax) are computed by PyTorch,
so every score, mask and bias of a softmax is supported. Where the loops are compiled, long calls take it without being
asked; with `regard.use_backend("numba")` all do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.backends.numba_loops import object_code
from regard.backends.numba_loops.kernel_args import BLOCK_OF_WEIGHTS, CHUNK, FROM_QK
from regard.capture import compiled_pass
from regard.capture.compiled_pass import Requested, reads_sums_only, spanned
from regard.capture.statistics import Extent, Statistic, Top
from regard.capture.statistics.default_statistics import bin_width
from regard.capture.watched_call import WatchedCall
from regard.capture.weight_rows import RowBlock
from regard.capture.weights_from_qk import CallFromQK
from regard.normalizers import Softmax

__all__ = ["portions", "refuses"]


def refuses(call: WatchedCall, extent: Extent) -> str | None:
    """Return why the compiled loop does not support a call, or None if it does.

    Weights of a softmax are not negative, so their bits as integers have the same order.
    """
    if extent.device.type != "cpu":
        return f"it runs on CPU, and the queries are on {extent.device}"
    if not isinstance(call, CallFromQK):
        return "the model computed its weights itself"
    if not isinstance(call.problem.normalizer, Softmax):
        return f"the weights are no softmax, but {type(call.problem.normalizer).__name__}"
    if call.problem.weight_factor is not None:
        return "the weights have a factor"
    return object_code.refuses()


def portions(
    call: WatchedCall, statistics: Sequence[Statistic], extent: Extent, start: int
) -> list[Callable[[], Iterator[RowBlock]]]:
    """Return the portions of the call, with each block of rows processed by the loop before it is passed on."""
    tall, broad = bin_width(extent.queries), bin_width(extent.keys)
    count = max((one.k for one in statistics if isinstance(one, Top)), default=1)
    shift = extent.around.shift if extent.around is not None else 0
    asked = Requested(count, tall, broad, extent.offset, shift)
    if isinstance(call, CallFromQK) and reads_sums_only(call, statistics):
        return compiled_pass.portions(call, start, asked)
    return [partial(_folded, portion, asked) for portion in call.portions(start, tall)]


@dataclass(frozen=True, eq=False)
class _Sums:
    """The results of one pass over a block, except the strongest keys."""

    dot: Float[Tensor, "heads rows"]  # Σ p s
    mass: Float[Tensor, "heads rows"]  # Σ p
    moment: Float[Tensor, "heads rows"]  # Σ p |i − j|
    received: Float[Tensor, "heads columns"]
    sums: Float[Tensor, "heads row_bins column_bins"]
    maxima: Float[Tensor, "heads row_bins column_bins"]


@dataclass(eq=False, kw_only=True)
class _Folded(RowBlock):
    """Rows with the data of the standard statistics; other statistics are computed from the weights."""

    asked: Requested
    found: _Sums

    def pooled(
        self, tall: int, broad: int
    ) -> tuple[Float[Tensor, "heads row_bins column_bins"], Float[Tensor, "heads row_bins column_bins"]]:
        """Return sums and maxima over bins of the record, of which the outer ones may be cut."""
        if (tall, broad) != (self.asked.tall, self.asked.broad):
            return super().pooled(tall, broad)
        return self.found.sums, self.found.maxima

    @property
    def column_sums(self) -> Float[Tensor, "heads columns"]:
        """The sum of each column of the block."""
        return self.found.received

    @property
    def mass(self) -> Float[Tensor, "heads rows"]:
        """The sum of each row."""
        return self.found.mass

    def dot_scores(self) -> Float[Tensor, "heads rows"]:
        """Return Σ_j p_ij s_ij of each row."""
        return self.found.dot

    def moment(self, first: int) -> Float[Tensor, "heads rows"]:
        """Return Σ_j p_ij |i − j| of each row, for a first row at column `first`."""
        if first != self.start + self.asked.offset - self.key_start:
            return super().moment(first)
        return self.found.moment


def _folded(portion: Callable[[], Iterator[RowBlock]], asked: Requested) -> Iterator[RowBlock]:
    for rows in portion():
        yield _fold(rows, asked)


def _fold(rows: RowBlock, asked: Requested) -> RowBlock:
    """Return the rows with the loop's results, or unchanged rows if a weight is NaN, which has no order."""
    assert rows.scores is not None  # those of a softmax
    weights, scores = rows.weights.contiguous(), rows.scores.to(rows.weights.dtype).contiguous()
    heads, height, columns = weights.shape
    dtype = weights.numpy().dtype
    start, key_start = rows.start, rows.key_start + asked.shift
    bins = spanned(start, height, asked.tall), spanned(key_start, columns, asked.broad)
    count = min(asked.count, columns)
    assert columns % CHUNK == 0
    top, keys = np.zeros((heads, height, count), dtype), np.zeros((heads, height, count), np.int64)
    per_row = np.zeros((3, heads, height), dtype)
    received = np.zeros((heads, columns), np.float64)
    sums, maxima = np.zeros((2, heads, *bins), dtype)
    room = np.empty(3 * columns + CHUNK, dtype)
    held = {"top": top, "keys": keys, "per_row": per_row, "received": received, "sums": sums, "maxima": maxima}
    numbers = {name: one.ctypes.data for name, one in (held | {"room": room}).items()}
    numbers |= {"weights": weights.data_ptr(), "scores": scores.data_ptr(), "size": dtype.itemsize, "count": count}
    numbers |= {"heads": heads, "rows": height, "columns": columns, "bin_rows": bins[0], "bin_columns": bins[1]}
    numbers |= {"row_shift": start % asked.tall, "column_shift": key_start % asked.broad}
    numbers |= {"tall": asked.tall, "broad": asked.broad, "first": start + asked.offset - key_start}
    numbers |= dict.fromkeys(FROM_QK, 0)
    job = np.array([tuple(numbers[name] for name in BLOCK_OF_WEIGHTS.names or ())], BLOCK_OF_WEIGHTS)
    object_code.loops().functions[f"sweep_{dtype.name}"](job.ctypes.data)
    if not np.isfinite(per_row).all():
        return rows
    told = {one.name: getattr(rows, one.name) for one in fields(RowBlock) if one.init}
    told["_strongest"] = {asked.count: (torch.from_numpy(top), torch.from_numpy(keys))}
    found = _Sums(*torch.from_numpy(per_row), *map(torch.from_numpy, (received, sums, maxima)))
    return _Folded(**told, asked=asked, found=found)
