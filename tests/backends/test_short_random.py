"""What `auto` takes for short calls, one after the other, against the formula in float64: random series of calls of the
same sizes with other masks; benchmarks/random_problems.py --sizes short has more."""

from collections import Counter
from dataclasses import replace

import pytest

from random_calls import (
    AMBIENT,
    WAYS,
    Call,
    DisagreementError,
    check_series,
    drawn_series,
    smallest_series,
)
from regard import backends
from regard.backends import call_cache
from regard.masks import BoundMask
from regard.masks.plan_cache import PLANS
from sweeps import sweep

QUICK, SLOW = 150, 1500
MOST = 4e6  # products of a quick series
# torch.func.vmap says that it goes through the sequences one by one.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@pytest.fixture
def choices(monkeypatch):
    """Which backends are chosen, and how many calls are computed by what was kept."""
    counted, choose, find = Counter(), backends.choose, call_cache.find

    def choosing(*args):
        backend = choose(*args)
        counted[backend.name] += 1
        return backend

    def finding(call):
        compute = find(call)
        counted["kept"] += compute is not None
        return compute

    monkeypatch.setattr(backends, "choose", choosing)
    monkeypatch.setattr(call_cache, "find", finding)
    return counted


def products(series):
    """How much there is to be computed, about; of torch.func.vmap 1,000 sequences take as long as 10 million do."""
    return sum(
        call.batch
        * (call.heads * call.queries * call.keys * (call.width + call.value_width + 32) + 10**4 * (call.way != ""))
        for call in series
    )


def compare(numbers):
    for case in sweep(numbers, lambda number: f"--sizes short --first {number} --count 1"):
        with case as number:
            check_series(drawn_series(number))


def test_short_series_give_what_the_formula_gives(choices):
    compare([number for number in range(2 * QUICK) if products(drawn_series(number)) <= MOST][:QUICK])
    assert all(choices[name] > 0 for name in ("native", "sdpa", "strips", "reference")), choices
    assert choices["kept"] > QUICK / 2, choices


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_more_short_series_give_what_the_formula_gives(part):
    compare(range(part, SLOW, 3))


def test_a_mask_that_is_taken_for_the_one_before_is_found_and_the_series_made_small(monkeypatch):
    """A cache that knows masks by their sizes alone: the second padding is that of the first batch."""
    known, broadcast, clear = {}, BoundMask.broadcast, PLANS.clear

    def stale(bound, batch, heads, device):
        return known.setdefault((bound.q_len, bound.kv_len), broadcast(bound, batch, heads, device))

    first = Call(
        1, 7, 7, batch=5, heads=2, learns="qkv", mask=("padding, flags",), scale=0.3, backend="auto", mask_seed=1
    )
    series = first, replace(first, seed=2), replace(first, seed=3, mask_seed=3)
    assert check_series(series) <= 1
    monkeypatch.setattr(BoundMask, "broadcast", stale)
    monkeypatch.setattr(PLANS, "clear", lambda: (known.clear(), clear()))
    with pytest.raises(DisagreementError, match="call 2: output at"):
        check_series(series)
    least = smallest_series(series)
    assert len(least) == 2
    assert {(call.heads, call.learns) for call in least} == {(1, "")}


def test_series_are_drawn_by_their_number_and_reach_all_kinds_of_calls():
    assert [drawn_series(number) for number in range(20)] == [drawn_series(number) for number in range(20)]
    found = [call for number in range(1000) for call in drawn_series(number)]
    assert {call.ambient for call in found} == {*AMBIENT}
    assert {call.way for call in found} == {"", *WAYS}
    assert {1, 4096, 8192} <= {call.batch for call in found}
    assert all(any(getattr(call, side) == 0 for call in found) for side in ("batch", "heads", "queries", "keys"))
    assert any(call.queries <= 3 and call.keys >= 256 for call in found)
