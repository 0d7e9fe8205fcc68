"""The compiled pass serves `regard.watch`; that it gives what dense weights give, test_native_pass tests."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from measured_kernels import take_rules_of
from regard.backends.native import choice, library
from sweeps import sweep

FIELDS = ("mean", "max", "top_weights", "entropy", "received")


class Decoder(nn.Module):
    """One call, of grouped queries."""

    def forward(self, q, k):
        return sdpa(q, k, k, is_causal=True, enable_gqa=True)


class Windowed(nn.Module):
    """A window's worth of keys is all that a cache must keep."""

    def forward(self, q, k):
        return regard.attention(q, k, k, mask=regard.masks.Causal() & regard.masks.Window(300))


def same(ours, theirs):
    for name in FIELDS:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.statistics["distance"], theirs.statistics["distance"], rtol=1e-5)


def drawn(heads, n=700):
    return torch.randn(1, heads, n, 16, generator=torch.Generator().manual_seed(heads))


def watched(backend, q, k, model=None, **options):
    model, options = Decoder() if model is None else model, {"statistics": ["distance"], **options}
    with torch.no_grad(), regard.use_backend(backend), regard.watch(model, **options) as seen:
        model(q, k)
    return seen


@pytest.fixture
def counted(monkeypatch):
    """How often the compiled pass was called."""
    if (reason := library.refuses()) is not None:
        pytest.skip(reason)
    calls, kernels = [], library.library().kernels

    def counting(address):
        calls.append(1)
        kernels["summarize_rows"].call(address)

    counted = kernels | {"summarize_rows": kernels["summarize_rows"]._replace(call=counting)}
    loaded = library._Loaded(dataclasses.replace(library.library(), kernels=counted), None)
    monkeypatch.setattr(library, "_loaded", lambda: loaded)
    return calls


def test_a_watched_call_is_computed_by_the_pass_and_is_what_pytorch_computes(counted):
    q, k = drawn(6), drawn(2)
    found, expected = watched("native", q, k), watched("sdpa", q, k)
    assert counted
    assert not found.fallback_reasons
    same(found.layers[0], expected.layers[0])


def test_use_backend_counts_where_the_call_runs(counted, monkeypatch):
    monkeypatch.setattr(choice, "_loaded", lambda: "")  # auto takes no pass by itself
    q, k, model = drawn(2), drawn(2), Decoder()
    with torch.no_grad(), regard.watch(model, statistics=["distance"]) as seen, regard.use_backend("native"):
        model(q, k)
    assert counted
    assert seen.fallback_reasons == {}
    counted.clear()
    with regard.use_backend("native"):
        watching = regard.watch(model, statistics=["distance"])
    with torch.no_grad(), watching as seen:
        model(q, k)
    assert not counted
    assert seen.fallback_reasons == {}


def test_keys_that_a_sliding_cache_has_dropped_are_counted(counted):
    q, k = drawn(2, 901), drawn(1, 901)
    records = []
    for backend in ("native", "sdpa"):
        model = Windowed()
        with torch.no_grad(), regard.use_backend(backend), regard.watch(model, statistics=["distance"]) as seen:
            model(q[:, :, :700], k[:, :, :700])
            model(q[:, :, 700:], k[:, :, 333:])
        records.append(seen.layers[0])
    assert counted
    assert records[0].queries == records[0].keys == 901
    same(*records)


def test_a_text_whose_beginning_was_not_watched(counted):
    q, k = drawn(2, 901), drawn(1, 901)
    found, expected = (watched(backend, q[:, :, 200:], k, model=Windowed()) for backend in ("native", "sdpa"))
    assert counted
    same(found.layers[0], expected.layers[0])


def test_heads_side_by_side(counted):
    q, k = drawn(6, 1100), drawn(2, 1100)  # more pairs than one thread is left alone with
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found, expected = watched("native", q, k), watched("sdpa", q, k)
    finally:
        torch.set_num_threads(threads)
    assert len(counted) > 1
    same(found.layers[0], expected.layers[0])


