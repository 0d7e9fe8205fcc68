"""A script for `torchrun`: of two processes the second alone is asked to stop, behind the fifth step.

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
    """Train, and say where it ended."""
    rank, asked = int(os.environ["RANK"]), count(1)
    ended = train(tiny(Path(sys.argv[1]), run__save=None), stops=lambda: rank == 1 and next(asked) == 5)
    Path(sys.argv[1], f"{rank}.txt").write_text(f"{ended.step} {ended.why}", "utf-8")


if __name__ == "__main__":
    main()
