"""A script for `torchrun`: a tiny run on as many processes as there are; the first writes the losses it was told.

torchrun --nproc-per-node 2 tests/train/both.py FOLDER TOKENS [STEPS]
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runs import tiny

from regard.train import train


def main() -> None:
    folder, tokens = Path(sys.argv[1]), int(sys.argv[2])
    told: list[object] = []
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    options = {
        "training__max_steps": steps,
        "training__max_tokens_per_batch": tokens,
        "training__save_steps": None,
        "training__eval_steps": 20,
        "model__dropout": 0.0,
    }
    train(tiny(folder, **options), [told.append])
    losses = [one.loss for one in told if type(one).__name__ == "Stepped"]  # type: ignore[attr-defined]
    if losses:
        (folder / "losses.json").write_text(json.dumps(losses), "utf-8")


if __name__ == "__main__":
    main()