class Calls(nn.Module):
    """One call of regard.attention, with options."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k):
        return regard.attention(q, k, k, **self.options)


class ByHand(nn.Module):
    """A softmax that the model computes itself."""

    def forward(self, q, k):
        return (q @ k.mT).softmax(-1) @ k


class WithoutOrder(nn.Module):
    """Scores that are NaN."""

    def forward(self, q, k):
        return sdpa(q * torch.nan, k, k)


N = 520
REASONS = {
    "the model computed its weights itself": (ByHand(), {}),
    "heads or queries were chosen": (Calls(), {"heads": [(0, 1)]}),
    "the statistic 'sink' reads the weights themselves": (Calls(), {"statistics": ["sink"]}),
    "the weights are no softmax, but Sigmoid": (Calls(normalizer=regard.normalizers.Sigmoid()), {}),
    "the weights have a sink": (Calls(normalizer=regard.normalizers.Softmax(torch.zeros(2))), {}),
    "the weights have a factor": (Calls(weight_factor=torch.full((N, N), -1.0)), {}),
    "the scores have a softcap": (Calls(score=regard.scores.ScaledDot(softcap=5.0)), {}),
    "the scores have a bias": (Calls(bias=regard.positions.ALiBi(2)), {}),
    "the score is no scaled product, but Shaw": (Calls(score=regard.scores.Shaw(drawn(1, 7)[0, 0])), {}),
    "the mask is no band around the diagonal, but Padding": (
        Calls(mask=regard.masks.Padding(torch.arange(N)[None] < 300)),
        {},
    ),
    "queries or keys are empty, NaN, or so large": (WithoutOrder(), {}),
    "so large that scores may overflow": (Calls(scale=1e30), {}),
    "it computes in float32, and the queries are torch.float64": (Calls(), {}),
}


def test_pytorch_computes_what_the_pass_does_not_and_the_reason_is_given(counted):
    for case in sweep(REASONS):
        with case as words:
            model, options = REASONS[words]
            dtype = torch.float64 if "float64" in words else torch.float32
            q, k = drawn(2, N).to(dtype), drawn(2, N).to(dtype)
            seen, plain = (watched(backend, q, k, model, **options) for backend in ("native", "sdpa"))
            (reason,) = seen.fallback_reasons.values()
            assert words in reason
            for name in FIELDS:
                np.testing.assert_array_equal(getattr(seen.layers[0], name), getattr(plain.layers[0], name))
    assert not counted


def test_equal_weights_give_different_keys(counted):
    q, k = torch.zeros(1, 1, 700, 16), drawn(1)
    layer = watched("native", q, k).layers[0]
    keys, weights = layer.top_keys[0, 0], layer.top_weights[0, 0]
    assert counted
    np.testing.assert_allclose(weights[600], 1 / 601, rtol=1e-5)
    assert all(len(set(row[row >= 0])) == min(8, n + 1) for n, row in enumerate(keys))
    assert (keys.max(-1) <= np.arange(700)).all()


def test_without_kernels_pytorch_computes_and_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(library, "_loaded", lambda: library._Loaded(None, "there are none here"))
    seen = watched("native", drawn(2), drawn(2))
    assert seen.layers[0].entropy.shape == (1, 2, 700)
    (why,) = seen.fallback_reasons.values()
    assert why == "there are none here"


def test_long_calls_take_the_pass_without_being_asked_where_auto_takes_the_loops(counted, monkeypatch):
    q, k = drawn(4), drawn(2)
    expected = watched("sdpa", q, k).layers[0]
    assert not counted
    take_rules_of(monkeypatch)
    seen = watched("auto", q, k)
    assert counted
    assert seen.fallback_reasons == {}
    same(seen.layers[0], expected)
    np.testing.assert_array_equal(seen.layers[0].top_keys, expected.top_keys)
    counted.clear()
    watched("auto", q[:, :, :511], k[:, :, :511])
    watched("sdpa", q, k)
    assert not counted
    monkeypatch.setattr(choice, "_loaded", lambda: "")
    watched("auto", q, k)
    assert not counted


def test_what_the_pass_does_not_support_stays_with_pytorch_without_a_word(counted, monkeypatch):
    take_rules_of(monkeypatch)
    seen = watched("auto", drawn(2), drawn(2), Calls(normalizer=regard.normalizers.Sigmoid()))
    assert not counted
    assert seen.fallback_reasons == {}
