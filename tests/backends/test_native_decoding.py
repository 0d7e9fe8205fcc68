"""Decoding in the native kernels: rows of a few queries, whose keys are read in parts that are merged."""

import itertools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import masks
from sweeps import sweep

WIDTHS = (64, 64), (32, 48), (128, 80), (48, 144)  # of queries and keys, and of values


def drawn(group, keys, width, value_width, *, kv_heads=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(keys + width)
    sizes = (kv_heads * group, 1, width), (kv_heads, keys, width), (kv_heads, keys, value_width)
    return tuple(torch.randn(2, *one, generator=generator).to(dtype) for one in sizes)


def formula(q, k, v, visible):
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = (q.double() @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("groups", [(1, 5), pytest.param((2, 3, 4, 6, 7, 8, 9, 16), marks=pytest.mark.slow)], ids=str)
def test_heads_that_share_their_keys_have_the_output_of_the_formula(groups):
    for case in sweep(itertools.product(groups, WIDTHS, (16, 333, 2065), (False, True))):
        with case as (group, (width, value_width), keys, masked):
            q, k, v = drawn(group, keys, width, value_width)
            visible = torch.ones(2, keys, dtype=torch.bool)
            visible[1, : keys // 3] = not masked
            mask = masks.Padding(visible) if masked else None
            output = regard.attention(q, k, v, mask=mask, backend="native")
            expected = formula(q, k, v, visible[:, None, None])
            torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_has_the_same_bits_however_many_share_its_keys(dtype):
    q, k, v = drawn(11, 1100, 64, 64, kv_heads=1, dtype=dtype)
    whole = regard.attention(q, k, v, backend="native")
    for first, last in ((0, 1), (1, 3), (3, 6), (6, 11)):
        assert torch.equal(regard.attention(q[:, first:last], k, v, backend="native"), whole[:, first:last])


def test_parts_that_threads_finish_in_any_order_are_merged_to_the_same_bits():
    q, k, v = drawn(3, 20_000, 64, 64)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = [regard.attention(q, k, v, backend="native") for _ in range(30)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)


def test_the_output_has_the_same_bits_with_the_log_sum_exp_and_without():
    for queries in (1, 100):
        q = torch.randn(1, 4, queries, 64)
        k, v = torch.randn(2, 1, 2, 700, 64)
        whole, lse = regard.attention(q, k, v, backend="native", return_lse=True)
        assert torch.equal(regard.attention(q, k, v, backend="native"), whole)
        scores = q.double() @ k.double().repeat_interleave(2, 1).mT / 8
        torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=0, atol=3e-6)


@pytest.mark.parametrize("keys", [64, 333, 1030])
def test_keys_whose_heads_are_adjacent_in_memory_give_the_same_bits(keys):
    q, k, v = drawn(3, keys, 64, 80)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    assert turned[0].stride() != k.stride()
    assert torch.equal(regard.attention(q, *turned, backend="native"), regard.attention(q, k, v, backend="native"))


def test_its_error_in_bfloat16_is_at_most_half_as_large_again_as_that_of_pytorch():
    """Keys and values are read in pairs, of which the last may have one number."""
    for case in sweep(itertools.product([1, 3, 5], [1, 63, 333, 1101, 2064])):
        with case as (group, keys):
            q, k, v = drawn(group, keys, 64, 64, dtype=torch.bfloat16)
            exact = formula(q, k, v, torch.ones(keys, dtype=torch.bool))
            ours = regard.attention(q, k, v, backend="native").double()
            theirs = scaled_dot_product_attention(q, *(x.repeat_interleave(group, 1) for x in (k, v))).double()
            assert (ours - exact).abs().mean() <= 1.5 * (theirs - exact).abs().mean()
