"""Schedules follow their papers, and never depend on what was asked before."""

import itertools
import math

import pytest

from regard.errors import InputError
from regard.train.schedules import Constant, Cosine, Noam, Stable

ALL = [Constant(warmup=10), Noam(warmup=10), Cosine(warmup=10), Cosine(warmup=10, floor=0.1), Stable(warmup=10)]


def test_noam_is_the_papers_formula_up_to_its_highest_value():
    width, warmup = 512, 4000
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert Noam(warmup=warmup).factor(step) * (width * warmup) ** -0.5 == pytest.approx(paper, rel=1e-12)


def test_cosine_passes_its_middle_and_reaches_its_floor():
    found = Cosine(warmup=100, floor=0.2)
    assert found.factor(550, 1000) == pytest.approx(0.6)
    assert found.factor(1000, 1000) == pytest.approx(0.2)
    assert found.factor(325, 1000) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)


def test_stable_falls_only_at_the_end():
    found = Stable(warmup=0, decay=0.25)
    assert [found.factor(step, 100) for step in (1, 75, 80, 90, 100)] == pytest.approx([1, 1, 0.8, 0.4, 0])


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_every_schedule_rises_linearly_and_stays_within_one(schedule):
    found = [schedule.factor(step, 1000) for step in range(1, 1001)]
    assert found[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert all(0 <= one <= 1 for one in found)
    assert all(one >= other for one, other in itertools.pairwise(found[9:]))


@pytest.mark.parametrize("kind", [Constant, Noam, Cosine, Stable])
def test_no_warm_up_begins_at_the_highest_rate(kind):
    assert kind(warmup=0).factor(1, 1000) == pytest.approx(1.0, abs=2e-5)


def test_numbers_that_mean_nothing_are_refused():
    with pytest.raises(InputError, match="`warmup` must be at least 0 steps, got -1"):
        Noam(warmup=-1)
    with pytest.raises(InputError, match="`decay` is the share of all steps"):
        Stable(decay=0)
