"""Several processes of `worker.py`, side by side."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = (2, 3, 4, 8)
WATCHED = (2, 4)  # of the other numbers there is nothing that these have not: lengths that do not divide, more axes
TRAINED = (2, 3, 4)
LOST_CONNECTION = re.compile(  # the second stops the process: gloo cannot answer a call
    r"gloo/transport/\S+\] .*(Connection (closed|reset) by peer|Broken pipe)|gloo/transport/tcp/listener\S+\] .*accept:"
)
WORKER = Path(__file__).resolve().parent / "worker.py"


def marked(ranks):
    """Parameters for the fixture `computed`, of which the fast tier has two ranks."""
    return [pytest.param(one, marks=[pytest.mark.slow] * (one > 2)) for one in ranks]


def launch(ranks, folder, program, *, timeout=600):
    """Run a program on so many ranks, one thread each; raise with what they wrote, the first that failed last.

    The others fail because it is gone, and a summary that is cut keeps its end. Where connections were
    lost and no rank failed by itself, the program is run once more: machines that share their network with others lose
    some.
    """
    before = folder.with_name(f"{folder.name}.before")
    shutil.copytree(folder, before)
    try:
        if _succeeds(ranks, folder, program, timeout):
            return
        if _only_connections_were_lost(folder):
            sys.stdout.write(f"{program} is run again on {ranks} ranks:\n{_said(folder)}\n")
            shutil.rmtree(folder)
            shutil.copytree(before, folder)
            if _succeeds(ranks, folder, program, timeout):
                return
    finally:
        shutil.rmtree(before)
    raise AssertionError(_said(folder))


def _succeeds(ranks, folder, program, timeout):
    with (folder / "log").open("w") as log:
        started = subprocess.Popen(
            [sys.executable, WORKER, str(ranks), folder, program],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return started.wait(timeout) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)  # ranks that hang
            started.wait()


def _failed(folder):
    """The ranks that failed, in the order in which they ended, and how."""
    failed = folder / "failed"
    return dict(line.split(" ", 1) for line in failed.read_text().splitlines()) if failed.exists() else {}


def _only_connections_were_lost(folder):
    """Whether every rank that failed ended with gloo's error for a connection, and none by itself."""
    failed = _failed(folder)
    ended = all(how in ("ended with 1", "was killed by SIGABRT") for how in failed.values())
    logs = ((folder / f"log.{rank}").read_text() for rank in failed)
    return bool(failed) and ended and all(LOST_CONNECTION.search(log) for log in logs)


def _said(folder):
    """The logs, that of the first rank which failed last, and how each of them ended."""
    failed = _failed(folder)
    last = {f"log.{rank}": number for number, rank in enumerate(failed)}
    logs = sorted(folder.glob("log*"), key=lambda log: last.get(log.name, len(last)), reverse=True)
    ends = "; ".join(f"rank {rank} {how}" for rank, how in failed.items()) or "no rank has failed"
    return "\n".join([*(f"{log.name}:\n{log.read_text()}" for log in logs), f"in this order: {ends}"])
