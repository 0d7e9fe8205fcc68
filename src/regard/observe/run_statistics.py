"""One pass over the rows of a call for all statistics, and one during backward for those that need a gradient.

Heads are processed in parallel: one Python thread per core, each with a single thread inside PyTorch. The second pass
has some sixty small operations per block. If PyTorch splits each among its threads, all of them wait for the slowest
sixty times per block, and on a machine with other load each wait lasts until the scheduler switches (measured: twenty
times as slow, with one of two cores busy). Heads are independent of each other.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.backends import preferred
from regard.backends.native.choice import takes_some
from regard.errors import ObservationError
from regard.observe import native_pass
from regard.observe.requested_statistics import RESERVED, needs_of
from regard.observe.statistics import Extent, Statistic
from regard.observe.statistics.base import Need
from regard.observe.statistics.default_statistics import bin_width
from regard.observe.watched_call import WatchedCall
from regard.observe.weight_rows import RowBlock
from regard.record.records import Layer
from regard.record.statistic_axes import axes_of
from regard.torch_private import DisableTorchFunction

__all__ = ["Folding", "is_worth_it", "side_by_side"]


class Folding:
    """The statistics of one call site."""

    def __init__(self, site: str, statistics: tuple[Statistic, ...]) -> None:
        self._site = site
        self.fallback_reason: str | None = None  # why PyTorch has processed calls for which use_backend names a kernel
        self._now = [one for one in statistics if "gradient" not in needs_of(one)]
        self._later = [one for one in statistics if "gradient" in needs_of(one)]
        self._waiting = False  # for a backward pass
        self._calls = 0

    def leave_out(self, need: Need) -> None:
        """Drop the statistics with a prerequisite that is not available here."""
        self._now = [one for one in self._now if need not in needs_of(one)]

    def fold(self, extent: Extent, start: int) -> None:
        """Process the rows of a call, which begin at row `start` of the record."""
        self._calls += 1
        self._check_parts(extent)
        if self._later:
            self._wait(extent, start)
        wanted, reason = _wants_native_pass(extent), None
        if wanted:
            assert extent.around is not None
            reason = native_pass.refuses(extent.around, _sweeping(self._now))
        _sweep(self._now, extent, start, compiled=wanted and reason is None)
        if preferred() != "auto":
            self.fallback_reason = self.fallback_reason or reason

    def _check_parts(self, extent: Extent) -> None:
        """Raise if the sequence is sharded and a statistic needs whole rows."""
        if extent.around is None or not extent.around.is_sharded:
            return
        for one in (*self._now, *self._later):
            if not getattr(one, "takes_parts", False):
                way = 'keep="qk", which computes any of them on demand' if one.name == "weights" else "leave it out"
                raise ObservationError(
                    f"{one.name!r} needs whole rows, and the sequence of {self._here} is sharded over ranks, of which "
                    f"none has them: {way}, or watch the whole sequence in one process"
                )

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
        fields, others = dict[str, Any](), dict[str, Any]()
        for statistic in (*self._now, *self._later):
            with _by_itself(extent.device):
                results = statistic.finish(extent)
            for name, found in results.items():
                if name in Layer.__dataclass_fields__ and statistic.name in RESERVED:
                    fields[name] = found
                else:
                    others[name] = self._checked(statistic, name, found, extent)
        return {**fields, "statistics": others, "axes": axes_of((*self._now, *self._later), others)}

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


_LONG = 512  # keys from which on the pass was measured to be faster


def _wants_native_pass(extent: Extent) -> bool:
    """Return whether the compiled pass is to process a call: for regard.use_backend, or because the call is long."""
    backend = preferred()
    return backend == "native" or (backend == "auto" and extent.keys >= _LONG and takes_some(extent.device))


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
        if around.is_sharded:
            for statistic in folding:
                statistic.reduce_ranks(around.all_reduce)  # type: ignore[attr-defined]


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
