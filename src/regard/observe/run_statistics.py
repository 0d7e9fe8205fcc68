"""One pass over the rows of a call for all statistics, and one during backward for those that need a gradient.

Heads are processed in parallel: one Python thread per core, each with a single thread inside PyTorch. The second pass
has some sixty small operations per block. If PyTorch splits each among its threads, all of them wait for the slowest
sixty times per block, and on a machine with other load each wait lasts until the scheduler switches (measured: twenty
times as slow, with one of two cores busy). Heads are independent of each other.
"""

import contextlib
import copy
import dataclasses
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.backends import preferred
from regard.backends.native.choice import takes_some
from regard.errors import ObservationError
from regard.observe import native_pass
from regard.observe.call_kinds import CallFromWeights
from regard.observe.requested_statistics import RESERVED, needs_of
from regard.observe.statistics import Extent, Statistic
from regard.observe.statistics.base import Need
from regard.observe.statistics.default_statistics import bin_width
from regard.observe.watched_call import WatchedCall
from regard.observe.weigh import plain_mode
from regard.observe.weight_rows import RowBlock
from regard.record.records import Layer, Record
from regard.record.statistic_axes import Axis, axes_of
from regard.torch_private import DisableTorchFunction

__all__ = ["Folding", "cannot_reorder", "conclude", "fold_together", "is_worth_it", "reorder", "side_by_side"]


