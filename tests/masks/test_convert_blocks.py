"""Block masks of FlexAttention, against the tables that PyTorch counts pair by pair and what it computes with them."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import regard
from oracles import Largest
from regard import masks
from regard.errors import InputError
from regard.masks.rectangles import EMPTY, FULL, PARTIAL
from sweeps import sweep

REAL = torch.ones(2, 100, dtype=torch.bool)
REAL[0, 70:], REAL[1, :33] = False, False
SEEN = torch.rand(2, 3, 70, 100, generator=torch.Generator().manual_seed(0)) < 0.5
SEEN[:, :, :32, 32:64], SEEN[0, 0, 32:64] = True, False
GRID = masks.Neighborhood((10, 10), 3)

# Masks that know their blocks exactly, with (queries, keys): no multiple of the block, fewer queries, batch and heads.
EXACT = {
    "causal": (masks.Causal(), 128, 128),
    "causal, ragged": (masks.Causal(), 100, 100),
    "causal, fewer queries": (masks.Causal(), 37, 100),
    "causal at the start": (masks.Causal(align="start"), 37, 100),
    "window": (masks.Window(left=40, right=3), 70, 100),
    "padding": (masks.Padding(REAL), 70, 100),
    "both": (masks.Causal() & masks.Padding(REAL), 100, 100),
    "not": (~masks.Window(50), 100, 100),
    "nothing": (masks.Causal() & masks.Padding(REAL[:, :64] & False), 64, 64),
}
SAFE = {
    "nothing, perhaps": (masks.Causal() & ~masks.Causal(), 64, 64),
    "dense": (masks.Dense(SEEN), 70, 100),
    "grid": (GRID, 100, 100),
    "rule": (masks.MaskMod(lambda b, h, i, j: (i + 2 * j) % 5 < b + h), 70, 100),
}


def _counted(bound, block):
    """The same mask as FlexAttention makes it: from all pairs."""
    dense = bound.dense(2, 3).expand(2, 3, -1, -1)
    return create_block_mask(lambda b, h, i, j: dense[b, h, i, j], 2, 3, bound.q_len, bound.kv_len, "cpu", block)


def _pairs(counts, indices):
    """The set of all listed (batch, head, row, column), and a check that the table is as wide as the grid."""
    return {
        (b, h, row, int(column))
        for b, h, row in np.ndindex(*counts.shape)
        for column in indices[b, h, row, : counts[b, h, row]]
    }


TABLES = ("kv", "full_kv", "q", "full_q")


def test_tables_are_those_that_counting_pairs_gives():
    for case in sweep(product(EXACT.values(), [16, 32])):
        with case as ((mask, queries, keys), block):
            bound = mask.bind(queries, keys)
            ours, theirs = masks.to_block_mask(bound, block=block), _counted(bound, block)
            assert ours.shape[-2:] == theirs.shape[-2:]
            assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
            for name in TABLES:
                for part in ("num_blocks", "indices"):
                    one, other = getattr(ours, f"{name}_{part}"), getattr(theirs, f"{name}_{part}")
                    assert one.dtype == torch.int32
                    assert one.is_contiguous()
                    assert torch.equal(one.expand(other.shape), other), (name, part)


def test_tables_of_other_masks_visit_all_that_is_seen():
    for case in sweep(SAFE.values()):
        with case as (mask, queries, keys):
            bound = mask.bind(queries, keys)
            ours, theirs = masks.to_block_mask(bound, block=16), _counted(bound, 16)
            listed = {}
            for name in TABLES:
                counts, indices = getattr(ours, f"{name}_num_blocks"), getattr(ours, f"{name}_indices")
                shape = getattr(theirs, f"{name}_indices").shape
                assert indices.shape[2:] == shape[2:]  # narrower ones are for those who ask, see test_block_tables.py
                listed[name] = _pairs(counts.expand(shape[:3]), indices.expand(shape))
                counted = _pairs(getattr(theirs, f"{name}_num_blocks"), getattr(theirs, f"{name}_indices"))
                if name.startswith("full"):
                    assert listed[name] <= counted
                else:
                    assert counted <= listed[name] | listed.get(f"full_{name}", set())
            for way in ("", "full_"):
                assert {(b, h, row, column) for b, h, column, row in listed[f"{way}q"]} == listed[f"{way}kv"]
            assert not listed["kv"] & listed["full_kv"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_computes_what_attention_does():
    for case in sweep(product((EXACT | SAFE).values(), [16, 64])):
        with case as ((mask, queries, keys), block):
            q, k, v = (
                torch.randn(2, 3, n, 16, generator=torch.Generator().manual_seed(n)) for n in (queries, keys, keys + 1)
            )
            v = v[:, :, :keys]
            theirs = flex_attention(q, k, v, block_mask=masks.to_block_mask(mask.bind(queries, keys), block=block))
            torch.testing.assert_close(theirs, regard.attention(q, k, v, mask=mask, backend="reference"))


def test_mask_mod_answers_beyond_the_ends():
    for case in sweep((EXACT | SAFE).values()):
        with case as (mask, queries, keys):
            mask_mod = masks.to_block_mask(mask.bind(queries, keys), block=64).mask_mod
            last = mask_mod(*(torch.tensor(at) for at in (0, 0, queries - 1, keys - 1)))
            assert torch.equal(mask_mod(*(torch.tensor(at) for at in (0, 0, 127, 127))).squeeze(), last.squeeze())


def test_a_block_mask_of_many_tokens_evaluates_no_pairs():
    def never(*at):
        raise AssertionError("a pair was evaluated")

    bound = (masks.Causal() & masks.Window(1000) & masks.MaskMod(never)).bind(100_000, 100_000)
    blocks = -(-100_000 // 64)
    with Largest() as largest:
        block_mask = masks.to_block_mask(bound, block=64)
    at = torch.arange(blocks)
    first, last = (64 * at - 999).clamp(min=0) // 64, (at + 16).clamp(max=blocks - 1)
    assert block_mask.kv_indices.shape == (1, 1, blocks, blocks)
    assert torch.equal(block_mask.kv_num_blocks[0, 0], (at - first + 1).int())
    assert torch.equal(block_mask.kv_indices[0, 0, :, 0], first.int())
    assert torch.equal(block_mask.q_num_blocks[0, 0], (last - at + 1).int())
    assert torch.equal(block_mask.q_indices[0, 0, :, 0], at.int())
    assert largest.bytes <= 4 * blocks * blocks  # a table of 32-bit numbers, nothing larger on the way


# And back.


def test_a_converted_block_mask_is_the_mask_it_was_made_of():
    for case in sweep((EXACT | SAFE).values()):
        with case as (mask, queries, keys):
            bound = mask.bind(queries, keys)
            dense = bound.dense(2, 3).expand(2, 3, -1, -1)
            for block_mask in (masks.to_block_mask(bound, block=16), _counted(bound, (16, 32))):
                back = masks.from_block_mask(block_mask).bind(queries, keys)
                assert torch.equal(back.dense(2, 3).expand(2, 3, -1, -1), dense)


def test_a_converted_block_mask_promises_nothing_that_pairs_do_not_keep():
    for case in sweep(product((EXACT | SAFE).values(), [16, 7, 24])):
        with case as ((mask, queries, keys), step):
            bound = mask.bind(queries, keys)
            dense = bound.dense(2, 3).expand(2, 3, -1, -1)
            rows, columns = (torch.tensor([*range(0, n, step), n]) for n in (queries, keys))
            kinds = masks.from_block_mask(_counted(bound, 16)).bind(queries, keys).blocks(rows, columns)
            for r in range(len(rows) - 1):
                for c in range(len(columns) - 1):
                    part = dense[:, :, rows[r] : rows[r + 1], columns[c] : columns[c + 1]].flatten(2)
                    truth = PARTIAL + part.all(2).int() - (~part.any(2)).int()
                    said = kinds[:, :, r, c]
                    ragged = (rows[r + 1] == queries and queries % 16) or (columns[c + 1] == keys and keys % 16)
                    assert (truth[said == EMPTY] == EMPTY).all()
                    assert (truth[said == FULL] == FULL).all()
                    if step == 16 and not ragged:
                        assert torch.equal(said, truth)


def test_only_what_a_block_mask_lists_is_seen():
    counts, indices = torch.tensor([[[1, 0]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    full_counts, full = (
        torch.tensor([[[0, 1]]], dtype=torch.int32),
        torch.tensor([[[[0, 1], [0, 1]]]], dtype=torch.int32),
    )
    block_mask = BlockMask.from_kv_blocks(
        counts, indices, full_counts, full, BLOCK_SIZE=2, mask_mod=lambda b, h, i, j: j <= i + 2
    )
    assert masks.from_block_mask(block_mask).bind(4, 4).dense()[0, 0].int().tolist() == [
        [0, 0, 1, 0],
        [0, 0, 1, 1],
        [1, 1, 0, 0],
        [1, 1, 0, 0],
    ]


def test_a_block_mask_without_a_rule_sees_whole_blocks():
    counts, indices = torch.tensor([[[2, 1]]], dtype=torch.int32), torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    seen = masks.from_block_mask(BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=2)).bind(4, 4).dense()
    assert seen[0, 0].int().tolist() == [[1, 1, 1, 1]] * 2 + [[0, 0, 1, 1]] * 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_attention_takes_a_block_mask_of_documents():
    document = torch.tensor([0] * 20 + [1] * 35 + [2] * 45)
    block_mask = create_block_mask(
        lambda b, h, i, j: (document[i] == document[j]) & (i >= j), None, None, 100, 100, "cpu", 16
    )
    q, k, v = (torch.randn(2, 3, 100, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    mask = masks.from_block_mask(block_mask)
    assert mask.bind(100, 100).share_visible(16) < 0.4
    torch.testing.assert_close(regard.attention(q, k, v, mask=mask), flex_attention(q, k, v, block_mask=block_mask))


def test_block_masks_of_other_lengths_are_refused():
    mask = masks.from_block_mask(masks.to_block_mask(masks.Causal().bind(37, 100)))
    with pytest.raises(InputError, match="made for 37 queries × 100 keys, got 100 queries × 100 keys"):
        mask.bind(100, 100)
    with pytest.raises(InputError, match="`block` must be at least 1, got 0"):
        masks.to_block_mask(masks.Causal().bind(3, 3), block=0)
