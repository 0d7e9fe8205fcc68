"""Timing side by side: who is called when, and what a median is said to be."""

import time

import numpy as np
import pytest

from regard.bench.timing import Ratio, Times, in_turn


def test_the_sides_take_turns_and_none_is_always_first():
    calls = []
    in_turn({name: lambda name=name: (calls.append(name), time.sleep(0.003)) for name in "ab"}, seconds=0, most=4)
    assert "".join(calls[4:]) == "abbaabba"  # two calls of each come before, to warm up


def test_a_call_shorter_than_a_sample_is_repeated_within_it():
    many = {"count": 0}

    def call():
        many["count"] += 1

    times = in_turn({"short": call}, seconds=0)
    assert len(times.seconds["short"]) == 5
    assert many["count"] > 5 * 100


def test_a_measurement_ends_when_it_is_known_but_not_before_the_fifth_round():
    asked = []
    times = in_turn(
        {"one": lambda: time.sleep(0.002)}, seconds=60, known=lambda found: asked.append(found) or len(asked) == 3
    )
    assert len(times.seconds["one"]) == 7


def test_ratios_are_those_of_neighbours_so_that_a_slow_spell_counts_on_both_sides():
    times = Times({"a": (1.0, 1.0, 10.0, 1.0, 1.0), "b": (2.0, 2.0, 20.0, 2.0, 2.0)})
    assert times.ratio("b", "a") == Ratio(2.0, 2.0, 2.0, 5)
    assert times.difference("b", "a").median == 1.0


@pytest.mark.parametrize("rounds", [9, 40])
def test_the_interval_holds_the_true_median_about_nineteen_times_in_twenty(rounds):
    generator = np.random.default_rng(0)
    found = [Ratio.of(list(generator.normal(1.0, 0.1, rounds))) for _ in range(600)]
    share = sum(one.low <= 1.0 <= one.high for one in found) / len(found)
    assert (0.85 if rounds < 20 else 0.9) < share < 0.985


def test_one_round_tells_nothing():
    ratio = Ratio.of([1.0])
    assert ratio.low == -float("inf")
    assert ratio.high == float("inf")
