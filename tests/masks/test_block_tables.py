"""Narrow lists of blocks, read as FlexAttention's kernels read them, against the tables that PyTorch counts from pairs.

The kernels (torch/_inductor/kernel/flex/templates) find a row's list at (sequence · heads + head) · stride of heads +
row · stride of rows in a table's memory, read as many entries as the row's count says, and the first one in any case.
Before PyTorch 2.13, and while decoding, full blocks are found by the strides of the table of partial ones.
"""

import tracemalloc
from itertools import product

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask

from oracles import Largest
from regard import masks
from sweeps import sweep

REAL = torch.ones(2, 300, dtype=torch.bool)
REAL[0, 170:], REAL[1, :33] = False, False
IDS = torch.tensor([4] * 50 + [2] * 131 + [9] * 119)
CASES = {
    "causal": (masks.Causal(), 300, 300),
    "window": (masks.Causal() & masks.Window(40), 300, 300),
    "whole blocks": (masks.Causal() & masks.Window(40), 256, 256),
    "fewer queries": (masks.Window(left=20, right=50), 70, 300),
    "fewer keys": (masks.Causal(align="start"), 300, 70),
    "padding of each sequence": (masks.Padding(REAL), 300, 300),
    "documents": (masks.Causal() & masks.Document(IDS), 300, 300),
    "globals": (masks.longformer(32, (0, 150)), 300, 300),
    "one query": (masks.Causal() & masks.Window(40), 1, 300),
}


def _read(counts, indices, strides):
    """The blocks that a kernel visits; `indices` as it lies in memory."""
    memory = indices.flatten().tolist()
    visited = set()
    for b, h, row in np.ndindex(*counts.shape):
        first = (b * counts.shape[1] + h) * strides[1] + row * strides[2]
        assert memory[first] >= 0  # read before the count is asked
        visited |= {(b, h, row, memory[first + n]) for n in range(int(counts[b, h, row]))}
    return visited


def _counted(bound, block):
    dense = bound.dense(2, 3).expand(2, 3, -1, -1)
    return create_block_mask(lambda b, h, i, j: dense[b, h, i, j], 2, 3, bound.q_len, bound.kv_len, "cpu", block)


def _expanded(visited, leading):
    """The same for two sequences with three heads."""
    pairs = [(b, h) for b in range(2) for h in range(3)]
    return {
        (b, h, row, column)
        for b, h in pairs
        for at, head, row, column in visited
        if (at, head) == (b if leading[0] > 1 else 0, h if leading[1] > 1 else 0)
    }


def test_kernels_read_from_narrow_tables_what_counting_pairs_gives():
    for case in sweep(product(CASES, [16, 64])):
        with case as (label, block):
            mask, queries, keys = CASES[label]
            bound = mask.bind(queries, keys)
            ours, theirs = masks.to_block_mask(bound, block=block, narrow=True), _counted(bound, block)
            assert ours.shape[-2:] == theirs.shape[-2:]
            assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
            for by in ("kv", "q"):
                partial = getattr(ours, f"{by}_indices")
                for name in (by, f"full_{by}"):
                    counts, indices = getattr(ours, f"{name}_num_blocks"), getattr(ours, f"{name}_indices")
                    assert counts.dtype == indices.dtype == torch.int32
                    assert indices.is_contiguous()
                    other = getattr(theirs, f"{name}_indices")
                    wanted = _read(getattr(theirs, f"{name}_num_blocks"), other, other.stride())
                    for strides in (indices.stride(), partial.stride()):
                        assert _expanded(_read(counts, indices, strides), bound.mask.leading) == wanted


def test_each_sequence_and_head_has_its_own_lists():
    blocks = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    bound = masks.Dense(blocks.repeat_interleave(64, 2).repeat_interleave(64, 3)).bind(256, 320)
    made = masks.to_block_mask(bound, block=64, narrow=True)
    wanted = {tuple(at) for at in blocks.nonzero().tolist()}
    assert _read(made.full_kv_num_blocks, made.full_kv_indices, made.full_kv_indices.stride()) == wanted
    by_columns = _read(made.full_q_num_blocks, made.full_q_indices, made.full_q_indices.stride())
    assert {(b, h, row, column) for b, h, column, row in by_columns} == wanted
    assert int(made.kv_num_blocks.sum() + made.q_num_blocks.sum()) == 0


def test_a_narrow_table_is_as_wide_as_its_longest_list_or_a_little_wider():
    made = masks.to_block_mask((masks.Causal() & masks.Window(33)).bind(1600, 1600), block=16, narrow=True)
    longest = int((made.kv_num_blocks + made.full_kv_num_blocks).max())
    assert longest == 3
    assert {one.shape[-1] for one in (made.kv_indices, made.full_kv_indices, made.q_indices, made.full_q_indices)} == {
        4
    }
    column = masks.to_block_mask(masks.MaskMod(lambda b, h, i, j: j < 16).bind(160, 32), block=16, narrow=True)
    assert column.q_indices.shape[-1] == 10  # never wider than there are blocks


def test_a_mask_that_sees_nothing_has_tables_to_read_from():
    hidden = masks.Causal() & masks.Padding(torch.zeros(1, 64, dtype=torch.bool))
    made = masks.to_block_mask(hidden.bind(64, 64), block=16, narrow=True)
    assert made.kv_indices.shape == (1, 1, 4, 1)
    assert int(made.kv_num_blocks.sum() + made.full_kv_num_blocks.sum()) == 0


def test_a_million_tokens_are_planned_in_memory_that_grows_with_the_window():
    def never(*at):
        raise AssertionError("a pair was evaluated")

    n, window = 1_000_000, 4096
    bound = (masks.Causal() & masks.Window(window) & masks.MaskMod(never)).bind(n, n)
    tracemalloc.start()
    with Largest() as largest:
        made = masks.to_block_mask(bound, narrow=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert int(made.kv_num_blocks.max()) == window // 128 + 1
    assert made.kv_indices.shape == (1, 1, 7813, 64)
    assert peak + largest.bytes < 100 * 2**20  # what lists at full width take is 932 MiB


def test_narrow_tables_convert_back():
    bound = (masks.Causal() & masks.Window(40)).bind(300, 300)
    back = masks.from_block_mask(masks.to_block_mask(bound, block=16, narrow=True)).bind(300, 300)
    assert torch.equal(back.dense(), bound.dense())