class Folding:
    """The statistics of one call site: copies of these at their first use, but for those that other sites share, whose
    results `finish_shared` returns when all sites are finished.
    """

    def __init__(self, site: str, statistics: Sequence[Statistic], shared: Collection[Statistic] = ()) -> None:
        self._site, self._shared, self._is_own = site, shared, False
        self.fallback_reason: str | None = None  # why PyTorch has processed calls for which use_backend names a kernel
        self._now = [one for one in statistics if "gradient" not in needs_of(one)]
        self._later = [one for one in statistics if "gradient" in needs_of(one)]
        self._waiting = False  # for a backward pass
        self._calls = 0
        self._together = not self._later and all(map(_reads_rows_alone, self._now))  # whether rows may wait for others
        self._few: list[_Rows] = []  # those of small calls, which wait
        self._found: list[Mapping[str, Any]] | None = None  # of each statistic, if several sites were folded together

    def leave_out(self, need: Need) -> None:
        """Drop the statistics with a prerequisite that is not available here."""
        self._now = [one for one in self._now if need not in needs_of(one)]

    def _own(self) -> list[Statistic]:
        """Return the statistics of the rows, which are its own from now on."""
        if not self._is_own:
            self._is_own = True
            self._now, self._later = (
                [one if self._shares(one) else copy.deepcopy(one) for one in some] for some in (self._now, self._later)
            )
        return self._now

    def fold(self, extent: Extent, start: int) -> None:
        """Process the rows of a call, which begin at row `start` of the record."""
        self._calls += 1
        if not self._now and not self._later:
            return
        if self._together and (call := _small(extent)) is not None:
            for one in self._few:
                one.compute()
            self._few.append(_Rows(call, start, call.shift))
            if len(self._few) > 1:
                self._few[-1].compute()
            if sum(one.pairs for one in self._few) > _PAIRS_IN_WAIT:
                self._fold_waiting(extent)
            return
        self._own()
        self._fold_waiting(extent)
        extent = self._with_rows(extent)
        if self._later:
            self._wait(extent, start)
        wanted = _wants_native_pass(extent)
        reason = _refuses_native_pass(extent, start, _sweeping(self._now)) if wanted else None
        _sweep(self._now, extent, start, compiled=wanted and reason is None)
        if preferred() != "auto":
            self.fallback_reason = self.fallback_reason or reason
        if extent.around is not None and extent.around.is_sharded:  # no later call continues it
            with _by_itself(extent.device):
                self._found = extent.around.joined([one.finish(extent) for one in self._now if not self._shares(one)])

    def _fold_waiting(self, extent: Extent) -> None:
        """Process the rows that have waited, which `extent` includes."""
        if self._few:
            call, start = _joined(self._few, extent)
            self._few = []
            _sweep(self._own(), dataclasses.replace(extent, around=call, queries=start + call.queries), start)

    def reorder(self, rows: Tensor, extent: Extent) -> None:
        """Let each sequence go on from the results of another, as beam search reorders them; those of statistics that
        other sites share are reordered once for all.

        Raises:
            ObservationError: A statistic cannot do that.
        """
        self._few = [one.reordered(rows) for one in self._few]
        if not self._calls or (self._few and self._few[0].start == 0):
            return
        for statistic in (*self._now, *self._later):
            if not self._shares(statistic) and not reorder(statistic, rows, extent.device):
                raise ObservationError(cannot_reorder(statistic.name, self._here))

    def waiting_as(self, extent: Extent) -> Hashable | None:
        """Return what sites have in common whose rows, all of which wait, are processed together; None if some do
        not.
        """
        if not self._few or sum(one.queries for one in self._few) < extent.queries:
            return None
        sizes = extent.batch, extent.heads, extent.queries, extent.keys
        padding = None if extent.padding is None else extent.padding.identity
        return *sizes, extent.dtype, extent.device, extent.offset, extent.cross, padding

    def _with_rows(self, extent: Extent) -> Extent:
        """Return the extent with a call that has whole rows, where the sequence is sharded."""
        call = extent.around
        if call is None or not call.is_sharded:
            return extent
        if self._later:
            raise ObservationError(
                f"{self._later[0].name!r} needs the gradients of whole rows, and the sequence of {self._here} is "
                "sharded over ranks: leave it out, or watch the whole sequence in one process"
            )
        by_head = all(getattr(statistic, "by_head", False) for statistic in self._now)
        with _by_itself(extent.device):
            return dataclasses.replace(extent, around=call.with_rows(by_head=by_head))

    def _wait(self, extent: Extent, start: int) -> None:
        """Process the rows when the gradient of the output is known."""
        names = ", ".join(repr(one.name) for one in self._later)
        if self._calls > 1:
            raise ObservationError(f"{names} of {self._here} cannot go on through a cache: run the whole text at once")
        assert extent.around is not None
        call = extent.around
        four = None if call.output is None or call.output.ndim != 4 else call.output
        heads: Any = slice(None) if call.head_numbers is None else list(call.head_numbers)
        if four is None or (four.shape[0], four[:, heads].shape[1], four.shape[2]) != (
            *(call.batch, call.heads, call.queries),
        ):
            raise ObservationError(
                f"{names} needs the output of each head, and {self._here} does not show it as (batch, heads, queries, "
                "width): let it call F.scaled_dot_product_attention or regard.attention"
            )
        if not four.requires_grad:
            raise ObservationError(
                f"{names} needs gradients, and {self._here} ran without: leave out torch.no_grad() (of "
                "checkpoints: use_reentrant=False), and call backward() within the `with` block"
            )
        self._waiting = True
        # Detached: a hook with a reference to its own tensor would keep both, and the whole graph, alive.
        around, alone = call.having(output=four.detach()[:, heads]), extent.alone

        def tell(gradient: Tensor) -> None:
            if self._waiting:
                self._waiting = False
                known = around.having(gradient=gradient[:, heads])
                _sweep(self._later, dataclasses.replace(alone, around=known), start)

        four.register_hook(tell)

    @property
    def _here(self) -> str:
        return self._site or "this call"

    def finish(self, extent: Extent, /) -> dict[str, Any]:
        """Return the fields of a layer; results without a field are stored by their name."""
        if self._waiting:
            raise ObservationError(
                f"{self._later[0].name!r} needs gradients, and none reached {self._here}: call backward() of a loss "
                "that depends on it within the `with` block"
            )
        self._fold_waiting(extent)
        fields, others = dict[str, Any](), dict[str, Any]()
        found = self._found
        if found is None:
            self._own()
        statistics = [one for one in (*self._now, *self._later) if not self._shares(one)]
        if found is None:
            with _by_itself(extent.device):
                found = [statistic.finish(extent) for statistic in statistics]
        for statistic, results in zip(statistics, found, strict=True):
            for name, result in results.items():
                if name in Layer.__dataclass_fields__ and statistic.name in RESERVED:
                    fields[name] = result
                else:
                    others[name] = self._checked(statistic, name, result, extent)
        return {**fields, "statistics": others, "axes": axes_of(statistics, others)}

    def finish_shared(self, statistic: Statistic, extent: Extent) -> tuple[dict[str, Any], dict[str, tuple[Axis, ...]]]:
        """Return the results of a statistic that other sites share, by name, and their axes."""
        with _by_itself(extent.device):
            results = statistic.finish(extent)
        found = {name: self._checked(statistic, name, result, extent) for name, result in results.items()}
        return found, axes_of([statistic], found)

    def _shares(self, statistic: Statistic) -> bool:
        return any(statistic is other for other in self._shared)

    def _checked(self, statistic: Statistic, name: str, found: Any, extent: Extent) -> Any:
        """Return the result of a user's statistic, checked for types that the record supports."""
        array = np.asarray(found)
        if name != statistic.name and not name.startswith(f"{statistic.name}."):
            raise ObservationError(
                f"the statistic {statistic.name!r} must give its results under that name or {statistic.name + '.…'!r}, "
                f"got {name!r}"
            )
        if array.shape[:2] not in ((extent.batch, extent.heads), (extent.batch, 1)):
            raise ObservationError(
                f"the statistic {name!r} must give (batch, heads, ...), here ({extent.batch}, {extent.heads}, ...) or "
                f"with heads 1 where all share it, got shape {array.shape}"
            )
        return array


