"""Heads folded side by side: a thread for each core, and each with one thread of its own inside PyTorch.

The second pass is some sixty small operations a block. Where PyTorch divides each among its threads, all of them wait
for the last one sixty times a block; on a machine that does something else besides, each wait lasts until the scheduler
comes round (measured: twenty times the time, with one of two cores busy). Heads need nothing of each other.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager

import torch

from regard.capture.weight_rows import Rows
from regard.capture.weights_from_qk import Call

__all__ = ["is_worth_it", "side_by_side"]

_FEW = 2**22  # pairs of a whole call, below which threads cost more than they save


def is_worth_it(call: Call, portions: int, device: torch.device) -> bool:
    """Whether a call is long enough, on a device whose work is done by this process."""
    pairs = call.batch * call.heads * call.queries * call.keys
    return device.type == "cpu" and min(portions, torch.get_num_threads()) > 1 and pairs >= _FEW


def side_by_side(
    portions: Sequence[Callable[[], Iterator[Rows]]],
    fold: Callable[[Rows], None],
    within: Callable[[], AbstractContextManager[None]],
) -> None:
    """Fold all portions, as many at once as PyTorch may use threads.

    Portions that are left over, one of nine heads on two cores, are folded one after the other, with all threads inside
    PyTorch: else the other core would have nothing to do for as long as a portion takes.

    Args:
        portions: Rows of different heads.
        fold: Takes in a block of rows; it is called from several threads, never twice at once for one head.
        within: What each thread enters first: modes of PyTorch are those of a thread.
    """
    threads = min(torch.get_num_threads(), len(portions))
    even = len(portions) - len(portions) % threads
    _in_threads(portions[:even], fold, within, threads)
    with within():
        for portion in portions[even:]:
            for rows in portion():
                fold(rows)


def _in_threads(
    portions: Sequence[Callable[[], Iterator[Rows]]],
    fold: Callable[[Rows], None],
    within: Callable[[], AbstractContextManager[None]],
    threads: int,
) -> None:
    left, stopped, lock = iter(portions), threading.Event(), threading.Lock()
    before = torch.get_num_threads()

    def work() -> None:
        torch.set_num_threads(1)  # of this thread, and of those that begin from now on
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
            stopped.set()  # on Ctrl-C, or where another thread has failed, nobody takes a further block
            torch.set_num_threads(before)  # for threads that begin later; this one has kept its own number
    for one in done:
        one.result()
