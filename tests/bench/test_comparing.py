"""Comparisons as rows: which side is divided by which, and what is not asked for is not called."""

import time

import pytest

from regard_bench.comparing import Pair, compare, compare_all
from regard_bench.rows import Effort, at_least
from regard_bench.shares import Resource, Work
from regard_bench.timing import Ratio

PAIRS = {"slow / quick": Pair(("slow", "quick")), "middle / quick": Pair(("middle", "quick"))}


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
    slow, middle = compare_all(Effort(max_seconds=0), "case", "here", PAIRS, sides[0])
    assert (slow.what, slow.ratio.median) == ("slow / quick", 4.0)
    assert dict(slow.seconds) == dict(middle.seconds) == {"slow": 4.0, "middle": 2.0, "quick": 1.0}
    assert (middle.what, middle.ratio.median) == ("middle / quick", 2.0)
    assert sides[1].count("quick") == 7  # two calls to warm up, and five rounds


@pytest.mark.parametrize("only", [{"case | here | middle / quick"}, {"case | there | slow / quick"}])
def test_what_is_not_asked_for_is_not_called(sides, only):
    made, called = sides
    effort = Effort(max_seconds=0, only=only)
    found = list(compare_all(effort, "case", "here", PAIRS, made))
    measured = [row.ratio is not None for row in found]
    assert measured == [bool(called)] * 2 == ["case | here | middle / quick" in only] * 2
    called.clear()
    row = compare(effort, "case", "here", "slow / quick", made, over=("slow", "quick"))
    assert (row.key, row.ratio, called) == ("case | here | slow / quick", None, [])
    row = compare(effort, "case", "there", "slow / quick", made, over=("slow", "quick"))
    assert (row.ratio is not None) == bool(called) == (row.key in only)


def test_work_of_regards_side_becomes_its_rate(sides):
    made = {"regard": sides[0]["middle"], "peer": sides[0]["slow"]}
    pairs = {"peer / regard": Pair(("peer", "regard"))}
    (row,) = compare_all(Effort(max_seconds=0), "case", "here", pairs, made, work=Work(Resource.MEMORY, 10.0))
    assert row.work == Work(Resource.MEMORY, 10.0)
    assert row.rate == Ratio(5.0, 5.0, 5.0, 5)
    (row,) = compare_all(Effort(max_seconds=0), "case", "here", pairs, made)
    assert (row.work, row.rate) == (None, None)


def test_it_goes_on_until_every_pair_is_told_from_its_target(sides):
    made, called = sides
    sure, unsure = Pair(("slow", "quick"), at_least(2.0)), Pair(("middle", "quick"))
    list(compare_all(Effort(max_seconds=1000), "case", "here", {"sure": sure}, made))
    first = called.count("quick")
    called.clear()
    list(compare_all(Effort(max_seconds=1000), "case", "here", {"sure": sure, "without target": unsure}, made))
    assert first == 17  # two calls to warm up, and the first number of rounds that is asked after
    assert called.count("quick") > 100
