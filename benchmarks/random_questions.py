"""Whether one question about a weight has one answer through every door, for questions drawn at random: no timing.

    python benchmarks/random_questions.py [--first 0] [--count 1000] [--doors look page]
    python benchmarks/random_questions.py --first 17 --count 1

Questions are those of tests/random_questions.py: a model watched on a text, asked for weights in Python, of the atlas
read back, of exported tables, of the page's server and of a page in a file, with and without sinks, by `look`, its
command and `tap`. The answer is that of dense weights in float64 (tests/question_runs.py).

Each door of a question is right, refused by name where the record has no answer, or wrong: another number, or a refusal
of what is held. What is wrong is printed with the question's number, which `--first NUMBER --count 1` repeats. The exit
status is 1 if something was wrong.
"""

import argparse
import contextlib
import json
import os
import re
import sys
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch

from question_doors import DOORS, Ledger
from random_questions import Question, check, described, drawn

EACH = 50  # questions, after which it says where it is
NAMES = re.compile(r"[\w.]*\d[\w.,]*|'[^']*'")  # with numbers in them, or quoted


class Tally:
    """What was found, by door."""

    def __init__(self) -> None:
        self.count = 0
        self.verdicts: dict[str, Counter[str]] = defaultdict(Counter)
        self.worst: dict[str, tuple[float, int]] = {}
        self.refusals: dict[str, list[int]] = defaultdict(list)
        self.wrong: list[dict[str, Any]] = []

    @property
    def numbers(self) -> list[int]:
        """The questions with a mistake."""
        return sorted({one["number"] for one in self.wrong})

    def add(self, question: Question, ledger: Ledger) -> None:
        """Count a question, and print its mistakes."""
        number = question.number
        self.count += 1
        for door, verdict in ledger.verdicts().items():
            self.verdicts[door][verdict] += 1
        for door, error in ledger.worst.items():
            self.worst[door] = max(self.worst.get(door, (0.0, 0)), (error, number))
        for door, sentences in ledger.refusals.items():
            for sentence in sentences:
                self.refusals[f"{door}: {NAMES.sub('#', sentence)[:80]}"].append(number)
        for door, mistakes in ledger.mistakes.items():
            self.wrong.append({"number": number, "door": door, "what": described(question), "mistakes": mistakes})
            more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
            print(f"{number} {question.kind} keep={question.keep} {door}: {mistakes[0]}{more}", flush=True)

    def print(self, seconds: float) -> None:
        """Print the counts."""
        for door, counts in sorted(self.verdicts.items()):
            error, at = self.worst.get(door, (0.0, 0))
            told = "  ".join(f"{counts[verdict]:5} {verdict}" for verdict in ("right", "refused", "wrong"))
            print(f"{door:24} {told}   largest error {error:.0%} of what is allowed (question {at})")
        for sentence, numbers in sorted(self.refusals.items(), key=lambda one: -len(one[1])):
            print(f"    refused {len(numbers)} times ({', '.join(map(str, numbers[:3]))}): {sentence}")
        listed = f"{': ' * bool(self.numbers)}{', '.join(map(str, self.numbers))}"
        print(f"{self.count:,} questions, {len(self.numbers)} wrong{listed}, {seconds:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the number of the first question")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--doors", nargs="+", choices=list(DOORS), help="only these doors")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--results", type=Path, help="a file for what was wrong, as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    begun, tally = time.monotonic(), Tally()
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(asked.first, asked.first + asked.count):
            question = drawn(number)
            question = replace(question, doors=tuple(asked.doors)) if asked.doors else question
            tally.add(question, check(question))
            if tally.count % EACH == 0:
                wrong, seconds = len(tally.numbers), time.monotonic() - begun
                print(f"{tally.count:,} questions, {wrong} wrong, {seconds:.0f} s", flush=True)
            if time.monotonic() - begun > asked.seconds:
                break
    tally.print(time.monotonic() - begun)
    if asked.results is not None:
        asked.results.write_text(json.dumps(tally.wrong, indent=1, ensure_ascii=False))
    return bool(tally.wrong)


if __name__ == "__main__":
    sys.exit(main())
