"""T5's buckets, bias and whole attention against those of transformers with random weights."""

from itertools import product

import pytest
import torch

from regard import attention, masks, scores
from regard.errors import InputError
from regard.positions import T5Bias, t5_buckets
from sweeps import sweep

t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
transformers = pytest.importorskip("transformers")


def test_buckets_are_those_of_transformers():
    for case in sweep(
        product(
            [True, False], [(32, 128), (32, 20), (8, 16), (4, 9), (64, 800), (32, 4096)], [torch.int64, torch.int32]
        )
    ):
        with case as (bidirectional, (buckets, max_distance), dtype):
            distance = torch.arange(-10_000, 10_001, dtype=dtype)
            theirs = t5.T5Attention._relative_position_bucket(-distance.long(), bidirectional, buckets, max_distance)
            ours = t5_buckets(distance, buckets, bidirectional=bidirectional, max_distance=max_distance)
            assert ours.dtype == torch.int64
            assert torch.equal(ours, theirs)


def _module(is_decoder, heads=4):
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=24, d_kv=6, num_heads=heads, dropout_rate=0.0, is_decoder=is_decoder, attn_implementation="eager"
    )
    module = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0, is_causal=is_decoder)
    torch.nn.init.normal_(module.relative_attention_bias.weight)
    return module


@pytest.mark.parametrize("is_decoder", [False, True])
def test_the_bias_is_that_of_transformers(is_decoder):
    module = _module(is_decoder)
    bias = T5Bias(module.relative_attention_bias.weight, bidirectional=not is_decoder)
    queries, keys = torch.arange(140, 200), torch.arange(200)
    theirs = module.compute_bias(60, 200, past_seen_tokens=140)
    assert torch.equal(bias.tile(slice(0, 1), slice(0, 4), queries, keys), theirs)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_the_whole_attention_is_that_of_transformers(is_decoder):
    module, x = _module(is_decoder).double(), torch.randn(2, 150, 24, dtype=torch.float64)
    seen = torch.ones(150, 150, dtype=torch.bool).tril() if is_decoder else torch.ones(150, 150, dtype=torch.bool)
    minus = torch.zeros(1, 1, 150, 150, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)
    theirs = module(x, mask=minus)[0]
    table = module.relative_attention_bias.weight
    (their_gradient,) = torch.autograd.grad(theirs.square().sum(), table)

    q, k, v = (one(x).view(2, 150, 4, 6).transpose(1, 2) for one in (module.q, module.k, module.v))
    out = attention(
        q,
        k,
        v,
        score=scores.Dot(),
        bias=T5Bias(table, bidirectional=not is_decoder),
        mask=masks.Causal() if is_decoder else None,
    )
    ours = module.o(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    (our_gradient,) = torch.autograd.grad(ours.square().sum(), table)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-9, atol=1e-9)


def test_a_decoder_puts_later_keys_into_bucket_zero():
    assert t5_buckets(torch.tensor([-1, -500]), bidirectional=False).tolist() == [0, 0]


def test_everything_from_max_distance_on_shares_the_last_bucket():
    assert t5_buckets(torch.tensor([127, 128, 10**6]), bidirectional=False).tolist() == [31, 31, 31]
    assert t5_buckets(torch.tensor([128, 10**6, -128, -(10**6)]), bidirectional=True).tolist() == [15, 15, 31, 31]


def test_a_wrong_bias_says_what_is_right():
    cases = [
        (lambda: T5Bias(torch.zeros(33, 2), bidirectional=True), "`num_buckets` must be even, .* got 33"),
        (lambda: T5Bias(torch.zeros(2, 2), bidirectional=True), "`num_buckets` .* at least 4, got 2"),
        (lambda: T5Bias(torch.zeros(1, 2), bidirectional=False), "`num_buckets` .* at least 2, got 1"),
        (lambda: T5Bias(torch.zeros(32, 2), bidirectional=False, max_distance=16), "`max_distance` .* at least 17"),
        (lambda: T5Bias(torch.zeros(32, 2), bidirectional=None), "`bidirectional` must be True .* got None"),
        (lambda: T5Bias(torch.zeros(32), bidirectional=True), r"`table` must be \(buckets, heads\) .* shape \(32,\)"),
        (lambda: T5Bias(torch.zeros(32, 2).long(), bidirectional=True), "floating-point type, got torch.int64"),
        (lambda: T5Bias([0.0], bidirectional=True), r"`table` must be a tensor \(buckets, heads\), got list"),
        (lambda: t5_buckets(torch.arange(3), 7, bidirectional=True), "must be even"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