_PAIRS_IN_WAIT = 2**18  # of queries and keys of one site, beyond which its rows are processed: 1 MiB in float32


class _Rows:
    """The rows of a small call, which wait to be processed with those of later calls and of other layers: for few rows,
    the some thirty operations of the statistics cost many times what the weights do.
    """

    def __init__(self, call: WatchedCall, start: int, shift: int) -> None:
        """Take a call with memory of its own; `start` and `shift` are the first of the record's rows and columns."""
        self.call: WatchedCall | None = call
        self.start, self.shift, self.queries = start, shift, call.queries
        self.pairs = call.batch * call.heads * call.queries * call.keys
        self._weights: Tensor | None = None

    def compute(self) -> Float[Tensor, "batch heads rows columns"]:
        """Return the weights, which are kept from now on instead of queries and keys."""
        if self._weights is None:
            assert self.call is not None
            with DisableTorchFunction(), plain_mode(self.call.device):
                self._weights, self.call = self.call.every_weight(), None
        return self._weights

    def reordered(self, rows: Tensor) -> "_Rows":
        """Return the rows of each sequence's new beginning."""
        self._weights = self.compute()[rows]
        return self


def _reads_rows_alone(statistic: Statistic) -> bool:
    """Return whether a statistic of regard's depends on nothing but the rows and their places."""
    return getattr(statistic, "reads_rows_alone", False) and type(statistic).__module__.startswith("regard.")


def _small(extent: Extent) -> WatchedCall | None:
    """Return a call with memory of its own, if its rows are few enough to wait for others."""
    call = extent.around
    if call is None or call.is_sharded or call.chosen_rows is not None or call.head_numbers is not None:
        return None
    if call.batch * call.heads * call.queries * call.keys > _PAIRS_IN_WAIT or preferred() != "auto":
        return None
    return call.owned()


def _joined(few: Sequence[_Rows], extent: Extent) -> tuple[CallFromWeights, int]:
    """Return rows of several calls as those of one, and the first of them."""
    first, last = few[0], few[-1]
    weights = first.compute()
    if len(few) > 1 or first.shift or weights.shape[3] != extent.keys:
        with _by_itself(extent.device):
            rows = last.start + last.queries - first.start
            weights = weights.new_zeros(*weights.shape[:2], rows, extent.keys)
            for one in few:
                found, top = one.compute(), one.start - first.start
                width = min(found.shape[3], extent.keys - one.shift)  # behind it is the room of a static cache
                weights[:, :, top : top + one.queries, one.shift : one.shift + width] = found[..., :width]
    return CallFromWeights(weights), first.start


