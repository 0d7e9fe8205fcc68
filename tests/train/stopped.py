"""A script for `torchrun`: only the second of two processes should stop, after the fifth step.

torchrun --nproc-per-node 2 tests/train/stopped.py FOLDER
"""

import os
import sys
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runs import tiny

from regard.train import train


def main() -> None:
    """Train, and save where it ended."""
    rank, calls = int(os.environ["RANK"]), count(1)
    ended = train(
        tiny(Path(sys.argv[1]), training__save_steps=None), should_stop=lambda: rank == 1 and next(calls) == 5
    )
    Path(sys.argv[1], f"{rank}.txt").write_text(f"{ended.step} {ended.reason}", "utf-8")


if __name__ == "__main__":
    main()
