"""Several processes of `worker.py`, side by side."""

import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).resolve().parent / "worker.py"


def launch(ranks, folder, program, *, lost=(), timeout=600):
    """Run a program on so many ranks, one thread each; raise with the output of those that failed.

    Ranks that are `lost` on purpose are not waited for.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    logs = [(folder / f"log.{rank}").open("w+") for rank in range(ranks)]
    started = [
        subprocess.Popen(
            [sys.executable, WORKER, str(rank), str(ranks), folder, program],
            env=environment, stdout=log, stderr=subprocess.STDOUT,
        )
        for rank, log in enumerate(logs)
    ]  # fmt: skip
    try:
        codes = [0 if rank in lost else one.wait(timeout) for rank, one in enumerate(started)]
    finally:
        for one, log in zip(started, logs, strict=True):
            one.kill()
            one.wait()
            log.close()
    failed = [f"rank {rank}:\n{(folder / f'log.{rank}').read_text()}" for rank, code in enumerate(codes) if code]
    if failed:
        raise AssertionError("\n".join(failed))
