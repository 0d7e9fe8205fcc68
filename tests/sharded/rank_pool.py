"""Ranks of one process group that compute one call after another, and are made anew where one fails or hangs."""

import contextlib
import faulthandler
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo  # each rank would import it with its first DTensor
from random_rank_calls import RankCall, Sharding, computed
from torch import distributed as dist

from regard.errors import InputError, ObservationError

__all__ = ["Answer", "RankPool"]

AHEAD = 3  # calls that are with the ranks at once
GRACE = 5.0  # seconds that others have where a rank has failed


class Answer(NamedTuple):
    """What the ranks say of a call: "found" with what each has, "refused" with a sentence, or "wrong" with the reason.

    Where ranks disagree on which it is, where one fails and where they hang, it is "wrong".
    """

    kind: str
    found: list[dict[str, Any]]
    said: str = ""


class RankPool:
    """So many ranks, one thread each, forked from this process once everything is imported.

    Args:
        ranks: How many.
        limit: Seconds within which all ranks must have answered.
    """

    def __init__(self, ranks: int, limit: float = 30.0) -> None:
        self.ranks, self.limit = ranks, limit
        self._children: dict[int, int] = {}
        self._pipes: list[Any] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answers(self, jobs: Sequence[tuple[RankCall, Sharding]]) -> Iterator[Answer]:
        """Yield the answers to calls in their order, of which some are computed ahead."""
        sent = 0
        for at in range(len(jobs)):
            if not self._children:
                self._start()
                sent = at
            while sent < min(len(jobs), at + AHEAD):
                for pipe in self._pipes:
                    pipe.send(jobs[sent])
                sent += 1
            answer = self._answer()
            if answer.kind == "wrong":
                self.stop()
            elif answer.kind == "refused":
                sent = at + 1
                for pipe in self._pipes:
                    pipe.send(None)
            yield answer

    def answer(self, call: RankCall, sharding: Sharding) -> Answer:
        """The answer to one call."""
        (answer,) = self.answers([(call, sharding)])
        return answer

    def stop(self) -> None:
        """End all ranks, whatever they do."""
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for pipe in self._pipes:
            pipe.close()
        self._children, self._pipes = {}, []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        pairs = [multiprocessing.Pipe() for _ in range(self.ranks)]
        for rank, (_, theirs) in enumerate(pairs):
            child = os.fork()
            if not child:
                for ours, other in pairs:
                    ours.close()
                    if other is not theirs:
                        other.close()
                _run(rank, self.ranks, Path(self._folder.name), theirs)
            self._children[rank] = child
        self._pipes = [ours for ours, _ in pairs]
        for _, theirs in pairs:
            theirs.close()

    def _answer(self) -> Answer:
        """Take one message of each rank."""
        said: dict[int, tuple[str, Any]] = {}
        until = time.monotonic() + self.limit
        while len(said) < self.ranks and (left := until - time.monotonic()) > 0:
            waited = [pipe for rank, pipe in enumerate(self._pipes) if rank not in said]
            for pipe in multiprocessing.connection.wait(waited, left):
                rank = self._pipes.index(pipe)
                try:
                    said[rank] = pipe.recv()
                except (EOFError, ConnectionError):
                    said[rank] = "error", "the process has ended"
                if said[rank][0] != "found":
                    until = min(until, time.monotonic() + GRACE)
        kinds = {kind for kind, _ in said.values()}
        if len(said) == self.ranks and kinds == {"found"}:
            return Answer("found", [said[rank][1] for rank in range(self.ranks)])
        if len(said) == self.ranks and kinds == {"refused"}:
            return Answer("refused", [], said[0][1])
        lines = [f"rank {rank}: {_in_a_line(kind, what)}" for rank, (kind, what) in sorted(said.items())]
        silent = [rank for rank in range(self.ranks) if rank not in said]
        lines += [f"rank {rank} hangs in {where}" for rank, where in self._stacks(silent).items()]
        return Answer("wrong", [], "\n".join(lines))

    def _stacks(self, ranks: list[int]) -> dict[int, str]:
        """Where ranks are."""
        assert self._folder is not None
        stacks = {}
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._children[rank], signal.SIGUSR1)
        time.sleep(0.3 if ranks else 0)
        for rank in ranks:
            log = Path(self._folder.name, f"log.{rank}").read_text()
            here = [line.strip() for line in log.split("Current thread")[-1].splitlines() if "/regard/" in line]
            places = [line.split("/regard/")[-1].replace('", line ', ":").replace(" in ", " ") for line in here]
            stacks[rank] = " < ".join(places[:6]) or log[-500:]
        return stacks


def _in_a_line(kind: str, what: Any) -> str:
    return kind if kind == "found" else f"{kind}: {what}"


def _run(rank: int, ranks: int, folder: Path, pipe: Any) -> None:
    """Compute calls until the other end is closed, or the process that forked this one is gone."""
    parent = os.getppid()
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the parent handles
        with (folder / f"log.{rank}").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=False)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        torch.set_num_threads(1)
        store = dist.FileStore(str(folder / "store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        while True:
            pipe.send(message := _message(*pipe.recv()))
            while message[0] != "found" and pipe.recv() is not None:
                pass  # what was sent ahead is sent again where all ranks agree
    except (EOFError, ConnectionError):
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _message(call: RankCall, sharding: Sharding) -> tuple[str, Any]:
    try:
        return "found", computed(call, sharding)
    except (InputError, ObservationError) as error:
        return "refused", f"{error}"
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames]
        return "error", f"{type(error).__name__}: {str(error)[:600]} ({' > '.join(places[-6:])})"
