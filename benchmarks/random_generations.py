"""Whether random calls of `generate` give what transformers' own give, or are refused by name: no timing.

    python benchmarks/random_generations.py [--first 0] [--count 1000]

Calls are those of tests/random_generations.py, drawn by number: tiny checkpoints of the families that generate, with
every scaling of RoPE, in float32 and float64; greedy, beams and drawing; limits and rules of tokens, as arguments or in
the checkpoint's generation_config.json; batches, whose rows are compared with transformers' `generate` on each alone.

What is wrong is printed with its number, which `--first NUMBER --count 1` repeats. The exit status is 1 if something
was wrong. 1,000 calls take about five minutes of one core.
"""

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import transformers

from random_generations import DisagreementError, Pool, drawn


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    begun, outcomes, reasons, wrong = time.monotonic(), Counter[str](), Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(Path(folder))
        for number in range(options.first, options.first + options.count):
            call = drawn(number)
            try:
                outcome, _, reason = pool.check(call).partition(": ")
                outcomes[outcome] += 1
                reasons[re.sub(r"\d+", "…", reason)] += bool(reason)
            except DisagreementError as disagreement:
                wrong.append(number)
                print(disagreement, flush=True)
            except Exception as problem:  # of either library, which the number repeats
                wrong.append(number)
                print(f"{call}\n    {type(problem).__name__}: {problem}", flush=True)
    for reason, count in (+reasons).most_common():
        print(f"{count:4} refused: {reason}")
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    print(f"{options.count} calls, {len(wrong)} wrong{': ' * bool(wrong)}{', '.join(map(str, wrong))}", end=", ")
    print(f"{time.monotonic() - begun:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
