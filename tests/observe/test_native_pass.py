"""The second pass in one native kernel gives what dense float64 weights give, and takes the calls that it can."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles import causal, dense, entropy, pooled, window
from regard.masks import Causal, Padding, Window
from regard.normalizers import Softmax
from regard.observe import native_pass
from regard.observe.call_kinds import CallFromQK
from regard.observe.keep_qk import Purse, QueriesKeys
from regard.observe.statistics import Confidence, Distance, Entropy, Extent, HeatMap, Received, Sink, Top
from regard.problem import Problem
from regard.scores import ScaledDot
from sweeps import sweep

MASKS = {
    "all": (None, lambda *sizes: None),
    "causal": (Causal(), causal),
    "window": (Window(left=70, right=3), lambda *sizes: window(*sizes, 70, 3)),
    "causal window": (Causal() & Window(200), lambda *sizes: window(*sizes, 199, 0)),
    "before": (Window(left=300, right=0), lambda *sizes: window(*sizes, 300, 0)),
    "narrowest of three": (
        Causal() & Window(left=90, right=90) & Window(left=40, right=120),
        lambda *sizes: window(*sizes, 40, 0),
    ),
}


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fold(calls, strongest=8):
    """The results of calls that append rows to one record, each taken by the compiled pass."""
    statistics = HeatMap(), Top(strongest), Entropy(), Received(), Distance(), Confidence(), QueriesKeys(Purse(2**30))
    queries = 0
    for call in calls:
        start, queries = queries, queries + call.queries
        sizes = call.batch, call.heads, queries, call.keys
        extent = Extent(*sizes, torch.float32, torch.device("cpu"), call.keys - queries, around=call)
        assert native_pass.refuses(call, statistics) is None
        for one in statistics:
            one.start(extent)
        for portion in native_pass.portions(call, statistics, extent, start):
            for rows in portion():
                for one in statistics:
                    one.fold(rows)
    found = {name: value for one in statistics for name, value in one.finish(extent).items()}
    return found | {"lse": found.pop("qk").arrays["lse"]}


def check(seen, exact, strongest=8):
    """Compare everything with the dense weights."""

    def near(ours, theirs, rtol=2e-5, atol=5e-6):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)

    weights = exact.weights
    queries, keys = weights.shape[-2:]
    bins = seen["query_bin"], seen["key_bin"]
    near(seen["mean"], pooled(weights, *bins, np.mean))
    near(seen["max"], pooled(weights, *bins, np.max))
    near(seen["entropy"], entropy(weights))
    near(seen["received"], weights.sum(-2))
    near(seen["confidence"], weights.max(-1))
    away = np.abs((np.arange(queries) + keys - queries)[:, None] - np.arange(keys))
    near(seen["distance"], (weights * away).sum(-1))
    near(seen["lse"], np.where(np.isneginf(exact.lse), np.inf, exact.lse))
    best = torch.tensor(weights).topk(min(strongest, keys)).values.numpy()
    near(seen["top_weights"], best)
    found = np.take_along_axis(weights, np.maximum(seen["top_keys"], 0), -1)
    near(np.where(seen["top_keys"] >= 0, found, 0), best)
    assert ((seen["top_keys"] == -1) == (seen["top_weights"] == 0)).all()
    assert (seen["top_keys"] < keys).all()
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in seen["top_keys"].reshape(-1, best.shape[-1]))


def call_and_weights(kind, queries, keys, dim=16):
    """A call with a mask, of two short sequences or a long one, and its dense weights."""
    mask, visible = MASKS[kind]
    batch = 2 if queries * keys < 100_000 else 1
    q, k = randn(batch, 4, queries, dim), 2 * randn(batch, 2, keys, dim, seed=1)
    call = CallFromQK(Problem.of(q, k, k, mask=mask))
    return call, dense(q, k, k, visible=visible(queries, keys))


def test_queries_of_short_numbers_are_scaled_in_single_precision():
    """1 / √dim is no power of two for most of them, so that a product in their own type would be rounded."""
    for case in sweep(itertools.product([32, 64, 80, 128], [torch.bfloat16, torch.float16])):
        with case as (dim, dtype):
            q, k = (3 * randn(1, 2, 300, dim, seed=at).to(dtype) for at in (3, 4))
            call = CallFromQK(Problem.of(q, k, k, mask=Causal()))
            check(fold([call]), dense(q.double(), k.double(), k.double(), visible=causal(300, 300)))


@pytest.mark.parametrize("kind", MASKS)
def test_the_pass_gives_what_dense_weights_give(kind):
    for case in sweep((1, 5, 63, 64, 65, 129, 513, 700, *((1100,) if kind == "window" else ()))):
        with case as n:
            call, exact = call_and_weights(kind, n, n)
            check(fold([call]), exact)


@pytest.mark.slow
def test_the_pass_gives_what_dense_weights_give_of_longer_texts():
    for case in sweep(kind for kind in MASKS if kind != "window"):
        with case as kind:
            call, exact = call_and_weights(kind, 1100, 1100)
            check(fold([call]), exact)


@pytest.mark.parametrize("kind", MASKS)
def test_queries_stand_at_the_last_keys_and_some_see_none(kind):
    for case in sweep([(3, 700), (300, 1030), (1, 65), (700, 300), (600, 40)]):
        with case as (queries, keys):
            call, exact = call_and_weights(kind, queries, keys)
            seen = fold([call])
            check(seen, exact)
            if queries > keys and kind != "all":
                blind = exact.weights.sum(-1) == 0
                assert blind.any()
                assert (seen["top_keys"][blind] == -1).all()


def test_a_diagonal_elsewhere_than_the_places_of_the_record():
    for case in sweep([None, 300, 10]):
        with case as window:
            mask = Causal(align="start") if window is None else Causal(align="start") & Window(window)
            away = np.arange(120)[:, None] - np.arange(380)
            visible = (away >= 0) & (away + 260 < (window or 1000))
            q, k = randn(1, 2, 120, 16), randn(1, 1, 380, 16, seed=1)
            check(fold([CallFromQK(Problem.of(q, k, k, mask=mask))]), dense(q, k, k, visible=visible))


def test_heads_of_any_width():
    for case in sweep([1, 3, 64, 80, 128]):
        with case as dim:
            call, exact = call_and_weights("causal", 150, 150, dim)
            check(fold([call]), exact)


SMALL_BLOCKS = [("all", 1), ("before", 3), ("causal window", 3)]  # those of `make test`


def test_blocks_of_rows_that_cut_bins_add_up(monkeypatch):
    _check_small_blocks(SMALL_BLOCKS, monkeypatch)


@pytest.mark.slow
def test_blocks_of_rows_that_cut_bins_add_up_for_every_mask(monkeypatch):
    _check_small_blocks(itertools.product(MASKS, (1, 3)), monkeypatch)


def _check_small_blocks(cases, monkeypatch):
    monkeypatch.setattr(native_pass, "_PAIRS", 20_000)
    for case in sweep(cases):
        with case as (kind, threads), monkeypatch.context() as patched:
            patched.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            call, exact = call_and_weights(kind, 1100, 1100)
            check(fold([call]), exact)


def test_small_groups_of_rows(monkeypatch):
    monkeypatch.setattr(native_pass, "_MOST", 4)
    monkeypatch.setattr(native_pass, "_FEWEST", 4)
    call, exact = call_and_weights("window", 700, 700)
    check(fold([call]), exact)


def test_rows_call_by_call_are_the_rows_of_one_pass():
    for case in sweep([[300, 512, 513, 514, 650], [3], [512, 1023, 1025]]):
        with case as cuts:
            q, k = randn(1, 2, 1100, 16), 2 * randn(1, 1, 1100, 16, seed=1)
            edges = [0, *cuts, 1100]
            calls = [
                CallFromQK(Problem.of(q[:, :, a:b], k[:, :, :b], k[:, :, :b], mask=Causal()))
                for a, b in itertools.pairwise(edges)
            ]
            check(fold(calls), dense(q, k, k, visible=causal(1100, 1100)))


def test_any_number_of_strongest_keys():
    for case in sweep(itertools.product([1, 64, 65, 200], [100, 300])):
        with case as (strongest, n):
            call, exact = call_and_weights("causal", n, n)
            check(fold([call], strongest), exact, strongest)


@pytest.mark.parametrize("scale", [0.0, 30.0])
def test_equal_scores_and_scores_far_apart(scale):
    q, k = scale * randn(1, 1, 300, 16), randn(1, 1, 300, 16, seed=1)
    seen = fold([CallFromQK(Problem.of(q, k, k, mask=Causal()))])
    if scale:
        check(seen, dense(q, k, k, visible=causal(300, 300)))
    else:
        expected = np.where(np.arange(8) <= np.arange(300)[:, None], np.arange(8), -1)
        np.testing.assert_array_equal(seen["top_keys"][0, 0], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_numbers_are_widened_first(dtype):
    q, k = randn(1, 2, 300, 16).to(dtype), randn(1, 1, 300, 16, seed=1).to(dtype)
    check(fold([CallFromQK(Problem.of(q, k, k, mask=Causal()))]), dense(q, k, k, visible=causal(300, 300)))


def plain(**changed):
    q, k = randn(1, 2, 64, 16), randn(1, 1, 64, 16, seed=1)
    return CallFromQK(Problem.of(q, k, k, **changed))


def test_the_pass_takes_plain_calls_of_statistics_that_read_sums():
    standard = [HeatMap(), Top(), Entropy(), Received()]

    def takes(call, statistics=standard):
        return native_pass.refuses(call, statistics) is None

    class Own(Entropy):
        pass

    assert takes(plain())
    assert takes(plain(mask=Causal()), [*standard, Distance(), Confidence()])
    assert not takes(plain(), [*standard, Sink()])
    assert not takes(plain(), [Own()])
    for no_band in (Padding(torch.ones(1, 64)), ~Causal(), Causal() | Window(4)):
        assert not takes(plain(mask=no_band))
    assert not takes(plain(bias=torch.zeros(64, 64)))
    assert not takes(plain(score=ScaledDot(softcap=5.0)))
    assert not takes(plain(normalizer=Softmax(sink=torch.zeros(2))))
    assert not takes(plain(weight_factor=torch.ones(64, 64)))
    assert not takes(plain().of_heads((1,)))
    assert not takes(plain().having(chosen_rows=frozenset({3})))
    problem = plain().problem
    assert not takes(CallFromQK(replace(problem, q=problem.q * torch.nan)))
    assert not takes(CallFromQK(replace(problem, q=problem.q.double(), k=problem.k.double())))
