"""Schedules have transformers' names and values, and the papers' formulas."""

from itertools import product

import pytest
import torch
from transformers import get_scheduler

from regard.errors import InputError
from regard.train.loss_and_optimizer import Schedule, SchedulerKwargs
from sweeps import sweep

TOTAL = 40
KINDS = [
    ("linear", {}),
    ("cosine", {}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2}),
    ("inverse_sqrt", {}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("warmup_stable_decay", {"num_decay_steps": 8}),
    ("warmup_stable_decay", {"num_decay_steps": 8, "decay_type": "linear", "min_lr_ratio": 0.1}),
    ("warmup_stable_decay", {"num_decay_steps": 8, "decay_type": "1-sqrt"}),
]


def test_every_step_has_the_value_of_transformers():
    for case in sweep(product(KINDS, [0, 6])):
        with case as ((kind, options), warmup):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
            theirs = get_scheduler(kind, optimizer, warmup, TOTAL, scheduler_specific_kwargs=options)
            ours = Schedule(kind, warmup, SchedulerKwargs(**options))
            for step in range(TOTAL):
                assert ours.factor(step, TOTAL) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12), step
                optimizer.step()
                theirs.step()


def test_a_warmup_below_one_is_a_fraction_of_all_steps():
    assert Schedule("cosine", 0.15).factor(3, TOTAL) == Schedule("cosine", 6).factor(3, TOTAL)
    assert Schedule("constant_with_warmup", 0.15).needs_total


def test_inverse_sqrt_is_the_papers_formula_up_to_its_peak():
    width, warmup = 512, 4000
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert Schedule("inverse_sqrt", warmup).factor(step) * (width * warmup) ** -0.5 == pytest.approx(paper)


def test_numbers_that_mean_nothing_are_refused():
    cases = [
        (("noam",), "`lr_scheduler_type` must be one of linear, cosine"),
        (("cosine", -1), "`warmup_steps` must be at least 0, got -1"),
        (("cosine", 0, {"num_decay_steps": 3}), "`lr_scheduler_kwargs.num_decay_steps` is no option of 'cosine'"),
        (("cosine_with_min_lr", 0, {"min_lr_rate": 1.5}), "`min_lr_rate` must be at most 1, got 1.5"),
        (
            ("warmup_stable_decay", 0, {"num_decay_steps": 8, "min_lr_ratio": -1}),
            "`min_lr_ratio` must be at least 0",
        ),
        (("warmup_stable_decay", 0), "`lr_scheduler_kwargs` must have `num_decay_steps`"),
        (("warmup_stable_decay", 0, {"num_decay_steps": 0}), "`num_decay_steps` must be at least 1"),
    ]
    for case in sweep(cases):
        with case as (given, words):
            kind, warmup, options = (*given, 0, {})[:3] if len(given) < 3 else given
            with pytest.raises(InputError, match=words):
                Schedule(kind, warmup, SchedulerKwargs(**(options or {})))
