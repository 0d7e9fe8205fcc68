"""The native kernels in a process that forks, is interrupted, has many threads of its own, or calls them all day.

Tests that may hang, crash or use up memory run in processes of their own, which a timeout ends with all their children.
In a child of fork PyTorch's own threads do not exist: what is asked there of 2 threads is small enough for PyTorch to
stay on one, and trains on one, as PyTorch's own products do not end there on two.
"""

import gc
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard import masks, positions
from regard.backends.native import threads

TESTS = Path(__file__).parents[1]
Results = tuple[Tensor, ...]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def drawn(queries: int, keys: int, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    """Four heads that share keys: few key–value heads are divided among threads; no tensor has 2¹⁵ numbers."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (1, 4, queries, 32), (1, 1, keys, 32), (1, 1, keys, 32)
    return [torch.randn(*size, generator=generator).to(dtype) for size in sizes]


CAUSAL, WINDOW = masks.Causal(), masks.Causal() & masks.Window(90)


def many_queries(seed: int = 0) -> Results:
    return (regard.attention(*drawn(250, 250, seed=seed), mask=CAUSAL, backend="native"),)


def in_bfloat16(seed: int = 0) -> Results:
    q, k, v = drawn(200, 250, dtype=torch.bfloat16, seed=seed)
    return (regard.attention(q, k, v, mask=WINDOW, backend="native"),)


def one_query(seed: int = 0) -> Results:
    return (regard.attention(*drawn(1, 1000, seed=seed), backend="native"),)


def with_dropout(seed: int = 0) -> Results:
    generator = torch.Generator().manual_seed(seed)
    return (regard.attention(*drawn(70, 300, seed=seed), dropout=0.3, generator=generator, backend="native"),)


def training(seed: int = 0) -> Results:
    table = torch.randn(41, 4, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    leaves = [x.requires_grad_() for x in drawn(250, 250, seed=seed)]
    bias = positions.RelativePositionBias(table)
    output = regard.attention(*leaves, mask=CAUSAL, bias=bias, backend="native")
    return (output.detach(), *torch.autograd.grad(output.square().sum(), [*leaves, table]))


FORWARD = many_queries, in_bfloat16, one_query, with_dropout
CALLS = *FORWARD, training


def digest(calls: tuple[Callable[[int], Results], ...], seed: int = 0) -> str:
    """The bits of all results."""
    bits = hashlib.sha256()
    for call in calls:
        for result in call(seed):
            bits.update(result.contiguous().view(torch.uint8).numpy().tobytes())
    return bits.hexdigest()


def run_apart(function: Callable[[], None], *, seconds: float = 120) -> str:
    """Run a function of this file in a process of its own, and return what it prints; it must end in time and well."""
    source = f"from backends.test_native_processes import {function.__name__} as run; run()"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(TESTS)!r}); {source}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"{function.__name__} has not ended after {seconds} seconds")
    assert process.returncode == 0, f"{function.__name__} ended with {process.returncode}: {err[-3000:]}"
    return out


# Memory ---------------------------------------------------------------------------------------------------------------

CALLED, WARMING = 100_000, 30_000  # a thousand calls of the same kind are remembered at most, then none: twice
MOST_GROWTH = 2**20  # bytes; 10 for each call


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def small_calls() -> Iterator[Callable[[], Any]]:
    """Calls of all kinds without end: known ones, one token of four, new masks, dropout, training."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = drawn(20, 20)
    row = q[:, :, :1]
    wide = [x.bfloat16() for x in (q, k, v)]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    table = torch.randn(9, 4).requires_grad_()
    ones = torch.ones_like(q)

    def learn() -> None:
        bias = positions.RelativePositionBias(table)
        output = regard.attention(*leaves, mask=CAUSAL, bias=bias, backend="native")
        torch.autograd.grad(output, [*leaves, table], ones)

    return itertools.cycle(
        [
            *4 * [lambda: regard.attention(q, k, v, mask=CAUSAL, backend="native")],
            *4 * [lambda: regard.attention(row, k, v, backend="native")],
            *2 * [lambda: regard.attention(*wide, mask=CAUSAL, backend="native")],
            lambda: regard.attention(q, k, v, mask=masks.Padding(torch.ones(1, 20)), backend="native"),
            lambda: regard.attention(q, k, v, dropout=0.2, generator=generator, return_lse=True, backend="native"),
            learn,
        ]
    )


def call_all_day() -> None:
    torch.set_num_threads(1)
    calls = small_calls()
    for call in itertools.islice(calls, WARMING):
        call()
    before = resident()
    for call in itertools.islice(calls, CALLED):
        call()
    print(resident() - before)  # noqa: T201 - what the test reads


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell a process its memory")
def test_a_hundred_thousand_calls_leave_no_memory_behind():
    growth = int(run_apart(call_all_day, seconds=600))
    assert growth <= MOST_GROWTH, f"{growth:,} bytes more after {CALLED:,} calls"


# Forks ----------------------------------------------------------------------------------------------------------------


def in_a_child(function: Callable[[], str], *, seconds: float = 30) -> str:
    """Fork, and return what a function gives in the child, which is killed when it has not ended in time."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, function().encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    timer = threading.Timer(seconds, os.kill, (child, signal.SIGKILL))
    timer.start()
    with os.fdopen(reading, encoding="ascii") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    timer.cancel()
    return found or "nothing: it failed, or hung"


def after_forks() -> None:
    torch.set_num_threads(2)
    expected = digest(FORWARD)  # threads of PyTorch wait from now on, and a child has none of them
    trained = {}
    for count in (1, 2):
        torch.set_num_threads(count)
        trained[count] = digest(CALLS)
    assert in_a_child(lambda: digest(FORWARD)) == expected, "in a child"
    assert in_a_child(lambda: in_a_child(lambda: digest(FORWARD))) == expected, "in a child of a child"

    def of_one_thread() -> str:
        torch.set_num_threads(1)  # as PyTorch's workers for data do
        return digest(CALLS)

    assert in_a_child(of_one_thread) == trained[1], "in a child with one thread"
    assert digest(CALLS) == trained[2], "in the parent afterwards"


def while_it_computes() -> None:
    torch.set_num_threads(2)
    expected = digest(FORWARD)
    stop = threading.Event()

    def compute() -> None:
        torch.set_num_threads(2)
        while not stop.is_set():
            digest(FORWARD)

    with ThreadPoolExecutor(1) as pool:
        computing = pool.submit(compute)
        for _ in range(10):
            assert in_a_child(lambda: digest(FORWARD)) == expected
            time.sleep(0.01)
        stop.set()
        computing.result()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@needs_fork
def test_a_child_of_fork_computes_the_same_with_two_threads():
    run_apart(after_forks)


@needs_fork
@pytest.mark.slow
def test_a_child_may_be_forked_while_another_thread_computes():
    run_apart(while_it_computes)


# Threads of the caller ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_threads")
def test_eight_threads_may_call_at_once():
    expected = [digest(CALLS, seed) for seed in range(8)]
    ready = threading.Barrier(8)

    def run(seed: int) -> list[str]:
        ready.wait()
        torch.set_num_threads(2)
        return [digest(CALLS, seed) for _ in range(6)]

    with ThreadPoolExecutor(8) as pool:
        for seed, found in enumerate(pool.map(run, range(8))):
            assert found == 6 * [expected[seed]], f"thread {seed}"


def while_the_number_changes() -> None:
    torch.set_num_threads(1)  # the least first: what is made for one thread must not serve four
    expected, exact = digest(FORWARD), training()
    stop = threading.Event()

    def change() -> None:
        for count in itertools.cycle((1, 2, 3, 4)):
            if stop.is_set():
                return
            torch.set_num_threads(count)
            time.sleep(1e-4)  # lets the others have the interpreter

    def run(_: int) -> None:
        assert digest(FORWARD) == expected
        for result, other in zip(training(), exact, strict=True):
            torch.testing.assert_close(result, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for at in range(8):
            # A new thread begins with the number that is set at the moment.
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(run, range(2)))
            torch.set_num_threads(at % 4 + 1)
            run(at)
    finally:
        stop.set()
        changing.join()


def test_the_number_of_threads_may_change_all_the_time():
    """Outputs keep their bits; gradients are added up by as many tasks as there are threads."""
    run_apart(while_the_number_changes)


# Interruptions --------------------------------------------------------------------------------------------------------


def interrupt(call: Callable[[], object], *, times: int = 1) -> None:
    """Press Ctrl-C so many times while a call is repeated, at least one of which it ends."""

    def press() -> None:
        time.sleep(0.1)
        for _ in range(times):
            time.sleep(0.03)
            os.kill(os.getpid(), signal.SIGINT)

    pressing, ended = threading.Thread(target=press), 0
    pressing.start()
    while pressing.is_alive() or not ended:
        try:
            call()
        except KeyboardInterrupt:
            ended += 1


def long_calls(*, learns: bool) -> Callable[[], object]:
    """Some tenths of a second on a fast machine, in memory that the system takes back at once."""

    def call() -> object:
        q, k, v = (torch.randn(1, 4, 6000, 64, requires_grad=learns) for _ in range(3))
        output = regard.attention(q, k, v, backend="native")
        return torch.autograd.grad(output.sum(), (q, k, v)) if learns else output

    return call


def interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background begins without it
    torch.set_num_threads(2)
    expected = digest(CALLS)
    for learns in (False, True):
        interrupt(long_calls(learns=learns))
        assert digest(CALLS) == expected


def interrupted_on_threads_of_its_own() -> None:
    threads._region = lambda: None  # as where PyTorch has no OpenMP
    interrupted()


def test_an_interrupted_call_leaves_a_process_that_computes():
    run_apart(interrupted)


def test_an_interrupted_call_on_threads_of_its_own_leaves_a_process_that_computes():
    run_apart(interrupted_on_threads_of_its_own)


# Other processes ------------------------------------------------------------------------------------------------------


def print_digest() -> None:
    torch.set_num_threads(2)
    print(*{digest(CALLS) for _ in range(20)})  # noqa: T201 - what the test reads


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_two_processes_side_by_side_compute_the_same():
    expected = digest(CALLS)
    with ThreadPoolExecutor(2) as pool:
        assert [one.split() for one in pool.map(run_apart, 2 * [print_digest])] == 2 * [[expected]]
