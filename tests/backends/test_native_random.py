"""The native kernels against the formula in float64, on random calls; benchmarks/random_problems.py has more."""

from collections import Counter

import pytest

from measured_kernels import LIBRARIES, use_library
from random_calls import AMBIENT, Call, DisagreementError, check, drawn, smallest
from regard.backends.native import calls
from sweeps import sweep

QUICK, SLOW = 150, 1500
KERNELS = "attend", "read", "differentiate", "add_parts"


@pytest.fixture
def runs(monkeypatch):
    """How often each kernel runs."""
    counted, run = Counter(), calls.run

    def counting(kernel, *args, **options):
        counted[kernel] += 1
        run(kernel, *args, **options)

    monkeypatch.setattr(calls, "run", counting)
    return counted


def compare(numbers):
    for case in sweep(numbers, lambda number: f"--first {number} --count 1"):
        with case as number:
            check(drawn(number))


def test_random_calls_give_what_the_formula_gives(runs):
    compare(range(QUICK))
    assert all(runs[kernel] > 0 for kernel in KERNELS), runs


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_more_random_calls_give_what_the_formula_gives(part):
    compare(range(QUICK + part, QUICK + SLOW, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES[1:])
def test_random_calls_give_it_with_each_library(monkeypatch, name):
    use_library(monkeypatch, name)
    compare(range(QUICK))


def test_a_call_that_is_wrong_is_found_and_made_small(monkeypatch):
    """A kernel that forgets the bias: calls with one disagree, and the smallest has little else."""
    bias_of = calls._bias_of
    monkeypatch.setattr(calls, "_bias_of", lambda problem: (bias_of(problem)[0], {}))
    wrong = Call(seed=1, queries=5, keys=90, heads=4, kv_heads=2, bias="matrix", mask=("Causal",), returns_lse=True)
    assert check(Call(seed=1, queries=5, keys=90, heads=4, kv_heads=2, mask=("Causal",))) <= 1
    with pytest.raises(DisagreementError, match="output at"):
        check(wrong)
    least = smallest(wrong)
    assert (least.bias, least.heads, least.mask) == ("matrix", 1, ())
    assert least.keys <= 3


def test_calls_are_drawn_by_their_number_in_all_surroundings():
    assert [drawn(number) for number in range(40)] == [drawn(number) for number in range(40)]
    found = [drawn(number) for number in range(4 * len(AMBIENT))]
    assert [call.ambient for call in found] == 4 * list(AMBIENT)
    assert any(call.queries <= 3 for call in found)
    assert any(call.start is not None for call in found)
