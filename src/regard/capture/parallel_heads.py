"""Process heads in parallel: one Python thread per core, each with a single thread inside PyTorch.

The second pass has some sixty small operations per block. If PyTorch splits each among its threads, all of them wait
for the slowest sixty times per block, and on a machine with other load each wait lasts until the scheduler switches
(measured: twenty times as slow, with one of two cores busy). Heads are independent of each other.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager

import torch

from regard.capture.weight_rows import Rows
from regard.capture.weights_from_qk import Call

__all__ = ["is_worth_it", "side_by_side"]

_FEW = 2**22  # number of pairs of a call below which threads cost more than they save


def is_worth_it(call: Call, portions: int, device: torch.device) -> bool:
    """Return whether a call is long enough, on a device whose work is done by this process."""
    pairs = call.batch * call.heads * call.queries * call.keys
    return device.type == "cpu" and min(portions, torch.get_num_threads()) > 1 and pairs >= _FEW


def side_by_side(
    portions: Sequence[Callable[[], Iterator[Rows]]],
    fold: Callable[[Rows], None],
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
    portions: Sequence[Callable[[], Iterator[Rows]]],
    fold: Callable[[Rows], None],
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
