"""Masks that papers are known by, against what the papers say; and what they save on a million tokens."""

from itertools import product

import numpy as np
import torch

from oracles import Largest
from regard import masks
from regard.masks.rectangles import EMPTY, edges
from sweeps import sweep


def _blocks(seen, block):
    """One entry a block, all of whose pairs are alike."""
    n = seen.shape[-1] // block
    cells = seen.reshape(n, block, n, block)
    assert (cells.all((1, 3)) == cells.any((1, 3))).all()
    return cells.any((1, 3))


def test_bigbird_has_the_rows_of_the_paper():
    for case in sweep(product([1, 3], [0, 3])):
        with case as (heads, random):
            blocks, block = 12, 4
            bound = masks.bigbird(num_random_blocks=random, block=block, heads=heads).bind(
                blocks * block, blocks * block
            )
            plans = [_blocks(one.numpy(), block) for one in bound.dense(heads=heads)[0]]
            last = blocks - 1
            expected = [set(range(blocks)), {0, 1, 2, last}]
            expected += [{0, i - 1, i, i + 1, last} for i in range(2, blocks - 2)]
            expected += [{0, last - 2, last - 1, last}, set(range(blocks))]
            for plan in plans:
                for row, wanted in zip(plan, expected, strict=True):
                    seen = set(np.flatnonzero(row))
                    assert wanted <= seen
                    assert len(seen - wanted) <= random
            assert (random == 0) == all(
                set(np.flatnonzero(row)) == w for row, w in zip(plans[0], expected, strict=True)
            )
            assert len({plan.tobytes() for plan in plans}) == (heads if random else 1)


def test_the_last_block_of_bigbird_may_be_short():
    seen = masks.bigbird(num_random_blocks=0, block=4).bind(30, 30).dense()[0, 0]
    assert seen[:, 28:].all()
    assert seen[28:].all()
    assert not seen[4:20, 27].any()


def test_bigbird_means_the_same_for_the_last_queries_alone():
    mask = masks.bigbird(num_random_blocks=2, block=4, heads=2)
    assert torch.equal(mask.bind(7, 50).dense(heads=2), mask.bind(50, 50).dense(heads=2)[:, :, -7:])


def test_longformer_sees_half_the_window_on_either_side_and_its_global_tokens():
    seen = masks.longformer(6, global_positions=(0, 20)).bind(30, 30).dense()[0, 0]
    assert seen[[0, 20]].all()
    assert seen[:, [0, 20]].all()
    assert seen[10].nonzero().flatten().tolist() == [0, 7, 8, 9, 10, 11, 12, 13, 20]


def test_the_sparse_transformer_reaches_every_key_in_two_steps():
    seen = masks.sparse_transformer(5).bind(40, 40).dense()[0, 0]
    assert torch.equal((seen.int() @ seen.int()) > 0, torch.ones(40, 40).tril().bool())
    assert seen[30].nonzero().flatten().tolist() == [0, 5, 10, 15, 20, 25, 26, 27, 28, 29, 30]


def test_a_prefix_a_sequence_is_seen_by_all_of_its_queries():
    seen = masks.prefix_lm(torch.tensor([0, 3])).bind(5, 5).dense(batch=2)[:, 0]
    causal = torch.ones(5, 5).tril().bool()
    assert torch.equal(seen[0], causal)
    assert seen[1, :, :3].all()
    assert torch.equal(seen[1, :, 3:], causal[:, 3:])


MILLION = 2**20
_CENTER = torch.linspace(0, MILLION, MILLION)[None]
_ENDS = torch.arange(0, MILLION + 1, 1024)


def test_planning_a_million_tokens_is_cheap_and_leaves_little():
    cases = [
        (masks.DilatedWindow(512, dilation=4), 17),
        (masks.BlockLocal(512, look_backward=1), 8),
        (masks.LocalMonotonic(500), 9),
        (masks.LocalPredictive(_CENTER, 500), 10),
        (masks.Sinks(4), 1),
        (masks.Prefix(torch.tensor([4, 500])), 5),
        (masks.longformer(512), 6),
        (masks.bigbird(), 3 + 2 + 6),
        (masks.Document.from_cu_seqlens(_ENDS), 8),
        (masks.Document.from_cu_seqlens(_ENDS, within=masks.Causal() & masks.Window(64)), 2),
        (masks.Causal() & masks.Strided(1024), 4096),
    ]
    for case in sweep(cases):
        with case as (mask, most):
            with Largest() as largest:
                bound = mask.bind(MILLION, MILLION)
                for row in (1024, 128 * 4000):
                    kinds = bound.blocks(torch.tensor([row, row + 128]), edges(MILLION, 128))
                    assert 0 < int((kinds != EMPTY).sum()) <= most
            assert largest.bytes <= 40 * MILLION  # a few numbers a token, nothing a pair
