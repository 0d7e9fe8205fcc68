"""Modules drawn at random, compiled: right, of one graph where they can be, and not compiled for each length."""

import pytest
import torch

from compiled_modules import LENGTHS, check
from random_modules import drawn
from sweeps import sweep

QUICK = (7, 8, 11, 19, 24, 50)  # masks of the length, a cache, LongRoPE, learned bias and score, a rule in Python


@pytest.fixture(autouse=True)
def apart():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("numbers", "options"),
    [
        pytest.param(QUICK, {"lengths": LENGTHS[:4], "backend": "eager"}, id="quick"),
        pytest.param(range(10), {}, id="0 to 9", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_module_computes_the_formula_at_every_length(numbers, options):
    for case in sweep(numbers, name=lambda number: drawn(number).description):
        with case as number:
            found = check(drawn(number), **options)
            assert found.pieces == 1 or drawn(number).in_python


@pytest.mark.slow
def test_inductor_computes_the_formula_too():
    for case in sweep((3, 8), name=lambda number: drawn(number).description):
        with case as number:
            check(drawn(number), lengths=(9, 12, 7), backend="inductor")
