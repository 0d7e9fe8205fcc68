"""A script: train a tiny model, killed by SIGKILL at so many random moments and started again each time.

    python tests/train/killed.py FOLDER KILLS SEED

Prints at which step each checkpoint stood when a process died. The libraries are read once; each run is a fork.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import accelerate  # noqa: F401 - read before the forks
from runs import tiny

from regard.train import JsonlLog, train
from regard.train.checkpoints import Checkpoints


def run(folder: Path) -> None:
    """Train to the end."""
    train(tiny(folder, training__max_steps=40), [JsonlLog(folder / "log.jsonl")])


def main() -> None:
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    random.seed(seed)
    done = 0
    while True:
        child = os.fork()
        if child == 0:
            run(folder)
            os._exit(0)
        if done >= kills:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        before = Checkpoints(folder / "checkpoints").steps()
        while Checkpoints(folder / "checkpoints").steps() == before:  # at least one step, or ten kills could take ages
            if os.waitpid(child, os.WNOHANG)[0]:
                sys.exit("a run ended before it was killed: make it longer")
            time.sleep(0.0005)
        time.sleep(random.random() * 0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done += 1
        print(Checkpoints(folder / "checkpoints").steps()[-1], flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
