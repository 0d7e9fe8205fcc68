"""The whole second pass in one native kernel, from q and k to the sums that statistics keep; weights are not stored.

PyTorch passes over a block of weights about a dozen times, once per operation; the kernel computes a few rows and all
of their statistics while they are in cache. It has no threads of its own: heads are processed in parallel
(`side_by_side` in `run_statistics.py`), and Python's lock is released. `refuses` decides which calls it takes: a plain
softmax of scaled products in a band around the diagonal, whose statistics read nothing else than sums. PyTorch computes
all others.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.backends.native import library
from regard.backends.native.record import ROWS
from regard.backends.native.sizes import BLOCK, ROWS_AT_ONCE
from regard.masks.causal_and_window import Band, band_of
from regard.normalizers import Softmax
from regard.normalizers.softmax import Sums
from regard.observe.call_kinds import CallFromQK
from regard.observe.keep_qk import QueriesKeys
from regard.observe.statistics import Confidence, Distance, Entropy, Extent, HeatMap, Received, Statistic, Top
from regard.observe.statistics.default_statistics import bin_width
from regard.observe.watched_call import WatchedCall
from regard.observe.weight_rows import RowBlock
from regard.problem import Problem

__all__ = ["portions", "refuses"]

_READ = HeatMap, Top, Entropy, Received, Distance, Confidence, QueriesKeys
_TAME = 1e30  # finite scores, far from the range limit of float32
_PAIRS = 2**22  # visible pairs of a block of rows: some milliseconds, after which Ctrl-C is heard
_SCORES = 2**17  # scores of a group of rows, half of a core's L2 cache
_FEWEST, _MOST = 16, 32  # rows of a group


def refuses(call: WatchedCall, statistics: Sequence[Statistic]) -> str | None:
    """Return why the pass does not support a call with these statistics, or None if it does."""
    if not isinstance(call, CallFromQK):
        return "the model computed its weights itself"
    if call.device.type != "cpu":
        return f"it runs on CPU, and the queries are on {call.device}"
    if call.head_numbers is not None or call.chosen_rows is not None:
        return "heads or queries were chosen, and it computes all of them"
    return _refuses_statistics(statistics) or _refuses_problem(call) or library.refuses()


def _refuses_statistics(statistics: Sequence[Statistic]) -> str | None:
    for one in statistics:
        if type(one) not in _READ:  # what a subclass reads is unknown
            return f"the statistic {one.name!r} reads the weights themselves"
    return None


def _refuses_problem(call: CallFromQK) -> str | None:
    problem = call.own
    if torch.promote_types(problem.q.dtype, torch.float32) != torch.float32:
        return f"it computes in float32, and the queries are {problem.q.dtype}"
    if not problem.score.product:
        return f"the score is no scaled product, but {type(problem.score).__name__}"
    if type(problem.normalizer) is not Softmax:
        return f"the weights are no softmax, but {type(problem.normalizer).__name__}"
    if problem.mask is not None and band_of(problem.mask.mask) is None:
        return f"the mask is no band around the diagonal, but {type(problem.mask.mask).__name__}"
    parts = {
        "the scores have a softcap": problem.score.softcap,
        "the scores have a bias": problem.bias,
        "the weights have a sink": problem.sink,
        "the weights have a factor": problem.weight_factor,
    }
    for reason, part in parts.items():
        if part is not None:
            return reason
    return (
        None
        if not call.places or _is_tame(problem)
        else "queries or keys are empty, NaN, or so large that scores may overflow"
    )


def _is_tame(problem: Problem) -> bool:
    """Return whether no score is NaN or nearly as low as the most negative number."""
    if not (problem.q.numel() and problem.k.numel()):
        return False
    q, k = (max(-float(low), float(high)) for low, high in (problem.q.aminmax(), problem.k.aminmax()))
    return abs(problem.scale) * q * k * problem.q.shape[-1] < _TAME


@dataclass(frozen=True)
class _Requested:
    """The requested results: strongest keys of a row, bins of the map; the position of row 0 of the record among its
    keys, and the number of these before the call's own keys.
    """

    count: int
    tall: int
    broad: int
    offset: int
    shift: int


def _spanned(start: int, length: int, width: int) -> int:
    """Return the number of bins of a given width that a range overlaps."""
    return (start + length - 1) // width - start // width + 1


def portions(
    call: WatchedCall, statistics: Sequence[Statistic], extent: Extent, start: int
) -> list[Callable[[], Iterator[RowBlock]]]:
    """Return the rows of each sequence and head, a block at a time, with their statistics; `refuses` must have returned
    None.

    Args:
        call: The call whose first row is row `start` of the record.
        statistics: The statistics that read the rows.
        extent: The size of the record, this call included.
        start: The number of rows before the call.
    """
    assert isinstance(call, CallFromQK)
    problem = call.own
    asked = _Requested(
        count=max((one.k for one in statistics if isinstance(one, Top)), default=1),
        tall=bin_width(extent.queries),
        broad=bin_width(extent.keys),
        offset=extent.offset,
        shift=call.shift,
    )
    band = Band() if problem.mask is None else band_of(problem.mask.mask)
    assert band is not None
    packed = lru_cache(maxsize=torch.get_num_threads())(partial(_packed, problem))
    pass_ = _Pass(problem, start, asked, band.within(problem.queries + problem.keys + abs(problem.q_offset)))
    return [partial(pass_.head, batch_index, head, place, packed) for (batch_index, head), place in call.places.items()]


def _blocks_of(keys: int) -> int:
    return -(-keys // BLOCK)


def _packed(problem: Problem, batch_index: int, kv_head: int) -> Float[Tensor, "blocks dim block"]:
    """Return the keys in blocks, in which those of one element are contiguous, with zeros after the last key."""
    k = problem.k[batch_index, kv_head]
    padded = torch.zeros(_blocks_of(len(k)) * BLOCK, k.shape[1], dtype=torch.float32, device="cpu")
    padded[: len(k)] = k
    return padded.view(-1, BLOCK, k.shape[1]).transpose(1, 2).contiguous()


@dataclass(eq=False)
class _Pass:
    problem: Problem
    start: int
    asked: _Requested
    band: tuple[int, int]

    def head(
        self, batch_index: int, head: int, place: tuple[int, int], packed: Callable[[int, int], Tensor]
    ) -> Iterator[RowBlock]:
        """Yield the rows of a head, whose sequence and number in the record are `place`; where threads are free,
        several blocks are computed in parallel.
        """
        problem, threads = self.problem, torch.get_num_threads()
        rows = problem.queries + ROWS_AT_ONCE - 1  # they are computed four at a time
        q = torch.zeros(rows, problem.q.shape[3], dtype=torch.float32, device="cpu")
        q[: problem.queries] = problem.q[batch_index, head]
        q.mul_(problem.scale)  # in single precision: a product of bfloat16 with a number is rounded to bfloat16
        keys = packed(batch_index, head // (problem.heads // problem.kv_heads))
        compute = partial(self._rows, place, q, keys)
        if min(threads, len(self._blocks)) == 1:
            yield from map(compute, self._blocks)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="regard") as pool:
            for first in range(0, len(self._blocks), threads):
                yield from pool.map(compute, self._blocks[first : first + threads])

    @cached_property
    def _blocks(self) -> list[slice]:
        """Rows with about as many visible pairs each."""
        (before, after), problem = self.band, self.problem
        at = np.arange(problem.queries) + problem.q_offset
        pairs = np.cumsum((np.minimum(at + after + 1, problem.keys) - np.maximum(at - before, 0)).clip(0))
        count = max(1, -(-int(pairs[-1]) // _PAIRS))
        edges = np.searchsorted(pairs, pairs[-1] * np.arange(1, count) // count)
        bounds = [0, *sorted({int(one) for one in edges} - {0}), problem.queries]
        return [slice(*one) for one in itertools.pairwise(bounds)]

    def _columns(self, block: slice) -> tuple[int, int]:
        """Return the range of keys that some rows may see, in whole blocks, at least one."""
        (before, after), problem = self.band, self.problem
        first, last = block.start + problem.q_offset, block.stop - 1 + problem.q_offset
        left = min(max(0, first - before) // BLOCK, _blocks_of(problem.keys) - 1)
        right = max(left + 1, _blocks_of(max(0, min(problem.keys, last + after + 1))))
        return left * BLOCK, right * BLOCK

    def _rows(self, place: tuple[int, int], q: Tensor, packed: Tensor, block: slice) -> RowBlock:
        """Compute some rows of a head."""
        asked, (before, after), depth = self.asked, self.band, q.shape[1]
        left, right = self._columns(block)
        height, columns, seen = block.stop - block.start, right - left, min(self.problem.keys, right) - left
        start, shift = self.start + block.start, left + asked.shift
        count = min(asked.count, columns)
        bins = _spanned(start, height, asked.tall), _spanned(shift, columns, asked.broad)
        results: dict[str, npt.NDArray[Any]] = {
            "strongest": np.zeros((height, count), np.float32),
            "strongest_keys": np.zeros((height, count), np.int64),
            "row_sums": np.zeros((height, 4), np.float32),
            "received": np.zeros(columns, np.float64),
            "sums": np.zeros(bins, np.float32),
            "maxima": np.zeros(bins, np.float32),
        }
        widest = min(columns, max(0, before + after + 1) + _MOST + 2 * BLOCK)  # of a group, in whole blocks
        group = min(_MOST, max(_FEWEST, _SCORES // widest // ROWS_AT_ONCE * ROWS_AT_ONCE))
        row_bytes = (widest + BLOCK) * 4  # rows whose distance is a power of two would displace each other from L1
        buffers: dict[str, npt.NDArray[Any]] = {
            "workspace": np.empty(2 * columns + BLOCK, np.float32),
            "weights": np.empty(group * row_bytes, np.uint8),
        }
        numbers = {name: array.ctypes.data for name, array in (results | buffers).items()}
        numbers |= {"q": q.data_ptr() + block.start * depth * 4, "packed": packed.data_ptr() + left * depth * 4}
        numbers |= {"depth": depth, "rows": height, "columns": columns, "before": before, "after": after, "keys": seen}
        numbers |= {"diagonal": block.start + self.problem.q_offset - left, "first": start + asked.offset - shift}
        numbers |= {"group": group, "weights_row": row_bytes, "height": asked.tall, "width": asked.broad}
        numbers |= {"row_shift": start % asked.tall, "column_shift": shift % asked.broad, "bin_columns": bins[1]}
        numbers["count"] = count
        record = np.array([tuple(numbers[name] for name in ROWS.names or ())], ROWS)
        library.library().kernels["summarize_rows"].call(record.ctypes.data)
        found: dict[str, Any] = {name: torch.from_numpy(array)[None] for name, array in results.items()}
        found |= {"top": found.pop("strongest"), "keys": found.pop("strongest_keys")}
        total, centred, distances, most = found.pop("row_sums").unbind(-1)
        found |= {"sums": Sums(most, total), "centred": centred, "distances": distances, "bins": found.pop("sums")}
        nothing = torch.empty(1, height, 0, dtype=torch.float32, device="cpu")
        batch_index, head = place
        return _Rows(batch_index, slice(head, head + 1), start, left, nothing, asked=asked, **found)


@dataclass(eq=False, kw_only=True)
class _Rows(RowBlock):
    """Rows of one head without their weights; rows that see no key have 0 everywhere."""

    asked: _Requested
    top: Float[Tensor, "1 rows count"]
    keys: Int[Tensor, "1 rows count"]
    sums: Sums
    centred: Float[Tensor, "1 rows"]  # Σ p (s − peak)
    distances: Float[Tensor, "1 rows"]  # Σ p |i − j|
    received: Float[Tensor, "1 columns"]
    bins: Float[Tensor, "1 row_bins column_bins"]  # their sums
    maxima: Float[Tensor, "1 row_bins column_bins"]

    @property
    def columns(self) -> slice:
        """The range of the columns among all keys."""
        return slice(self.key_start, self.key_start + self.received.shape[1])

    def strongest(self, count: int) -> tuple[Float[Tensor, "1 rows count"], Int[Tensor, "1 rows count"]]:
        """Return the largest weights of each row and their columns."""
        return self.top[..., :count], self.keys[..., :count]

    @property
    def largest(self) -> Float[Tensor, "1 rows"]:
        """The largest weight of each row."""
        return self.top[..., 0]

    def pooled(
        self, tall: int, broad: int
    ) -> tuple[Float[Tensor, "1 row_bins column_bins"], Float[Tensor, "1 row_bins column_bins"]]:
        """Return sums and maxima over bins of the record, of the sizes for which they were computed."""
        assert (tall, broad) == (self.asked.tall, self.asked.broad)
        return self.bins, self.maxima

    @property
    def column_sums(self) -> Float[Tensor, "1 columns"]:
        """The sum of each column of the block."""
        return self.received

    def moment(self, first: int) -> Float[Tensor, "1 rows"]:
        """Return Σ_j p_ij |i − j| of each row, for the first row at the column for which it was computed."""
        assert first == self.start + self.asked.offset - self.key_start
        return self.distances

    @property
    def mass(self) -> Float[Tensor, "1 rows"]:
        """1 for each row that sees a key."""
        return (self.sums.total > 0).to(torch.float32)

    @cached_property
    def entropy(self) -> Float[Tensor, "1 rows"]:
        """ln(z / e ** peak) − Σ p (s − peak) of each row."""
        total = self.sums.total
        return torch.where(total > 0, total.log() - self.centred, 0.0).clamp_min(0.0)
