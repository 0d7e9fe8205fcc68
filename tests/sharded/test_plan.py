"""The plan of a sharded call: who computes what, what is sent, and that work is even, counted pair by pair."""

import numpy as np
import torch

from regard import masks
from regard.parallel.sequence_layout import SequenceLayout, contiguous, dealt_blocks, mirrored, zigzag
from regard.parallel.shard_plan import TensorSizes, plan_shards
from regard.problem import Problem
from sweeps import sweep

LENGTHS = [(8, 2), (101, 2), (100, 3), (7, 4), (5, 8), (4096, 8)]


def _call(mask, length):
    x = torch.zeros(1, 1, length, 4, device="meta")
    return Problem.of(x, x, x, mask=mask)


def _plan(mask, length, ranks):
    call, layout = _call(mask, length), contiguous(length, ranks)
    return plan_shards(call.mask, call.everything, layout, layout)


def _visible(mask, length):
    """How many keys each row sees, counted in the dense mask."""
    return mask.bind(length, length).dense()[0, 0].sum(1).numpy()


def _pairs(visible, layout):
    """The visible pairs of each rank's rows."""
    return np.array([sum(visible[span.start : span.stop].sum() for span in mine) for mine in layout.spans])


def test_a_layout_gives_each_position_to_one_rank_and_as_many_as_dtensor():
    for case in sweep(LENGTHS):
        with case as (length, ranks):
            work = _plan(masks.Causal(), length, ranks).work
            sizes = tuple(len(chunk) for chunk in torch.arange(length).chunk(ranks))
            sizes += (0,) * (ranks - len(sizes))
            for layout in (contiguous(length, ranks), zigzag(length, ranks), dealt_blocks(length, ranks, work)):
                assert sorted(layout.order.tolist()) == list(range(length))
                assert layout.sizes == sizes
            assert sorted(mirrored(length, ranks).order.tolist()) == list(range(length))


def test_causal_work_is_even_in_pairs():
    visible = _visible(masks.Causal(), 4096)
    for case in sweep([2, 3, 4, 8]):
        with case as ranks:
            plan = _plan(masks.Causal(), 4096, ranks)
            pairs = _pairs(visible, plan.queries)
            assert pairs.max() <= 1.05 * pairs.mean()
            assert plan.imbalance <= 1.05
            zigzagged = _pairs(visible, zigzag(4096, ranks))
            assert zigzagged.max() <= 1.05 * zigzagged.mean()
            stored = _pairs(visible, plan.stored)
            assert stored.max() > 1.4 * stored.mean()


def test_a_window_sends_its_own_width_to_the_neighbour():
    plan = _plan(masks.Causal() & masks.Window(512), 65_536, 8)
    assert plan.queries == plan.stored
    assert plan.all_rounds == (7,)  # of rank − 1
    for rank in range(1, 8):
        assert plan.segments(rank, rank - 1) == (range(8192 * rank - 512, 8192 * rank),)
    assert plan.rounds(0) == ()


def test_a_boundary_within_a_block_of_the_mask_sends_nothing_that_is_hidden():
    plan = _plan(masks.Causal() & masks.Window(20), 808, 2)
    assert plan.queries == plan.stored
    assert 404 % plan.block
    assert plan.keys_needed(0, 1) == 0
    assert 19 <= plan.keys_needed(1, 0) < 19 + 2 * plan.block  # its first row, and what that sees, are in blocks


def test_documents_that_fit_their_ranks_send_nothing():
    plan = _plan(masks.Causal() & masks.Document(torch.arange(4096) // 128), 4096, 4)
    sizes = TensorSizes(1, 1, 1, 64, 64, 64, 4)
    assert [plan.bytes_forward(rank, sizes) + plan.bytes_backward(rank, sizes) for rank in range(4)] == [0] * 4


def test_documents_are_dealt_in_blocks_where_one_is_long():
    mask = masks.Causal() & masks.Document(torch.tensor([0] * 2048 + [1 + n // 64 for n in range(2048)]))
    work = _plan(mask, 4096, 4).work
    layout = dealt_blocks(4096, 4, work)
    visible = _visible(mask, 4096)
    pairs = _pairs(visible, layout)
    assert pairs.max() <= 1.1 * pairs.mean()
    assert _pairs(visible, zigzag(4096, 4)).max() > 1.5 * pairs.mean()


def test_what_is_sent_is_what_is_received():
    mask = masks.longformer(64, global_positions=(0, 700))
    plan = _plan(mask, 1000, 3)
    for rank in range(3):
        assert plan.keys_needed(rank, rank) <= plan.keys.sizes[rank]
    assert sum(map(plan.keys_sent, range(3))) == sum(map(plan.keys_received, range(3)))


def test_rectangles_cover_every_visible_pair_once():
    mask = masks.bigbird(num_random_blocks=1, block=16)
    plan = _plan(mask, 300, 3)
    counted = np.zeros((300, 300), int)
    for rank in range(3):
        for owner in range(3):
            for one in plan.rectangles(rank, owner):
                counted[one.rows.start : one.rows.stop, one.columns.start : one.columns.stop] += 1
    seen = mask.bind(300, 300).dense()[0, 0].numpy()
    assert counted.max() == 1
    assert (counted[seen] == 1).all()


def test_a_layout_in_one_order_only():
    layout = SequenceLayout(((range(4, 6), range(2)), (range(2, 4),)))
    assert layout.positions(0).tolist() == [4, 5, 0, 1]
    assert layout.places(0) == ((range(4, 6), 0), (range(2), 2))
