"""Several processes of `worker.py`, side by side."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = (2, 3, 4, 8)
WORKER = Path(__file__).resolve().parent / "worker.py"


def on_ranks(names):
    """Parameters for the fixture `computed` and a name: each number of ranks with the names that it has."""
    return [
        pytest.param(ranks, name, marks=[pytest.mark.slow] * (ranks > 2), id=f"{ranks}-{name}")
        for ranks in RANKS
        for name in names(ranks)
    ]


def launch(ranks, folder, program, *, lost=(), timeout=600):
    """Run a program on so many ranks, one thread each; raise with the output of those that failed.

    Ranks that are `lost` on purpose are not waited for.
    """
    with (folder / "log").open("w") as log:
        started = subprocess.Popen(
            [sys.executable, WORKER, str(ranks), folder, program, *map(str, lost)],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = started.wait(timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)  # ranks that hang, or were stopped
            started.wait()
    if code:
        raise AssertionError("\n".join(f"{one.name}:\n{one.read_text()}" for one in sorted(folder.glob("log*"))))
