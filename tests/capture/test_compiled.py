"""The compiled loops serve `regard.watch`; that they give what dense weights give, test_statistics tests."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.backends import kernel_compilers
from regard.backends.numba_loops import object_code

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


def watched(backend, q, k, model=None):
    model = Decoder() if model is None else model
    with torch.no_grad(), regard.use_backend(backend), regard.watch(model, statistics=["distance"]) as seen:
        model(q, k)
    return seen


@pytest.fixture
def counted(monkeypatch):
    """How often the loop was called."""
    calls, loops = [], object_code.loops()

    def counting(sweep):
        return lambda address: (calls.append(1), sweep(address))

    functions = {name: counting(one) if "sweep" in name else one for name, one in loops.functions.items()}
    monkeypatch.setattr(object_code, "loops", lambda: dataclasses.replace(loops, functions=functions))
    return calls


def test_a_watched_call_is_folded_by_the_loop_and_is_what_pytorch_folds(counted):
    q, k = drawn(6), drawn(2)
    found, expected = watched("numba", q, k), watched("auto", q, k)
    assert counted
    assert not found.fallback_reasons
    same(found.layers[0], expected.layers[0])


def test_use_backend_counts_where_the_call_runs(counted):
    q, k, model = drawn(2), drawn(2), Decoder()
    with torch.no_grad(), regard.watch(model, statistics=["distance"]) as seen, regard.use_backend("numba"):
        model(q, k)
    assert counted
    assert seen.fallback_reasons == {}
    counted.clear()
    with regard.use_backend("numba"):
        watching = regard.watch(model, statistics=["distance"])
    with torch.no_grad(), watching as seen:
        model(q, k)
    assert not counted
    assert seen.fallback_reasons == {}


def test_keys_that_a_sliding_cache_has_dropped_are_counted(counted):
    q, k = drawn(2, 901), drawn(1, 901)
    records = []
    for backend in ("numba", "auto"):
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
    found, expected = (watched(backend, q[:, :, 200:], k, model=Windowed()) for backend in ("numba", "auto"))
    assert counted
    same(found.layers[0], expected.layers[0])


def test_heads_side_by_side(counted):
    q, k = drawn(6, 1100), drawn(2, 1100)  # more pairs than one thread is left alone with
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found, expected = watched("numba", q, k), watched("auto", q, k)
    finally:
        torch.set_num_threads(threads)
    assert len(counted) > 1
    same(found.layers[0], expected.layers[0])


@pytest.mark.parametrize("factor", [-1.0, float("nan")])
def test_weights_that_have_no_place_in_an_order_are_left_to_pytorch(factor):
    class Odd(nn.Module):
        def forward(self, q, k):
            if factor < 0:
                return regard.attention(q, k, k, weight_factor=torch.full((768, 768), factor))
            return sdpa(q * factor, k, k)

    seen, plain = (watched(backend, drawn(2, 768), drawn(2, 768), model=Odd()) for backend in ("numba", "auto"))
    assert list(seen.fallback_reasons.values()) == (["the weights have a factor"] if factor < 0 else [])
    found, expected = seen.layers[0], plain.layers[0]
    np.testing.assert_array_equal(found.top_keys, expected.top_keys)
    np.testing.assert_array_equal(found.max, expected.max)
    np.testing.assert_array_equal(found.entropy, expected.entropy)


def test_equal_weights_give_different_keys(counted):
    q, k = torch.zeros(1, 1, 700, 16), drawn(1)
    layer = watched("numba", q, k).layers[0]
    keys, weights = layer.top_keys[0, 0], layer.top_weights[0, 0]
    assert counted
    np.testing.assert_allclose(weights[600], 1 / 601, rtol=1e-5)
    assert all(len(set(row[row >= 0])) == min(8, n + 1) for n, row in enumerate(keys))
    assert (keys.max(-1) <= np.arange(700)).all()


def test_without_numba_pytorch_folds_and_the_reason_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(object_code, "_loops", None)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(kernel_compilers, "_numba_works", False)
    seen = watched("numba", drawn(2), drawn(2))
    assert seen.layers[0].entropy.shape == (1, 2, 700)
    (why,) = seen.fallback_reasons.values()
    assert "numba" in why
    assert "regard[numba]" in why


def test_long_calls_take_the_loop_without_being_asked_where_auto_takes_the_loops(counted, monkeypatch):
    q, k = drawn(4), drawn(2)
    expected = watched("auto", q, k).layers[0]
    assert not counted
    monkeypatch.setattr(object_code, "_ready", True)
    monkeypatch.setattr(object_code, "processor", lambda: object_code.Processor("", frozenset({"avx512f"})))
    seen = watched("auto", q, k)
    assert counted
    assert seen.fallback_reasons == {}
    same(seen.layers[0], expected)
    np.testing.assert_array_equal(seen.layers[0].top_keys, expected.top_keys)
    counted.clear()
    watched("auto", q[:, :, :511], k[:, :, :511])
    watched("sdpa", q, k)
    assert not counted
    monkeypatch.setattr(object_code, "processor", lambda: object_code.Processor("", frozenset({"avx2"})))
    watched("auto", q, k)
    assert not counted


def test_what_the_loop_cannot_read_stays_with_pytorch_without_a_word(counted, monkeypatch):
    class Odd(nn.Module):
        def forward(self, q, k):
            return regard.attention(q, k, k, normalizer=regard.normalizers.Sigmoid())

    monkeypatch.setattr(object_code, "_ready", True)
    monkeypatch.setattr(object_code, "processor", lambda: object_code.Processor("", frozenset({"avx512f"})))
    seen = watched("auto", drawn(2), drawn(2), model=Odd())
    assert not counted
    assert seen.fallback_reasons == {}