def reorder(statistic: Statistic, rows: Tensor, device: torch.device) -> bool:
    """Let each sequence go on from the results of another, and return whether the statistic can do that."""
    if (method := getattr(statistic, "reorder", None)) is None:
        return False
    with _by_itself(device):
        method(rows)
    return True


def cannot_reorder(statistic: str, site: str) -> str:
    """Return why a statistic does not follow beam search."""
    return (
        f"beam search has reordered the sequences of {site}, and {statistic!r} has no method `reorder(rows)` to follow "
        "it: leave it out, or watch greedy decoding or sampling (num_beams=1)"
    )


def conclude(statistic: Statistic, record: Record, device: torch.device) -> None:
    """Show a statistic over all layers of a pass the record of the pass, if it has a method for it."""
    if (method := getattr(statistic, "conclude", None)) is not None:
        with _by_itself(device):
            method(record)


def fold_together(waiting: Sequence[tuple[Folding, Extent]]) -> None:
    """Process the rows of call sites of the same sizes together, as heads of one, if none was processed before."""
    alike: dict[Hashable, list[tuple[Folding, Extent]]] = {}
    for folding, extent in waiting:
        if (key := folding.waiting_as(extent)) is not None:
            alike.setdefault(key, []).append((folding, extent))
    for sites in alike.values():
        some = max(1, _PAIRS_AT_ONCE // max(1, sites[0][1].queries * sites[0][1].keys * sites[0][1].heads))
        for at in range(0, len(sites), some):
            _fold_as_one(sites[at : at + some])


_PAIRS_AT_ONCE = 2**20


def _fold_as_one(sites: Sequence[tuple[Folding, Extent]]) -> None:
    first, extent = sites[0]
    calls = [folding._few[0].call for folding, _ in sites if len(folding._few) == 1 and not folding._few[0].shift]
    whole = calls[0].as_heads(calls) if len(calls) == len(sites) and calls[0] is not None else None
    with DisableTorchFunction(), _by_itself(extent.device):
        if whole is not None and whole.keys == extent.keys:
            matrix = whole.every_weight()
        else:
            matrix = torch.cat([_joined(folding._few, one)[0].weights for folding, one in sites], 1)
    record = dataclasses.replace(extent, heads=matrix.shape[1], around=CallFromWeights(matrix))
    _sweep(first._own(), record, 0)
    with _by_itself(extent.device):
        found = [statistic.finish(record) for statistic in first._now]
    for at, (folding, _) in enumerate(sites):
        heads = slice(at * extent.heads, (at + 1) * extent.heads)
        folding._few = []
        folding._found = [{name: _of_heads(one, heads) for name, one in results.items()} for results in found]


def _of_heads(result: Any, heads: slice) -> Any:
    """Return an array's part; settings such as the width of bins are those of all."""
    return np.ascontiguousarray(result[:, heads]) if isinstance(result, np.ndarray) else result


_LONG = 512  # keys from which on the pass was measured to be faster


def _wants_native_pass(extent: Extent) -> bool:
    """Return whether the compiled pass is to process a call: for regard.use_backend, or because the call is long."""
    backend = preferred()
    return backend == "native" or (backend == "auto" and extent.keys >= _LONG and takes_some(extent.device))


def _refuses_native_pass(extent: Extent, start: int, statistics: Sequence[Statistic]) -> str | None:
    """Return why the compiled pass does not support the rows from `start` on, or None if it does."""
    assert extent.around is not None
    reason = native_pass.refuses(extent.around, statistics)
    if reason is None and extent.padding is not None and bool(extent.padding.queries[:, start:].any()):
        return "some rows are padding, which it does not leave out of its sums"
    return reason


def _sweeping(statistics: list[Statistic]) -> list[Statistic]:
    return [one for one in statistics if getattr(one, "sweeps", True)]


def _sweep(statistics: list[Statistic], extent: Extent, start: int, *, compiled: bool = False) -> None:
    with _by_itself(extent.device):
        for statistic in statistics:
            statistic.start(extent)
        folding = _sweeping(statistics)
        if not folding:
            return
        assert extent.around is not None
        around = extent.around.having(wants_lse=any(map(_may_read_lse, folding)))

        def fold(rows: RowBlock) -> None:
            rows.key_start += around.shift
            for statistic in folding:
                statistic.fold(rows)

        if compiled:
            portions = native_pass.portions(around, folding, extent, start)
        else:
            portions = around.portions(start, bin_width(extent.queries))
        _fold_all(portions, folding, extent, fold)


def _may_read_lse(statistic: Statistic) -> bool:
    """Return whether a statistic reads the log-sum-exps of rows; one of a user's own may."""
    return getattr(statistic, "wants_lse", not type(statistic).__module__.startswith("regard."))


Portions = list[Callable[[], Iterator[RowBlock]]]


def _fold_all(portions: Portions, folding: list[Statistic], extent: Extent, fold: Callable[[RowBlock], None]) -> None:
    """Process all rows, those of different heads in parallel where that is worth it."""
    assert extent.around is not None
    by_head = all(getattr(one, "by_head", False) for one in folding)
    if by_head and is_worth_it(extent.around, len(portions), extent.device):
        side_by_side(portions, fold, lambda: _by_itself(extent.device))
        return
    for portion in portions:
        for rows in portion():
            fold(rows)


@contextlib.contextmanager
def _by_itself(device: torch.device) -> Iterator[None]:
    """Leave the model's modes inside the block: under autocast, products would have the precision of bfloat16, and
    tensors made in inference mode cannot be modified by a later call outside of it. Modes of the caller do not see the
    computations.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(DisableTorchFunction())
        if torch.amp.is_autocast_available(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.no_grad())  # which leaving inference mode has enabled
        yield


_FEW = 2**22  # number of pairs of a call below which threads cost more than they save


def is_worth_it(call: WatchedCall, portions: int, device: torch.device) -> bool:
    """Return whether a call is long enough, on a device whose work is done by this process."""
    pairs = call.batch * call.heads * call.queries * call.keys
    return device.type == "cpu" and min(portions, torch.get_num_threads()) > 1 and pairs >= _FEW


def side_by_side(
    portions: Sequence[Callable[[], Iterator[RowBlock]]],
    fold: Callable[[RowBlock], None],
    within: Callable[[], AbstractContextManager[None]],
) -> None:
    """Process all portions, as many in parallel as PyTorch may use threads.

    Remaining portions, such as one of nine heads on two cores, are processed one after the other with all threads
    inside PyTorch, since the other cores would be idle otherwise.

    Args:
        portions: Rows of different heads.
        fold: A function that processes a block of rows; it is called from several threads, but not concurrently for one
            head.
        within: A context manager that each thread enters first, because modes of PyTorch are per thread.
    """
    threads = min(torch.get_num_threads(), len(portions))
    even = len(portions) - len(portions) % threads
    _in_threads(portions[:even], fold, within, threads)
    with within():
        for portion in portions[even:]:
            for rows in portion():
                fold(rows)


def _in_threads(
    portions: Sequence[Callable[[], Iterator[RowBlock]]],
    fold: Callable[[RowBlock], None],
    within: Callable[[], AbstractContextManager[None]],
    threads: int,
) -> None:
    left, stopped, lock = iter(portions), threading.Event(), threading.Lock()
    before = torch.get_num_threads()

    def work() -> None:
        torch.set_num_threads(1)  # for this thread, and for threads that start later
        with within():
            while not stopped.is_set():
                with lock:
                    portion = next(left, None)
                if portion is None:
                    return
                for rows in portion():
                    fold(rows)
                    if stopped.is_set():
                        return

    with ThreadPoolExecutor(threads, thread_name_prefix="regard") as pool:
        try:
            running = [pool.submit(work) for _ in range(threads)]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()  # after Ctrl-C or an error in another thread, no further block is processed
            torch.set_num_threads(before)  # for threads that start later; this one has its own number
    for one in done:
        one.result()
