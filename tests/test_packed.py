"""Sequences of different length, jagged or as lengths, against each sequence alone; one query over a bag of vectors."""

import math
from itertools import product

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import masks, normalizers, positions, scores
from regard.errors import InputError
from sweeps import sweep

LENGTHS = (5, 130, 1, 300)


def jagged(lengths, *inner, seed=0):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(n, *inner, dtype=torch.float64, generator=generator) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged).requires_grad_()


@pytest.mark.parametrize("causal", [False, True])
def test_each_sequence_of_a_jagged_tensor_is_a_call_of_its_own(causal):
    q, k, v = jagged(LENGTHS, 4, 8), jagged(LENGTHS, 2, 8, seed=1), jagged(LENGTHS, 2, 6, seed=2)
    ours = regard.attention(*(x.transpose(1, 2) for x in (q, k, v)), mask=masks.Causal() if causal else None)
    assert ours.is_nested
    assert (ours.shape[0], ours.shape[1]) == (4, 4)
    leaves = [[x.detach().requires_grad_() for x in one.unbind()] for one in (q, k, v)]
    theirs = [
        scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in one), is_causal=causal, enable_gqa=True)[0]
        for one in zip(*leaves, strict=True)
    ]
    for mine, alone in zip(ours.unbind(), theirs, strict=True):
        torch.testing.assert_close(mine, alone)
    ours.values().sin().sum().backward()
    torch.autograd.backward([one.sin().sum() for one in theirs])
    for whole, parts in zip((q, k, v), leaves, strict=True):
        torch.testing.assert_close(whole.grad.values(), torch.cat([one.grad for one in parts]))


def test_a_jagged_tensor_without_heads_gives_one():
    x = jagged(LENGTHS, 8)
    ours, lse = regard.attention(x, x, x, return_lse=True)
    for mine, its_lse, one in zip(ours.unbind(), lse.unbind(), x.unbind(), strict=True):
        torch.testing.assert_close(mine, scaled_dot_product_attention(one, one, one))
        torch.testing.assert_close(its_lse, (one @ one.T / math.sqrt(8)).logsumexp(-1))


def test_queries_are_the_last_positions_of_each_sequence():
    q, k = jagged((2, 100, 1, 30), 8), jagged(LENGTHS, 8, seed=1)
    ours = regard.attention(q, k, k, mask=masks.Causal() & masks.Window(20))
    for mine, one, keys in zip(ours.unbind(), q.unbind(), k.unbind(), strict=True):
        place = torch.arange(len(one))[:, None] + len(keys) - len(one) - torch.arange(len(keys))
        seen = (place >= 0) & (place < 20)
        torch.testing.assert_close(mine, scaled_dot_product_attention(one, keys, keys, attn_mask=seen))


def test_what_counts_distances_holds_inside_each_sequence():
    for case in sweep(
        [{"bias": positions.ALiBi(2)}, {"rotary": positions.RoPE(8)}, {"mask": masks.Window(left=3, right=3)}]
    ):
        with case as options:
            q, k, v = (jagged(LENGTHS, 2, 8, seed=seed) for seed in range(3))
            ours = regard.attention(*(x.transpose(1, 2) for x in (q, k, v)), **options)
            for mine, *one in zip(ours.unbind(), q.unbind(), k.unbind(), v.unbind(), strict=True):
                alone = regard.attention(*(x.transpose(0, 1)[None] for x in one), **options, backend="reference")
                torch.testing.assert_close(mine, alone[0])


