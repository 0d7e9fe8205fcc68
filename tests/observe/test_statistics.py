"""Statistics folded block by block equal the slow ones of dense float64 weights, in one pass and call by call."""

import itertools

import numpy as np
import pytest
import torch

from oracles import causal, dense, entropy, f64, pooled, window
from regard.masks import Causal, MaskMod, Padding, Window
from regard.observe.call_kinds import CallFromQK, CallFromWeights
from regard.observe.statistics import Distance, Entropy, Extent, HeatMap, Mass, Received, Top, Weights
from regard.observe.statistics.default_statistics import bin_width
from regard.observe.watched_call import Ids
from regard.observe.weight_rows import RowBlock
from regard.problem import Problem
from sweeps import sweep

FIELDS = {"mean", "max", "query_bin", "key_bin", "top_keys", "top_weights"}
FIELDS |= {"entropy", "received", "weights", "distance"}


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def fold(calls, dtype=torch.float64):
    """What the statistics make of calls that append rows to one record."""
    statistics = HeatMap(), Top(), Entropy(), Received(), Weights(), Distance()
    queries, device = 0, torch.device("cpu")
    for call in calls:
        start, queries = queries, queries + call.queries
        extent = Extent(call.batch, call.heads, queries, call.keys, dtype, device)
        for one in statistics:
            one.start(extent)
        for rows in call.blocks(start, bin_width(extent.queries)):
            for one in statistics:
                one.fold(rows)
    return {name: value for one in statistics for name, value in one.finish(extent).items()}


def check(seen, weights, rtol=1e-9, atol=1e-13):
    """Compare everything with the dense weights."""

    def near(ours, theirs):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)

    assert set(seen) == FIELDS
    queries, keys = weights.shape[-2:]
    assert (seen["query_bin"], seen["key_bin"]) == (bin_width(queries), bin_width(keys))
    near(seen["mean"], pooled(weights, seen["query_bin"], seen["key_bin"], np.mean))
    near(seen["max"], pooled(weights, seen["query_bin"], seen["key_bin"], np.max))
    near(seen["entropy"], entropy(weights))
    assert (seen["entropy"] >= 0).all()
    near(seen["received"], weights.sum(-2))
    near(seen["weights"], weights)
    away, mass = np.abs(np.arange(queries)[:, None] - np.arange(keys)), weights.sum(-1)
    near(seen["distance"], (weights * away).sum(-1) / np.where(mass > 0, mass, 1))
    count = min(8, keys)
    strongest = torch.tensor(weights).topk(count).values.numpy()
    near(seen["top_weights"], strongest)
    found = np.take_along_axis(weights, np.maximum(seen["top_keys"], 0), -1)
    near(np.where(seen["top_keys"] >= 0, found, 0), strongest)
    assert ((seen["top_keys"] == -1) == (seen["top_weights"] == 0)).all()
    assert (seen["top_keys"] < keys).all()


