"""Random blocks: drawn once, from the seed alone, for each head and block row."""

from itertools import pairwise

import pytest
import torch

import regard
from oracles import Largest
from regard import masks
from regard.errors import InputError
from regard.masks.rectangles import EMPTY, FULL, PARTIAL
from sweeps import sweep


def _table(*args, keys=1024, **options):
    return masks.RandomBlocks(*args, **options).bind(1, keys).mask.plan


def test_every_row_draws_distinct_blocks_and_every_head_its_own():
    table = _table(5, block=16, heads=4)
    assert table.shape == (4, 64, 5)
    assert all(len(set(row)) == 5 for row in table.flatten(0, 1).tolist())
    assert not any(torch.equal(table[0], table[h]) for h in (1, 2, 3))
    assert len({tuple(sorted(row)) for row in table.flatten(0, 1).tolist()}) > 250


def test_every_block_is_drawn_as_often_as_any_other():
    counts = _table(3, block=1, keys=2000)[0] * 8 // 2000  # eighths of the row
    share = counts.flatten().bincount(minlength=8) / counts.numel()
    assert (share - 1 / 8).abs().max() < 0.02  # about four standard deviations of 6000 draws


def test_every_pair_of_blocks_is_drawn_as_often_as_any_other():
    pairs = torch.cat([_table(2, block=1, keys=4, seed=seed, heads=50)[0:].flatten(0, 1) for seed in range(10)])
    low, high = pairs.amin(1), pairs.amax(1)
    share = (low * 4 + high).bincount(minlength=16).double() / len(pairs)
    assert (share[share > 0] - 1 / 6).abs().max() < 0.04
    assert int((share > 0).sum()) == 6


