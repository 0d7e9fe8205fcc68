"""Whether the native kernels compute what the formula gives, for calls drawn at random: no timing, only differences.

    python benchmarks/random_problems.py [--first 0] [--count 20000] [--seconds 1800] [--library x86_64_v3]

Calls are those of tests/random_calls.py: every size, mask, bias, option, order in memory and state of PyTorch that
reaches the kernels, drawn by number. Values and gradients are compared with backend="reference" in float64. A call that
is wrong is printed with its number, what is wrong, and the smallest call that is wrong too, which

    python benchmarks/random_problems.py --call 'Call(keys=65)'

computes again. The last line says how far it came: --first goes on from there. The exit status is 1 if a call was
wrong. 20,000 calls take 20 minutes on one core.
"""

import argparse
import faulthandler
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
from random_calls import Call, DisagreementError, check, described, drawn, smallest
from regard.backends.native import calls, library

EACH = 1000  # calls, after which it says where it is


class Run:
    """What was compared, by which kernels, and what was wrong."""

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.worst: dict[str, tuple[float, int]] = {}
        self.wrong: list[int] = []
        plain = calls.run

        def counted(kernel: str, *args: Any, **options: Any) -> None:
            self.kernels[kernel] += 1
            plain(kernel, *args, **options)

        calls.run = counted

    def compare(self, number: int) -> None:
        call = drawn(number)
        self.types[call.dtype] += 1
        try:
            error = check(call)
        except DisagreementError as disagreement:
            self.wrong.append(number)
            print(f"{number}: {disagreement}\n    {described(call)}")
            least = smallest(call)
            print(f"    {described(least)}: {why(least)}", flush=True)
        else:
            self.worst[call.dtype] = max(self.worst.get(call.dtype, (0.0, 0)), (error, number))


def why(call: Call) -> str:
    """What is wrong with a call, or that nothing is."""
    try:
        return f"right, with {check(call):.0%} of the error that is allowed"
    except DisagreementError as disagreement:
        return str(disagreement)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--library", choices=LIBRARIES, help="the kernels of another library than the best")
    parser.add_argument("--call", help="compute one call, as it was printed")
    asked = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        if asked.library is not None:
            use_library(patch, asked.library)
        if asked.call is not None:
            said = why(eval(asked.call, vars(random_calls)))
            print(said)
            return not said.startswith("right")
        return compare_all(asked.first, asked.count, asked.seconds)


def compare_all(first: int, count: int, seconds: float) -> int:
    print(f"the kernels are those of {library.library().name}", flush=True)
    run, begun, number = Run(), time.monotonic(), first
    while number < first + count and time.monotonic() - begun < seconds:
        run.compare(number)
        number += 1
        if number % EACH == 0:
            print(f"{number:,}: {len(run.wrong)} wrong, {time.monotonic() - begun:.0f} s", flush=True)
    worst = ", ".join(f"{dtype} {error:.0%} (call {at})" for dtype, (error, at) in sorted(run.worst.items()))
    print(f"calls by type: {counts(run.types)}; runs of kernels: {counts(run.kernels)}")
    print(f"the largest errors, by what is allowed: {worst}")
    numbers = f": {', '.join(map(str, run.wrong[:50]))}" if run.wrong else ""
    print(f"{number - first:,} calls compared, {len(run.wrong)} wrong{numbers}; --first {number} goes on")
    return bool(run.wrong)


def counts(of: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in sorted(of.items()))


if __name__ == "__main__":
    sys.exit(main())
