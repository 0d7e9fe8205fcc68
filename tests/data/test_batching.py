"""Batches keep to their budget, have every row once, and follow from their arguments alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError
from regard.data import batches, shard_batch

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=80)


@given(PAIRS, st.integers(40, 200), st.integers(0, 5), st.integers(0, 5))
def test_every_row_is_in_one_batch_and_no_batch_breaks_the_budget(lengths, tokens, seed, epoch):
    found = batches(lengths, max_tokens_per_batch=tokens, seed=seed, epoch=epoch)
    assert sorted(row for batch in found for row in batch) == list(range(len(lengths)))
    assert all(batch for batch in found)
    for column in (0, 1):
        assert max(len(batch) * max(lengths[row][column] for row in batch) for batch in found) <= tokens
    assert found == batches(lengths, max_tokens_per_batch=tokens, seed=seed, epoch=epoch)


@given(PAIRS)
def test_one_length_a_row_is_the_longest_of_its_columns(lengths):
    one = [max(pair) for pair in lengths]
    assert batches(one, max_tokens_per_batch=40, seed=0, epoch=0) == batches(
        lengths, max_tokens_per_batch=40, seed=0, epoch=0
    )


def test_epoch_and_seed_change_the_company_and_the_order():
    lengths = [5 + row % 90 for row in range(900)]
    first, next_epoch, other_seed = (
        batches(lengths, max_tokens_per_batch=400, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))
    )
    for other in (next_epoch, other_seed):
        assert len({frozenset(batch) for batch in first} & {frozenset(batch) for batch in other}) < len(first) / 10
    longest = [max(lengths[row] for row in batch) for batch in first]
    assert max(longest[:20]) > 60  # neither from short to long
    assert min(longest[:20]) < 40  # nor back


def test_seed_and_epoch_are_not_added_up():
    lengths = list(range(1, 60))
    assert batches(lengths, max_tokens_per_batch=99, seed=1, epoch=2) != batches(
        lengths, max_tokens_per_batch=99, seed=2, epoch=1
    )


def test_little_of_a_batch_is_padding():
    rng = random.Random(0)
    lengths = [max(1, int(rng.gauss(12, 5))) for _ in range(20_000)]
    found = batches(lengths, max_tokens_per_batch=4096, seed=0, epoch=0)
    places = sum(len(batch) * max(lengths[row] for row in batch) for batch in found)
    assert sum(lengths) / places > 0.9
    assert places / (4096 * len(found)) > 0.95


def test_a_row_that_is_too_long_is_named():
    with pytest.raises(InputError, match=r"got 4, and row 1 has 9 \(2 of 3 rows are too long\): raise it"):
        batches([3, 9, 5], max_tokens_per_batch=4, seed=0, epoch=0)
    with pytest.raises(InputError, match="`lengths` must have at least one row"):
        batches([], max_tokens_per_batch=4, seed=0, epoch=0)
    with pytest.raises(InputError, match="`lengths` must be 0 or more, got -1 for row 1"):
        batches([3, -1], max_tokens_per_batch=4, seed=0, epoch=0)


@given(st.lists(st.integers(), max_size=30, unique=True).map(tuple), st.integers(1, 12))
def test_dealt_rows_are_the_batch_and_their_numbers_differ_by_one_at_most(batch, parts):
    dealt = shard_batch(batch, parts)
    assert len(dealt) == parts
    assert sorted(row for part in dealt for row in part) == sorted(batch)
    counts = [len(part) for part in dealt]
    assert max(counts) - min(counts) <= 1


def test_parts_of_a_batch_are_alike_in_tokens():
    rng = random.Random(0)
    lengths = [rng.randint(1, 60) for _ in range(3000)]
    for batch in batches(lengths, max_tokens_per_batch=2048, seed=0, epoch=0):
        tokens = [sum(lengths[row] for row in part) for part in shard_batch(batch, 4)]
        assert max(tokens) - min(tokens) <= max(lengths[row] for row in batch)


def test_a_batch_is_dealt_to_at_least_one_part():
    with pytest.raises(InputError, match="`num_shards` must be processes × accumulation steps and at least 1, got 0"):
        shard_batch((1, 2), 0)
