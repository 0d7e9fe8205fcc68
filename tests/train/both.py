"""A script for `torchrun`: tiny runs on as many processes as there are, one after another.

torchrun --nproc-per-node 2 tests/train/both.py FOLDER

`two` goes to its end; `parts` ends in the middle and is resumed; `stopped` should stop on the second process only.
"""

import json
import os
import sys
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runs import tiny

from regard.train import train

OPTIONS = {
    "training__max_tokens_per_batch": 60,
    "training__save_steps": None,
    "training__eval_steps": 20,
    "model__dropout": 0.0,
}


def main() -> None:
    """Train, and save where each run ended; the first process saves the losses it was told."""
    folder, rank, calls = Path(sys.argv[1]), int(os.environ["RANK"]), count(1)
    for name, steps in (("two", 20), ("parts", 10), ("parts", 20)):
        told: list[object] = []
        train(tiny(folder / name, training__max_steps=steps, **OPTIONS), [told.append])
        losses = [one.loss for one in told if type(one).__name__ == "Stepped"]  # type: ignore[attr-defined]
        if losses:
            (folder / name / f"losses-{steps}.json").write_text(json.dumps(losses), "utf-8")
    ended = train(
        tiny(folder / "stopped", training__save_steps=None), should_stop=lambda: rank == 1 and next(calls) == 5
    )
    (folder / f"stopped.{rank}.txt").write_text(f"{ended.step} {ended.reason}", "utf-8")


if __name__ == "__main__":
    main()