def test_statistics_of_q_and_k_are_those_of_the_dense_weights():
    for case in sweep(
        itertools.product([1, 5, 127, 128, 129, 300, 513, 700, 1500], ["all", "causal", "padded", "window"])
    ):
        with case as (n, kind):
            heads = 2 if n < 1500 else 1
            q, k = randn(1, heads, n, 4), 3 * randn(1, 1, n, 4, seed=1)
            real = np.arange(n) < max(1, n * 2 // 3)
            mask, visible = {
                "all": (None, None),
                "causal": (Causal(), causal(n, n)),
                "padded": (Padding(torch.tensor(real)[None]), real[None]),
                "window": (Window(left=70, right=3), window(n, n, 70, 3)),
            }[kind]
            check(fold([CallFromQK(Problem.of(q, k, k, mask=mask))]), dense(q, k, k, visible=visible).weights)


def test_a_mask_tensor_hides_from_every_head_of_a_group_that_is_cut():
    n = 600  # two heads of three fit a block
    q, k = randn(1, 9, n, 4), randn(1, 3, n, 4, seed=1)
    visible = causal(n, n) & (np.random.default_rng(0).random((n, n)) < 0.7)
    check(fold([CallFromQK(Problem.of(q, k, k, mask=torch.tensor(visible)))]), dense(q, k, k, visible=visible).weights)


@pytest.mark.parametrize("by", ["batch_index", "head"])
def test_a_rule_hides_other_pairs_from_each_sequence_or_head(by):
    n = 300
    q, k = randn(2, 2, n, 4), randn(2, 2, n, 4, seed=1)
    rule = {
        "batch_index": lambda batch, head, i, j: (j <= i) & (j % (2 + batch) == 0),
        "head": lambda batch, head, i, j: (j <= i) & (j % (2 + head) == 0),
    }[by]
    batch, head = np.arange(2)[:, None, None, None], np.arange(2)[None, :, None, None]
    visible = rule(batch, head, np.arange(n)[:, None], np.arange(n))
    check(fold([CallFromQK(Problem.of(q, k, k, mask=MaskMod(rule)))]), dense(q, k, k, visible=visible).weights)


def test_statistics_of_cross_attention():
    for case in sweep([(3, 700), (700, 3), (513, 129), (600, 1030)]):
        with case as (queries, keys):
            q, k = randn(2, 2, queries, 4), randn(2, 2, keys, 4, seed=1)
            check(fold([CallFromQK(Problem.of(q, k, k))]), dense(q, k, k).weights)


def test_statistics_of_given_weights():
    for case in sweep([1, 5, 127, 129, 513, 700]):
        with case as n:
            weights = (
                (2 * randn(2, 2, n, n)).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
            )
            check(fold([CallFromWeights(weights)]), f64(weights))


def test_statistics_of_float32_are_right_to_float32():
    x = randn(1, 2, 700, 8, dtype=torch.float32)
    seen = fold([CallFromQK(Problem.of(x, x, x, mask=Causal()))], torch.float32)
    assert seen["mean"].dtype == seen["entropy"].dtype == seen["top_weights"].dtype == np.float32
    check(seen, dense(x, x, x, visible=causal(700, 700)).weights, rtol=2e-4, atol=1e-5)


def test_rows_that_see_nothing_add_nothing():
    n = 600
    x = randn(1, 1, n, 4)
    visible = causal(n, n)
    visible[100:300] = False
    seen = fold([CallFromQK(Problem.of(x, x, x, mask=torch.tensor(visible)))])
    check(seen, dense(x, x, x, visible=visible).weights)
    assert (seen["top_keys"][:, :, 100:300] == -1).all()
    assert (seen["entropy"][:, :, 100:300] == 0).all()


def _prefixes(n, cuts):
    """The calls of a generation with a cache: new queries, all keys so far."""
    q, k = randn(1, 2, n, 4), 2 * randn(1, 1, n, 4, seed=1)
    edges = [0, *cuts, n]
    calls = [
        CallFromQK(Problem.of(q[:, :, a:b], k[:, :, :b], k[:, :, :b], mask=Causal()))
        for a, b in itertools.pairwise(edges)
    ]
    return calls, dense(q, k, k, visible=causal(n, n)).weights


CUTS = [
    (9, range(1, 9)),  # row by row from the first
    (520, range(505, 520)),  # row by row over the first merging of bins, at 513
    (700, [300, 512, 513, 514, 650]),
    (1100, [512, 1020, 1023, 1024, 1025, 1026]),  # and over the next one, at 1025
    (1100, [3]),
    (560, [500, 501, 559]),
]


def test_rows_call_by_call_are_the_rows_of_one_pass():
    for case in sweep(CUTS):
        with case as (n, cuts):
            calls, weights = _prefixes(n, cuts)
            check(fold(calls), weights)


def test_given_rows_call_by_call_are_the_rows_of_one_pass():
    n = 530
    weights = randn(1, 1, n, n).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    edges = [0, 500, *range(508, n + 1)]
    calls = [CallFromWeights(weights[:, :, a:b, :b]) for a, b in itertools.pairwise(edges)]
    check(fold(calls), f64(weights))


def test_growing_queries_over_fixed_keys():
    q, k = randn(1, 1, 530, 4), randn(1, 1, 700, 4, seed=1)
    edges = [0, 1, 400, *range(510, 531)]
    calls = [CallFromQK(Problem.of(q[:, :, a:b], k, k)) for a, b in itertools.pairwise(edges)]
    check(fold(calls), dense(q, k, k).weights)


def test_a_head_that_copies_has_no_entropy_and_one_that_is_blind_to_content_has_ln_n():
    weights = torch.stack([torch.eye(6), torch.full((6, 6), 1 / 6)])[None].double()
    seen = fold([CallFromWeights(weights)])
    np.testing.assert_allclose(seen["entropy"][0], [[0] * 6, [np.log(6)] * 6], atol=1e-12)
    np.testing.assert_allclose(seen["received"], np.ones((1, 2, 6)), atol=1e-12)
    assert (seen["top_keys"][0, 0, :, 0] == np.arange(6)).all()
    assert (seen["top_keys"][0, 0, :, 1:] == -1).all()


def test_bins_are_powers_of_two_and_at_most_256_beyond_512():
    for n in (1, 512, 513, 1024, 1025, 100_000, 1_000_000):
        width = bin_width(n)
        assert width & (width - 1) == 0
        assert -(-n // width) <= (512 if n <= 512 else 256)
        assert n <= 512 or -(-n // (width // 2)) > 256


@pytest.mark.parametrize("on", ["duplicate_token", "separators"])
def test_tokens_are_where_the_weights_are(on):
    # Ids are heard on the CPU; "meta" stands for the device of a model.
    ids = torch.tensor([[1, 2, 1]])
    call = CallFromQK(Problem.of(*randn(3, 1, 1, 3, 4).to("meta")))
    around = call.having(site="attn", ids=Ids(ids, ids, lambda heard: torch.isin(heard, torch.tensor([2]))))
    extent = Extent(1, 1, 3, 3, torch.float32, torch.device("meta"), around=around)
    mass = Mass(on)
    mass.start(extent)
    (rows,) = [RowBlock(0, slice(0, 1), 0, 0, torch.ones(1, 3, 3, device="meta"))]
    assert mass.of(rows).device.type == "meta"
