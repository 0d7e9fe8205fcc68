"""Worker processes on this machine that share texts: one that is killed loses its text, which is then done again.

A worker gets one text at a time and saves its result, whole or not at all, so the process that started it knows which
text a lost worker had. That process imports neither torch nor a model.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol

from regard.errors import InputError, RegardError
from regard.interpret.text_folder import TextFolder

__all__ = ["TextJob", "share_texts"]

_ATTEMPTS = 2  # workers that one text may cost


class TextJob(Protocol):
    """What a worker does with a text; `identity` is what identifies the run besides the texts, the model."""

    @property
    def identity(self) -> Mapping[str, Any]: ...  # noqa: D102

    def __call__(self, text: str | None) -> tuple[Callable[[Path], None], str | None]:
        """Return a function that saves the result, and a warning or None; any error is why there is no result."""
        ...


def share_texts(
    texts: Mapping[int, str | None],
    folder: TextFolder,
    job: Callable[..., TextJob],
    *arguments: Any,
    num_workers: int,
    progress: Callable[[int], None],
    warn: Callable[[str], None],
) -> None:
    """Have worker processes do the texts that are not finished, in their order.

    Most workers that are lost were killed for memory. So none takes the place of a lost one while there are others, and
    its text comes last; a text that has cost two workers is left out.

    Args:
        texts: The texts by their numbers; None, by number 0, is work that the results of all texts need.
        folder: Where results are saved.
        job: A class of a module, of which each worker makes one.
        arguments: Its arguments, which can be pickled.
        num_workers: How many processes are started, at most one for each text.
        progress: Called with the number of finished texts.
        warn: Called with a sentence: a worker was lost, a text is read with a warning.

    Raises:
        InputError: The job cannot be made, number 0 has no result, the results in the folder are another model's, or a
            result cannot be saved.
        RegardError: All workers were lost before they had a text.
    """
    pool = _Pool(texts, folder, (job, arguments), progress, warn)
    try:
        pool.run(num_workers)
    finally:
        pool.kill()


@dataclass(eq=False)
class _Worker:
    number: int
    process: SpawnProcess
    pipe: Connection
    has_loaded: bool = False
    text: int | None = None  # the number of the one that it has


class _Pool:
    def __init__(
        self,
        texts: Mapping[int, str | None],
        folder: TextFolder,
        job: tuple[Callable[..., TextJob], tuple[Any, ...]],
        progress: Callable[[int], None],
        warn: Callable[[str], None],
    ) -> None:
        self._texts, self._folder, self._job, self._progress, self._warn = texts, folder, job, progress, warn
        self._finished = folder.finished()
        self._queue = deque(number for number in texts if number not in self._finished)
        self._losses = Counter[int]()  # of workers, by the text that they had
        self._workers: dict[object, _Worker] = {}  # by their pipes

    def run(self, num_workers: int) -> None:
        self._progress(len(self._finished - {0}))
        for number in range(1, min(num_workers, len(self._queue)) + 1):
            self._start(number)
        while len(self._finished) < len(self._texts):
            for pipe in wait([worker.pipe for worker in self._workers.values()]):
                worker = self._workers[pipe]
                try:
                    kind, content = worker.pipe.recv()
                except (EOFError, OSError):
                    self._lose(worker)
                else:
                    self._take(worker, kind, content)
            for worker in self._workers.values():
                if self._queue and worker.has_loaded and worker.text is None:
                    worker.text = self._queue.popleft()
                    _send(worker, (self._texts[worker.text], self._folder.result(worker.text)))

    def kill(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()  # results appear whole or not at all, so nothing has to be waited for
        for worker in self._workers.values():
            worker.process.join()

    def _start(self, number: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        pipe, its_end = spawn.Pipe()
        process = spawn.Process(target=_do_texts, args=(its_end,), daemon=True)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a worker leaves Ctrl-C to this process, from the start
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        its_end.close()  # so the pipe ends with the worker
        self._workers[pipe] = worker = _Worker(number, process, pipe)
        _send(worker, self._job)

    def _take(self, worker: _Worker, kind: str, content: Any) -> None:
        """Take what a worker has sent."""
        if kind == "error":
            raise InputError(content)
        if kind == "loaded":
            self._folder.check_model(content)
            worker.has_loaded = True
            return
        number, worker.text = worker.text, None
        assert number is not None
        if kind == "result" and content:
            self._warn(f"line {number}: {content}")
        self._finish(number, content if kind == "reason" else None)

    def _finish(self, number: int, reason: str | None) -> None:
        if reason is not None and number == 0:
            raise InputError(reason)
        if reason is not None:
            self._folder.leave_out(number, reason)
        self._finished.add(number)
        self._progress(len(self._finished - {0}))

    def _lose(self, worker: _Worker) -> None:
        """Report that a worker was lost, and what becomes of its text."""
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with code {code}"
        lost = f"worker {worker.number} (process {worker.process.pid}) {how}"
        del self._workers[worker.pipe]
        if worker.text is None:
            self._warn(f"{lost}; it had no line")
            if not self._workers:
                raise RegardError("all workers were lost while they loaded the model: does it fit into memory?")
            return
        line = f"line {worker.text}" if worker.text else "line 0 (random tokens)"
        self._losses[worker.text] += 1
        if self._losses[worker.text] < _ATTEMPTS:
            self._warn(f"{lost}: {line} is done again at the end")
            self._queue.append(worker.text)
        else:
            self._warn(f"{lost}, as the one before that had {line}")
            self._finish(worker.text, f"the {_ATTEMPTS} workers that had it were lost, the last one {how}")
        if self._queue and not self._workers:
            self._start(worker.number)


def _send(worker: _Worker, content: object) -> None:
    with suppress(OSError):  # it has ended, as the next look at its pipe shows
        worker.pipe.send(content)


def _do_texts(pipe: Connection) -> None:
    """Do one text after the other, in a process of its own."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the process that started this one has ended
        try:
            make_job, arguments = pipe.recv()
            job: TextJob = make_job(*arguments)
            pipe.send(("loaded", job.identity))
            while True:
                text, path = pipe.recv()
                try:
                    save, warning = job(text)
                except Exception as problem:  # whatever is wrong with a text, the others are done
                    pipe.send(("reason", _sentence(problem)))
                    continue
                save(path)
                pipe.send(("result", warning))
        except Exception as problem:
            pipe.send(("error", _sentence(problem)))
            if not isinstance(problem, RegardError):  # a fault, whose traceback helps to mend it
                raise


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _sentence(problem: Exception) -> str:
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if isinstance(problem, RegardError) else f"{type(problem).__name__}: {text}"
