"""One question about a weight has one answer through every door, that of dense weights in float64.

Questions are drawn by number in random_questions.py; `python benchmarks/random_questions.py` asks a thousand.
"""

import importlib.util

import pytest
import torch

from question_runs import is_here
from random_questions import check, described, drawn
from sweeps import sweep

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(one) is None for one in ("transformers", "starlette", "matplotlib")),
    reason="transformers, starlette or matplotlib are not installed (the extra `all`)",
)

FAST = (4, 9, 31, 36, 65, 102, 186, 311, 335, 444, 558)
SLOW = range(1000, 1030)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Small tensors: threads that wait for one another would take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ask(number: int) -> None:
    question = drawn(number)
    if not is_here(question.kind):
        pytest.skip("the bundled models are missing: regard models get")
    mistakes = [f"{door}: {one[0]}" for door, one in check(question).mistakes.items()]
    assert not mistakes, "\n".join((described(question), *mistakes))


def test_every_door_gives_the_weight_of_the_dense_matrix() -> None:
    for case in sweep(FAST):
        with case as number:
            ask(number)


@pytest.mark.slow
def test_every_door_gives_the_weight_of_the_dense_matrix_for_more_questions() -> None:
    for case in sweep(SLOW):
        with case as number:
            ask(number)
