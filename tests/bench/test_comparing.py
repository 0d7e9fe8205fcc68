"""Comparisons as rows: which side is divided by which, and what is not asked for is not called."""

import time

import pytest

from regard.bench.comparing import compare, compare_all
from regard.bench.rows import Effort

PAIRS = {"slow / quick": ("slow", "quick"), "middle / quick": ("middle", "quick")}


@pytest.fixture
def sides(monkeypatch):
    """Three calls of 4, 2 and 1 seconds by a clock of the test, and who was called."""
    clock, called = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call(name, seconds):
        called.append(name)
        clock[0] += seconds

    made = {name: lambda name=name, seconds=seconds: call(name, seconds)
            for name, seconds in (("slow", 4.0), ("middle", 2.0), ("quick", 1.0))}  # fmt: skip
    return made, called


def test_pairs_of_sides_are_rows_of_one_measurement(sides):
    slow, middle = compare_all(Effort(seconds=0), "case", "here", PAIRS, sides[0])
    assert (slow.what, slow.ratio.median, dict(slow.seconds)) == ("slow / quick", 4.0, {"slow": 4.0, "quick": 1.0})
    assert (middle.what, middle.ratio.median) == ("middle / quick", 2.0)
    assert sides[1].count("quick") == 7  # two calls to warm up, and five rounds


@pytest.mark.parametrize("only", [{"case | here | middle / quick"}, {"case | there | slow / quick"}])
def test_what_is_not_asked_for_is_not_called(sides, only):
    made, called = sides
    effort = Effort(seconds=0, only=only)
    found = list(compare_all(effort, "case", "here", PAIRS, made))
    assert bool(found) == bool(called) == ("case | here | middle / quick" in only)
    called.clear()
    row = compare(effort, "case", "here", "slow / quick", made, over=("slow", "quick"))
    assert (row.key, row.ratio, called) == ("case | here | slow / quick", None, [])
    row = compare(effort, "case", "there", "slow / quick", made, over=("slow", "quick"))
    assert (row.ratio is not None) == bool(called) == (row.key in only)
