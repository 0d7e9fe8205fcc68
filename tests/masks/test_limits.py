"""Plans of very long texts are small or are refused with their numbers, and so are values that would be too large."""

import pytest
import torch

import regard
from oracles import Largest
from regard import masks, positions
from regard.errors import InputError
from regard.masks.block_plan import cover
from regard.masks.rectangles import EMPTY, FULL, PARTIAL, edges
from sweeps import sweep

LONG = 10_000_000


def ask(batch, head, i, j):
    return (i + j) % 3 == 0


def test_ten_million_tokens_are_planned_where_distances_decide():
    cases = [
        (masks.Causal(), (78_125 + 1) / (2 * 78_125)),
        (masks.Strided(64), 1.0),
        (masks.sparse_transformer(100), (78_125 + 1) / (2 * 78_125)),
        (masks.Causal() & masks.Window(257), 3 / 78_125),
    ]
    for case in sweep(cases):
        with case as (mask, share):
            with Largest() as largest:
                found = cover(mask.bind(LONG, LONG), LONG, LONG, 128)
            assert found.share == pytest.approx(share, rel=1e-4)
            assert largest.bytes < 2**22


def test_a_plan_that_would_be_too_large_is_refused_with_its_numbers():
    cases = [
        masks.MaskMod(ask),
        masks.Strided(3162),
        masks.Global(range(0, 10**6, 100)),
    ]
    for case in sweep(cases):
        with case as mask:
            q = torch.zeros(1, 1, LONG, 1, device="meta")
            with pytest.raises(
                InputError, match=r"78,125 × 78,125 blocks of 128 × 128 .* more than 16,777,216.*: shorten"
            ):
                regard.explain(q, q, q, mask=mask, bias=positions.ALiBi(1))


def test_random_blocks_of_long_texts_are_found_without_looking_at_all_places():
    n, mask = 1_000_000, masks.RandomBlocks(2, block=128)
    bound = mask.bind(n, n)
    with Largest() as largest:
        found = cover(bound, n, n, 128)
    drawn = bound.mask.plan[0].sort().values
    listed = sorted(zip(found.runs.row.tolist(), found.runs.start.tolist(), strict=True))
    assert int(found.runs.length.sum()) == drawn.numel()
    assert all(start in drawn[row] for row, start in listed[:500])
    assert largest.bytes < 2**23 + 8 * drawn.numel()


def test_a_relative_mask_is_planned_as_one_that_is_looked_through():
    for mask in (masks.Strided(200), masks.sparse_transformer(300), masks.DilatedWindow(5, 77), ~masks.Window(100)):
        for queries, keys, start in ((1000, 1000, 0), (1, 3000, 5), (777, 3001, None), (130, 5, -50)):
            found = cover(mask.bind(queries, keys, start), queries, keys, 64)
            every = masks.Padding(torch.ones(1, keys, dtype=torch.bool))
            looked = cover((mask & every).bind(queries, keys, start), queries, keys, 64)
            assert found.share == looked.share
            assert found.share_partial == looked.share_partial


def test_what_would_take_gigabytes_is_refused():
    cases = [
        (lambda: masks.Global([10**10]), r"at most 268,435,456, got 10,000,000,000"),
        (lambda: masks.Global(range(10**10)), r"at most 1,048,576 positions, got 10,000,000,000: flag"),
        (lambda: positions.ALiBi(10**9), r"at most 65,536, got 1,000,000,000"),
        (lambda: positions.alibi_slopes(10**9), r"at most 65,536, got 1,000,000,000"),
        (lambda: masks.RandomBlocks(1, heads=10**9), r"at most 65,536, got 1,000,000,000"),
        (
            lambda: masks.RandomBlocks(10**6, block=1).bind(10**6, 10**6),
            r"draw 1,000,000,000,000 blocks.*`block` larger",
        ),
        (lambda: masks.Window(2**70), r"at most 2,147,483,648"),
        (lambda: masks.Sinks(2**70), r"at most 2,147,483,648"),
        (lambda: masks.Causal().bind(LONG, LONG).share_visible(), r"6,103,515,625 blocks of 128 × 128.*`block=256`"),
        (lambda: masks.to_block_mask(masks.Causal().bind(LONG, LONG)), r"6,103,515,625 blocks of 128 × 128"),
    ]
    for case in sweep(cases):
        with case as (make, words):
            with Largest() as largest, pytest.raises(InputError, match=words):
                make()
            assert largest.bytes < 2**20


def test_global_positions_beyond_the_text_cost_nothing():
    bound = masks.Global([1, 2**28 - 1]).bind(3, 3)
    with Largest() as largest:
        assert bound.dense()[0, 0].tolist() == [[False, True, False], [True, True, True], [False, True, False]]
    assert largest.bytes < 1000


@pytest.mark.parametrize("n", [10, 9000, 20_000])
def test_a_plan_has_the_blocks_that_are_asked_for_one_by_one(n):
    """Beyond 8,192 positions it begins with squares of many blocks."""
    for case in sweep(
        [masks.Prefix(5000), masks.Window(300) | masks.Global([4000]), ~masks.Prefix(n // 2), masks.Causal()]
    ):
        with case as mask:
            bound = mask.bind(n, n) if mask != masks.Prefix(5000) or n > 5000 else masks.Prefix(5).bind(n, n)
            places = edges(n, 128)
            kinds = bound.blocks(places, places)[0, 0]
            found = torch.zeros_like(kinds)
            runs = cover(bound, n, n, 128).runs
            for row, start, length, full in zip(runs.row, runs.start, runs.length, runs.full, strict=True):
                found[row, start : start + length] = FULL if full else PARTIAL
            assert torch.equal(found, kinds)
            assert bound.share_visible() == float((kinds != EMPTY).double().mean())
