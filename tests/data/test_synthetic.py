"""Tasks with known answers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError
from regard.data import AssociativeRecall, Copy, Reverse, Sort

ANSWERS = {Copy: lambda row: row, Reverse: lambda row: list(reversed(row)), Sort: sorted}


@pytest.mark.parametrize("kind", ANSWERS)
@given(symbols=st.integers(2, 9), low=st.integers(1, 8), more=st.integers(0, 8), seed=st.integers(0, 99))
def test_targets_are_right_and_sources_within_lengths_and_symbols(kind, symbols, low, more, seed):
    task = kind(symbols)
    sources, targets = task.sample(20, length_range=(low, low + more), generator=torch.Generator().manual_seed(seed))
    assert len(sources) == 20
    assert targets == [ANSWERS[kind](source) for source in sources]
    assert all(low <= len(source) <= low + more for source in sources)
    assert {symbol for source in sources for symbol in source} <= set(range(5, task.vocab_size))
    assert (sources, targets) == task.sample(
        20, length_range=(low, low + more), generator=torch.Generator().manual_seed(seed)
    )


def test_all_lengths_and_all_symbols_are_drawn():
    sources, _ = Copy(6).sample(400, length_range=(3, 7), generator=torch.Generator().manual_seed(0))
    assert {len(source) for source in sources} == set(range(3, 8))
    assert {symbol for source in sources for symbol in source} == set(range(5, 11))


@given(st.integers(1, 6), st.integers(0, 99))
def test_recall_asks_for_the_value_behind_one_of_different_keys(pairs, seed):
    task = AssociativeRecall(num_symbols=12, num_kv_pairs=pairs)
    for source, target in zip(*task.sample(20, generator=torch.Generator().manual_seed(seed)), strict=True):
        keys, values, asked = source[:-1:2], source[1:-1:2], source[-1]
        assert len(keys) == len(values) == len(set(keys)) == pairs
        assert set(keys) <= set(range(5, 11))
        assert set(values) <= set(range(11, 17))
        assert target == [dict(zip(keys, values, strict=True))[asked]]


def test_recall_asks_for_each_place_and_draws_each_number_of_pairs():
    task = AssociativeRecall(num_symbols=16)
    sources, _ = task.sample(400, length_range=(1, 3), generator=torch.Generator().manual_seed(0))
    assert {(len(source) // 2, source.index(source[-1]) // 2) for source in sources} == {
        (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)
    }  # fmt: skip


def test_what_cannot_be_drawn_is_refused():
    generator = torch.Generator()
    with pytest.raises(InputError, match=r"1 ≤ low ≤ high, got 5 and \(4, 3\)"):
        Copy().sample(5, length_range=(4, 3), generator=generator)
    with pytest.raises(InputError, match="`num_symbols` must be at least 2, got 1"):
        Sort(1)
    with pytest.raises(
        InputError, match=r"`num_kv_pairs` must be from 1 to 3 pairs, half of `num_symbols` \(6\).*got 4"
    ):
        AssociativeRecall(num_symbols=6, num_kv_pairs=4)
    with pytest.raises(InputError, match="`length_range` must be from 1 to 3 pairs"):
        AssociativeRecall(num_symbols=6, num_kv_pairs=2).sample(1, length_range=(1, 4), generator=generator)
