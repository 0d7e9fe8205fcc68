"""Timing side by side: who is called when, and what a median is said to be."""

import itertools
import time
from collections import Counter

import numpy as np
import pytest

from regard_bench.timing import Ratio, Times, in_turn
from sweeps import sweep


def test_a_side_comes_after_another_as_often_as_before_it():
    for case in sweep(["ab", "abc", "abcd"]):
        with case as names:
            calls, rounds = [], 2 * len(names)
            sides = {name: lambda name=name, calls=calls: (calls.append(name), time.sleep(0.003)) for name in names}
            in_turn(sides, max_seconds=60, max_rounds=rounds)
            timed = calls[2 * len(names) :]  # two calls of each come before, to warm up
            for at in range(rounds):
                assert sorted(timed[at * len(names) :][: len(names)]) == list(names)
            after = Counter(pair for pair in itertools.pairwise(timed) if pair[0] != pair[1])
            assert all(
                abs(after[one, other] - after[other, one]) <= 1 for one, other in itertools.combinations(names, 2)
            )
            firsts = Counter(timed[:: len(names)])
            assert set(firsts.values()) == {2}


def test_a_call_shorter_than_a_sample_is_repeated_within_it(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call():
        calls.append(clock[0])
        clock[0] += 1e-3 if len(calls) == 2 else 1e-5  # once something came between

    times = in_turn({"short": call}, max_seconds=0)
    assert times.seconds["short"] == pytest.approx([1e-5] * 5)
    assert len(calls) in (4 + 5 * 200, 4 + 5 * 201)  # 2 ms of 10 µs, up to rounding


def test_a_measurement_ends_when_it_is_known_but_not_before_the_fifth_round():
    asked = []
    times = in_turn(
        {"one": lambda: time.sleep(0.002)}, max_seconds=60, decided=lambda found: asked.append(found) or len(asked) == 3
    )
    assert len(times.seconds["one"]) == 7


@pytest.mark.parametrize(("seconds", "warm", "rounds"), [(0.5, 2, 5), (6.0, 1, 3)])
def test_a_call_of_many_seconds_warms_up_once_and_is_timed_three_times(monkeypatch, seconds, warm, rounds):
    clock, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def call():
        calls.append(clock[0])
        clock[0] += seconds

    times = in_turn({"one": call, "other": lambda: clock.append(clock.pop() + 0.1)}, max_seconds=0)
    assert len(times.seconds["one"]) == len(times.seconds["other"]) == rounds
    assert len(calls) == warm + rounds
    assert times.ratio("one", "other").median == pytest.approx(seconds / 0.1)


def test_what_takes_long_to_prepare_but_is_quick_afterwards_is_timed_five_times(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def compiled():
        clock[0] += 0.01 if calls else 20.0
        calls.append(clock[0])

    assert len(in_turn({"compiled": compiled}, max_seconds=0).seconds["compiled"]) == 5


def test_ratios_are_those_of_neighbours_so_that_a_slow_spell_counts_on_both_sides():
    times = Times({"a": (1.0, 1.0, 10.0, 1.0, 1.0), "b": (2.0, 2.0, 20.0, 2.0, 2.0)})
    assert times.ratio("b", "a") == Ratio(2.0, 2.0, 2.0, 5)
    assert times.difference("b", "a").median == 1.0


def test_the_interval_holds_the_true_median_about_nineteen_times_in_twenty():
    for case in sweep([3, 5, 9, 40]):
        with case as rounds:
            generator = np.random.default_rng(0)
            found = [Ratio.of(list(generator.normal(1.0, 0.1, rounds))) for _ in range(1000)]
            share = sum(one.low <= 1.0 <= one.high for one in found) / len(found)
            assert 0.88 < share < 0.985


def test_one_round_tells_nothing():
    ratio = Ratio.of([1.0])
    assert ratio.low == -float("inf")
    assert ratio.high == float("inf")