def test_packed_tensors_are_masked_by_lengths_edges_or_ids():
    lengths = torch.tensor(LENGTHS)
    edges = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    ids = torch.arange(4).repeat_interleave(lengths)
    x = torch.randn(2, int(edges[-1]), 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([scaled_dot_product_attention(y, y, y) for y in x.split(LENGTHS, 1)], 1)
    for mask in (
        masks.Document.from_lengths(lengths),
        masks.Document.from_cu_seqlens(edges.int()),
        masks.Document(ids),
    ):
        torch.testing.assert_close(regard.attention(x, x, x, mask=mask), alone)
    assert regard.explain(x, x, x, mask=masks.Document(ids)).share < 0.9


def test_what_has_no_meaning_over_packed_sequences_is_refused():
    x, plain = jagged((2, 3), 4), torch.zeros(2, 3, 4, dtype=torch.float64)
    shorter = (jagged((1, 2), 4), x, x)
    holes = torch.nested.narrow(plain, 1, 0, torch.tensor([1, 2]), layout=torch.jagged)
    cases = {
        "weights": ((x, x, x), {"return_weights": True}, "`return_weights=True` .*: pass them one by one"),
        "mask": ((x, x, x), {"mask": torch.ones(3, 3, dtype=torch.bool)}, "`mask` .* is a mask over positions"),
        "bias": ((x, x, x), {"bias": torch.ones(3, 3)}, r"`bias` .*\.to_padded_tensor"),
        "factor": ((x, x, x), {"weight_factor": torch.ones(3, 3)}, "`weight_factor` for jagged tensors"),
        "ALiBi": (shorter, {"bias": positions.ALiBi(1)}, "ALiBi needs queries and keys of the same lengths"),
        "Shaw": (shorter, {"score": scores.Shaw(torch.zeros(3, 4))}, "Shaw needs .* of the same lengths"),
        "plain keys": ((x, plain, plain), {}, "`k` must be jagged like the others"),
        "lengths": ((x, x, jagged((3, 2), 4)), {}, r"lengths \[2, 3\], \[2, 3\] and \[3, 2\]"),
        "heads": ((jagged((2, 3), 2, 4),) * 3, {}, r"`q` must be jagged.*transpose\(1, 2\) for heads last"),
        "holes": ((holes,) * 3, {}, r"no holes between its sequences: call q\.contiguous\(\)"),
    }
    for case in sweep(product(cases, (regard.attention, regard.explain))):
        with case as (name, door):
            inputs, options, words = cases[name]
            with pytest.raises(InputError, match=words):
                door(*inputs, **options)


def test_rotary_positions_begin_anew_in_each_sequence():
    q, k = jagged((2, 100, 1, 30), 8), jagged(LENGTHS, 8, seed=1)
    rope = positions.RoPE(8)
    ours = regard.attention(q, k, k, rotary=rope)
    for mine, one, keys in zip(ours.unbind(), q.unbind(), k.unbind(), strict=True):
        i, j = torch.arange(len(one)) + len(keys) - len(one), torch.arange(len(keys))
        alone = scaled_dot_product_attention(rope.rotate(one, i), rope.rotate(keys, j), keys)
        torch.testing.assert_close(mine, alone, atol=1e-12, rtol=1e-12)


def test_a_rule_of_ones_own_is_told_which_sequence_it_is_asked_for():
    x, seen = jagged((4, 6, 3), 8), torch.tensor([1, 3, 2])
    ours = regard.attention(x, x, x, mask=masks.MaskMod(lambda batch, head, i, j: j < seen[batch]))
    for mine, one, count in zip(ours.unbind(), x.unbind(), seen.tolist(), strict=True):
        torch.testing.assert_close(mine, scaled_dot_product_attention(one, one[:count], one[:count]))


def test_a_sigmoid_of_each_sequences_own_length_is_refused():
    x = jagged((2, 3), 4)
    with pytest.raises(InputError, match=r"the same in every sequence.*Sigmoid\(shift=…\)"):
        regard.attention(x, x, x, normalizer=normalizers.Sigmoid())
    ours = regard.attention(x, x, x, normalizer=normalizers.Sigmoid(shift=-1.0))
    for mine, one in zip(ours.unbind(), x.unbind(), strict=True):
        torch.testing.assert_close(mine, torch.sigmoid(one @ one.T / 2 - 1) @ one)


def test_one_query_over_a_bag_is_the_expectation_of_its_values():
    generator = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(*shape, generator=generator).double() for shape in ((4,), (7, 4), (7, 3)))
    alpha = [math.exp(float(q @ key) / 2) for key in keys]
    expected = sum(a / sum(alpha) * value for a, value in zip(alpha, values, strict=True))
    output, weights, lse = regard.attention(q, keys, values, return_weights=True, return_lse=True)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, torch.tensor(alpha, dtype=torch.float64) / sum(alpha))
    torch.testing.assert_close(lse, torch.tensor(math.log(sum(alpha)), dtype=torch.float64))
    bag = sum(a / sum(alpha) * key for a, key in zip(alpha, keys, strict=True))
    torch.testing.assert_close(regard.attention(q, keys, keys), bag)


def test_one_query_may_be_masked_and_biased_with_a_row():
    q, bag = torch.zeros(4), torch.eye(4)
    seen = torch.tensor([True, False, True, False])
    torch.testing.assert_close(regard.attention(q, bag, bag, mask=seen), torch.tensor([0.5, 0.0, 0.5, 0.0]))
    bias = torch.tensor([0.0, 0.0, 0.0, 100.0])
    torch.testing.assert_close(regard.attention(q, bag, bag, bias=bias), torch.tensor([0.0, 0.0, 0.0, 1.0]))