def test_the_seed_alone_decides():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = _table(3, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(one, _table(3, seed=5))
    assert not torch.equal(one, _table(3, seed=6))


def test_a_position_has_the_same_blocks_wherever_the_queries_start():
    mask = masks.RandomBlocks(2, block=8, heads=3)
    whole = mask.bind(100, 100).dense(heads=3)
    assert torch.equal(mask.bind(10, 100).dense(heads=3), whole[:, :, 90:])
    assert torch.equal(mask.bind(10, 100, q_offset=33).dense(heads=3), whole[:, :, 33:43])


def test_queries_outside_the_keys_see_nothing():
    bound = masks.RandomBlocks(50, block=8).bind(20, 16)
    assert bound.dense()[0, 0].sum(1).tolist() == [0] * 4 + [16] * 16
    kinds = bound.blocks(torch.tensor([0, 4, 20]), torch.tensor([0, 16]))
    assert kinds[0, 0].tolist() == [[EMPTY], [FULL]]
    late = masks.RandomBlocks(50, block=8).bind(2, 14, q_offset=13)
    assert late.dense()[0, 0].sum(1).tolist() == [14, 0]
    assert late.blocks(torch.tensor([0, 2]), torch.tensor([0, 14])).item() == PARTIAL


def test_rectangles_over_many_block_rows_are_empty_only_where_nothing_is_drawn():
    bound = masks.RandomBlocks(1, block=2, heads=2).bind(200, 200)
    for edges in (torch.arange(0, 201, 64), torch.tensor([0, 37, 111, 200])):
        kinds, seen = bound.blocks(edges, torch.arange(0, 201, 4))[0], bound.dense(1, 2)[0]
        for at, (top, bottom) in enumerate(pairwise(edges)):
            some = seen[:, top:bottom].view(2, -1, 50, 4).any(-1).any(1)
            assert (kinds[:, at][some] == PARTIAL).all()
            if top % 64 == bottom % 64 == 0:  # groups of rows fit exactly
                assert (kinds[:, at][~some] == EMPTY).all()


def test_a_million_tokens_are_drawn_and_planned_in_little_memory():
    with Largest() as largest:
        bound = masks.RandomBlocks(3, heads=2).bind(1_000_000, 1_000_000)
        kinds = bound.blocks(torch.tensor([640, 768]), torch.arange(0, 1_000_001, 128)[:7813])
        assert 2 <= int((kinds != EMPTY).sum()) <= 2 * 6
    assert largest.bytes <= 8 * 1_000_000


TABLE = torch.tensor([[[0], [2], [1]], [[2], [0], [0]]])  # two heads, three block rows, one block each


def test_a_given_plan_is_used_as_it_is():
    mask = masks.RandomBlocks(block=2, table=TABLE)
    seen = mask.bind(6, 6).dense(heads=2)[0]
    for head in range(2):
        for i in range(6):
            block = int(TABLE[head, i // 2, 0])
            assert seen[head, i].tolist() == [j // 2 == block for j in range(6)]
    assert torch.equal(mask.bind(1, 6).dense(heads=2)[0, :, 0], seen[:, 5])
    kinds = mask.bind(6, 6).blocks(torch.arange(0, 7, 2), torch.arange(0, 7, 2))
    assert torch.equal(kinds > 0, seen[:, ::2, ::2][None])


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_a_block_that_a_plan_repeats_counts_once(dtype):
    """With 1, 1 in a row, a rectangle of the blocks 1 and 2 holds two numbers and one visible block."""
    table = torch.tensor([[[1, 1], [0, 2], [2, 2], [0, 0]], [[3, 3], [3, 3], [1, 0], [2, 3]]])
    bound = masks.RandomBlocks(block=4, table=table.to(dtype)).bind(16, 16)
    columns = [[[j // 4 in table[head, i // 4].tolist() for j in range(16)] for i in range(16)] for head in range(2)]
    expected = torch.tensor(columns)
    assert torch.equal(bound.dense(heads=2)[0], expected)
    for size in (4, 8, 16):
        edges = torch.arange(0, 17, size)
        kinds = bound.blocks(edges, edges)[0]
        tiles = expected.unflatten(2, (-1, size)).unflatten(1, (-1, size))  # (heads, rows, size, columns, size)
        assert not (kinds == FULL)[~tiles.all((2, 4))].any()
        assert not (kinds == EMPTY)[tiles.any((2, 4))].any()
    q, k, v = torch.randn(3, 1, 2, 16, 8)
    dense = torch.softmax((q @ k.mT / 8**0.5).masked_fill(~expected, -torch.inf), -1) @ v
    torch.testing.assert_close(regard.attention(q, k, v, mask=bound, backend="strips"), dense)
    rows = 32 * [[0] * 3] + 32 * [[2] * 3]  # taller than what is looked through row by row
    tall = masks.RandomBlocks(block=1, table=torch.tensor([rows])).bind(64, 64)
    assert tall.blocks(torch.tensor([0, 32, 64]), torch.tensor([0, 1, 3, 64])).gt(0)[0, 0].tolist() == [
        [True, False, False],
        [False, True, False],
    ]


def test_a_wrong_draw_says_what_is_right():
    cases = [
        (lambda: masks.RandomBlocks(0), "`num_random_blocks` counts the blocks .* integer of at least 1, got 0"),
        (lambda: masks.RandomBlocks(), "`num_random_blocks` counts .* got None"),
        (lambda: masks.RandomBlocks(table=torch.zeros(2, 3)), r"`table` must be an integer .* got torch.float32"),
        (lambda: masks.RandomBlocks(table=[[[1]]]), r"`table` must be an integer tensor"),
        (lambda: masks.RandomBlocks(2, table=TABLE), "`num_random_blocks` is the table's, 1, got 2"),
        (lambda: masks.RandomBlocks(heads=3, table=TABLE), "`heads` is the table's, 2, got 3"),
        (
            lambda: masks.RandomBlocks(block=2, table=TABLE).bind(8, 8),
            "each of the 4 block rows of 8 keys .* got 3 rows",
        ),
        (lambda: masks.RandomBlocks(block=2, table=TABLE + 1).bind(6, 6), "from 0 to 2 .* blocks from 1 to 3"),
        (lambda: masks.RandomBlocks(1, block=0), "`block` counts .* at least 1, got 0"),
        (lambda: masks.RandomBlocks(1, heads=0), "`heads` counts .* at least 1, got 0"),
        (lambda: masks.RandomBlocks(1, seed=0.5), "`seed` must be an integer of 64 bits, got 0.5"),
        (lambda: masks.RandomBlocks(1)(*torch.zeros(4, 1).long()), r"call mask.bind\(q_len, kv_len\)"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
