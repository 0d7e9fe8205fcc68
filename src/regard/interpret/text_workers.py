"""Worker processes on this machine that share texts, and the process that started them, which names those it loses."""

import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

from regard.errors import InputError, RegardError
from regard.interpret.text_queue import BEATS, SILENCE, Claims, Silence, TextFolder

__all__ = ["TextJob", "share_texts"]

_POLL = 0.2  # seconds between two looks at the folder
_SHOWN = 8  # lines that a sentence names


class TextJob(Protocol):
    """What a worker does with a text."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What identifies the run besides the texts: the model."""
        ...

    def __call__(self, number: int) -> tuple[Callable[[Path], None], str | None]:
        """Return a function that writes the result, and a warning or None.

        Raises:
            Exception: The text has no result; why is kept in its place.
        """
        ...


@dataclass(eq=False)
class _Worker:
    number: int
    process: SpawnProcess
    file: Path
    messages: connection.Connection


def share_texts(
    texts: TextFolder,
    job: str,
    *arguments: Any,
    num_workers: int,
    progress: Callable[[int], None],
    warn: Callable[[str], None],
    silence: float = SILENCE,
) -> None:
    """Have worker processes finish all texts, beside those of other processes that share the folder.

    Args:
        texts: The folder.
        job: The name of what makes a TextJob of the arguments, "module:name": it is imported in the workers alone.
        arguments: Plain values.
        num_workers: How many processes are started, at most one for each text.
        progress: Called with the number of finished texts.
        warn: Called with a sentence: a worker was lost, a text is read with a warning.
        silence: Seconds without a sign of life after which a worker is ended, and its text given to another.

    Raises:
        InputError: The job cannot be made, the folder belongs to another run, or a result cannot be written.
        RegardError: All workers are lost.
    """
    watch = Silence(silence)
    work = _Work(texts, job, arguments, silence)
    left = len(texts.numbers) - len(texts.finished())
    seconds = min(_POLL, silence / BEATS)
    workers: list[_Worker] = []
    try:
        workers.extend(_start(number, work) for number in range(1, min(num_workers, left) + 1))
        while len(done := texts.finished()) < len(texts.numbers):
            progress(len(done - {0}))
            _look_after(workers, texts, watch, warn)
            if workers:
                connection.wait([one.process.sentinel for one in workers], seconds)
            else:  # the rest is done by workers that another process has started
                time.sleep(seconds)
        progress(len(done - {0}))
        for worker in workers:
            _hear(worker, warn)
    finally:
        for worker in workers:
            worker.process.kill()  # results appear whole or not at all, so nothing has to be waited for
        for worker in workers:
            worker.process.join()


def _start(number: int, work: "_Work") -> _Worker:
    name = f"{os.getpid()}-{number}-{os.urandom(4).hex()}"
    spawn = multiprocessing.get_context("spawn")
    messages, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=work, args=(name, sender), name=f"worker {number}", daemon=True)
    with _without_interrupts():
        process.start()
    sender.close()  # ours: the pipe ends with the worker
    return _Worker(number, process, work.texts.worker(name), messages)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let processes that start here leave Ctrl-C to this one, from their first line on."""
    if threading.current_thread() is not threading.main_thread():  # which alone may do so
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _hear(worker: _Worker, warn: Callable[[str], None]) -> None:
    """Pass on what a worker has to say.

    Raises:
        InputError: It cannot work, and no other could.
    """
    with suppress(EOFError, OSError):
        while worker.messages.poll():
            kind, text = worker.messages.recv()
            if kind == "error":
                raise InputError(text)
            warn(text)


def _look_after(workers: list[_Worker], texts: TextFolder, watch: Silence, warn: Callable[[str], None]) -> None:
    """Pass on what workers say, and leave out those that have ended, each that was lost with a sentence.

    Raises:
        InputError: One cannot work, and no other could.
        RegardError: There is none left, here or elsewhere.
    """
    for worker in list(workers):
        how = _lost(worker, watch)
        _hear(worker, warn)  # also the last words of one that has ended
        if how is not None:
            workers.remove(worker)
        if how:
            held = texts.claimed_by(worker.file)
            consequence = f"the others do {_lines(held)}" if held else "it had no line"
            warn(f"worker {worker.number} (process {worker.process.pid}) {how}: {consequence}")
    if not workers and all(map(watch.is_lost, texts.workers())) and len(texts.finished()) < len(texts.numbers):
        raise _all_lost(texts)


def _lost(worker: _Worker, watch: Silence) -> str | None:
    """Return how a worker was lost, "" where it has ended as it should, or None where it works."""
    code = worker.process.exitcode
    if code is not None:
        worker.process.join()
        if code >= 0:
            return f"ended with exit code {code}" if code else ""
        return f"was killed by signal {-code} ({signal.strsignal(-code)})"
    with suppress(FileNotFoundError):
        if (silent := watch.seconds(worker.file)) > watch.limit:
            worker.process.kill()
            worker.process.join()
            return f"gave no sign of life for {silent:.0f} seconds and was ended"
    return None


def _all_lost(texts: TextFolder) -> RegardError:
    done = texts.finished()
    left = [one for one in texts.numbers if one not in done]
    begun = sorted({one for worker in texts.workers() for one in texts.claimed_by(worker)})
    which = f", the last at {_lines(begun)}" if begun else ""
    count = len(texts.numbers) - (0 in texts.numbers)
    return RegardError(
        f"all workers were lost{which}: {len(done - {0})} of {count} texts are done and kept in {texts.folder}, "
        f"{_lines(left)} {'is' if len(left) == 1 else 'are'} not; run the same command again to do the rest"
    )


def _lines(numbers: list[int]) -> str:
    """Return the names of a few lines.

    >>> _lines([3]), _lines(list(range(1, 20)))
    ('line 3', 'lines 1, 2, 3, 4, 5, 6, 7, 8 and 11 more')
    """
    shown = ", ".join(str(one) if one else "0 (random tokens)" for one in numbers[:_SHOWN])
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"line{'s' if len(numbers) > 1 else ''} {shown}{more}"


@dataclass(frozen=True)
class _Work:
    """What a worker process runs: texts, until all are finished."""

    texts: TextFolder
    job: str
    arguments: tuple[Any, ...]
    silence: float

    def __call__(self, name: str, messages: connection.Connection) -> None:
        """Do texts as the worker of this name."""
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
        try:
            claims = Claims(self.texts, name, silence=self.silence)
            threading.Thread(target=_beat, args=(claims, self.silence / BEATS), daemon=True).start()
            job: TextJob = pkgutil.resolve_name(self.job)(*self.arguments)
            self.texts.hold("model.json", job.identity)
            for number in claims.take():
                try:
                    write, warning = job(number)
                except Exception as problem:  # whatever is wrong with a text, the others are done
                    claims.skip(number, _sentence(problem))
                    continue
                if claims.finish(number, write) and warning:
                    messages.send(("warning", f"line {number}: {warning}"))
        except FileNotFoundError:
            if self.texts.claims.is_dir():  # else the run is over
                raise
        except RegardError as problem:
            messages.send(("error", str(problem)))
            sys.exit(1)


def _sentence(problem: Exception) -> str:
    said = " ".join(str(problem).split()) or type(problem).__name__
    return said if isinstance(problem, RegardError) else f"{type(problem).__name__}: {said}"


def _beat(claims: Claims, seconds: float) -> None:
    """Give signs of life, and end with the process that started this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while not connection.wait([parent.sentinel], seconds):
        claims.beat()
    os._exit(1)
