"""Whether attention computes what the formula gives, for calls drawn at random: no timing, only differences.

    python benchmarks/random_problems.py [--first 0] [--count 20000] [--seconds 1800] [--library x86_64_v3]
    python benchmarks/random_problems.py --sizes short [--first 0] [--count 20000]

Calls are those of tests/random_calls.py: every size, mask, bias, option, order in memory and state of PyTorch that
reaches the native kernels, drawn by number. With `--sizes short` they are series of short calls, as `backend="auto"`
computes them, at the sizes where its choice changes: several of the same sizes one after the other, the next with
another mask of the same form, or with the same one again, since what is kept of a call serves the next.

Values and gradients are compared with backend="reference" in float64. What is wrong is printed with its number, what is
wrong, and the smallest call or series that is wrong too, which

    python benchmarks/random_problems.py --call 'Call(keys=65)'

computes again. The last line says how far it came: --first goes on from there. The exit status is 1 if something was
wrong. 20,000 calls take 20 minutes on one core, and as many series 40.
"""

import argparse
import faulthandler
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import random_calls
from measured_kernels import LIBRARIES, use_library
from random_calls import (
    Call,
    DisagreementError,
    Series,
    check,
    check_series,
    described,
    drawn,
    drawn_series,
    smallest,
    smallest_series,
)
from regard import backends
from regard.backends.native import calls, library

EACH = 1000  # calls, after which it says where it is
ALIKE = 5  # mistakes that say the same, but for numbers, of which the smallest is looked for


class Run:
    """What was compared, by which kernels and backends, and what was wrong."""

    def __init__(self, sizes: str) -> None:
        self.is_short = sizes == "short"
        self.runs: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.worst: dict[str, tuple[float, int]] = {}
        self.wrong: list[int] = []
        self.kinds: Counter[str] = Counter()
        plain, choose = calls.run, backends.choose

        def counted(kernel: str, *args: Any, **options: Any) -> None:
            self.runs[kernel] += 1
            plain(kernel, *args, **options)

        def chosen(*args: Any, **options: Any) -> Any:
            backend = choose(*args, **options)
            self.runs[f"choice of {backend.name}"] += 1
            return backend

        calls.run, backends.choose = counted, chosen

    def compare(self, number: int) -> None:
        drawn_now = drawn_series(number) if self.is_short else drawn(number)
        dtype = drawn_now[0].dtype if isinstance(drawn_now, tuple) else drawn_now.dtype
        self.types[dtype] += len(drawn_now) if isinstance(drawn_now, tuple) else 1
        try:
            error = compared(drawn_now)
        except DisagreementError as disagreement:
            self.wrong.append(number)
            print(f"{number}: {disagreement}\n    {described(drawn_now)}", flush=True)
            kind = re.sub(r"call \d+: |[-+\d.,()e]+|nan|inf", "", str(disagreement))
            self.kinds[kind] += 1
            if self.kinds[kind] <= ALIKE:
                least = smallest_series(drawn_now) if isinstance(drawn_now, tuple) else smallest(drawn_now)
                print(f"    {described(least)}: {why(least)}", flush=True)
        else:
            self.worst[dtype] = max(self.worst.get(dtype, (0.0, 0)), (error, number))


def compared(call: Call | Series) -> float:
    return check_series(call) if isinstance(call, tuple) else check(call)


def why(call: Call | Series) -> str:
    """What is wrong with a call or a series, or that nothing is."""
    try:
        return f"right, with {compared(call):.0%} of the error that is allowed"
    except DisagreementError as disagreement:
        return str(disagreement)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--library", choices=LIBRARIES, help="the kernels of another library than the best")
    parser.add_argument("--sizes", choices=("any", "short"), default="any", help="calls, or series of short ones")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, where a call does not say otherwise")
    parser.add_argument("--call", help="compute one call or series, as it was printed")
    asked = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(asked.threads)
    with pytest.MonkeyPatch.context() as patch:
        if asked.library is not None:
            use_library(patch, asked.library)
        if asked.call is not None:
            said = why(eval(asked.call, vars(random_calls)))
            print(said)
            return not said.startswith("right")
        return compare_all(Run(asked.sizes), asked.first, asked.count, asked.seconds)


def compare_all(run: Run, first: int, count: int, seconds: float) -> int:
    print(f"the kernels are those of {library.library().name}", flush=True)
    begun, number = time.monotonic(), first
    while number < first + count and time.monotonic() - begun < seconds:
        run.compare(number)
        number += 1
        if number % EACH == 0:
            print(f"{number:,}: {len(run.wrong)} wrong, {time.monotonic() - begun:.0f} s", flush=True)
    worst = ", ".join(f"{dtype} {error:.0%} (call {at})" for dtype, (error, at) in sorted(run.worst.items()))
    print(f"calls by type: {counts(run.types)}; runs of kernels: {counts(run.runs)}")
    print(f"the largest errors, by what is allowed: {worst}")
    numbers = f": {', '.join(map(str, run.wrong[:50]))}" if run.wrong else ""
    what = "series" if run.is_short else "calls"
    print(f"{number - first:,} {what} compared, {len(run.wrong)} wrong{numbers}; --first {number} goes on")
    return bool(run.wrong)


def counts(of: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in sorted(of.items()))


if __name__ == "__main__":
    sys.exit(main())
