"""Ranks together observe what one process does: each has the same record, and one atlas comes out.

Expected is the record of one process, and for masks whose rule is written once more in numpy the statistics of dense
weights in float64.
"""

import sys
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import tiny_llama
import watched_calls
from processes import WATCHED, marked
from watched_calls import AXES, CASES, FIELDS, ORDERS, REPLICATED

import regard
from oracles import dense
from regard.record.layers import Layer
from sweeps import sweep

on_few = pytest.mark.parametrize("computed", marked(WATCHED), indirect=True)
SAME = {**{name: name for name in CASES}, **{name: of for name, (of, _) in AXES.items()}, "replicated": REPLICATED}


def _layers(computed, name):
    """The layers of the atlas that all ranks saved at once; each of them alone has the same."""
    folder = computed.folder / "watched"
    each = [(folder / f"{name}.{rank}.atlas").read_bytes() for rank in range(computed.ranks)]
    assert len(set(each)) == 1, "the ranks have different records"
    assert (folder / f"{name}.atlas").read_bytes() == each[0]
    assert not list(folder.glob(f"{name}.*.changed")), "the output is not that without a watch"
    layers = regard.load_atlas(folder / f"{name}.atlas").layers
    exact = np.load(folder / f"{name}.0.npz")
    for at, layer in enumerate(layers):
        for of in FIELDS:
            np.testing.assert_allclose(getattr(layer, of), exact[f"{at} {of}"], rtol=2**-11, err_msg=of)
    return [replace(_whole(one), **{of: exact[f"{at} {of}"] for of in FIELDS}) for at, one in enumerate(layers)]


def _whole(layer):
    """A layer in memory."""
    return Layer(**{one.name: getattr(layer, one.name) for one in fields(Layer)})


def _check(found: Layer, expected: Layer, *, bound):
    """Compare all that two layers have; numbers relative to the largest, integers exactly."""
    for name in ("name", "kind", "number", "query_bin", "key_bin", "head_numbers"):
        assert getattr(found, name) == getattr(expected, name), name
    arrays = {name: (getattr(found, name), getattr(expected, name)) for name in FIELDS}
    assert list(found.statistics) == list(expected.statistics)
    arrays |= {name: (found.statistics[name], expected.statistics[name]) for name in expected.statistics}
    if expected.weights is not None:
        arrays["weights"] = found.weights, expected.weights
    if expected.qk is not None:
        assert found.qk.segments == expected.qk.segments
        assert list(found.qk.arrays) == list(expected.qk.arrays)
        arrays |= {f"qk.{name}": (found.qk.arrays[name], one) for name, one in expected.qk.arrays.items()}
    for name, (ours, want) in arrays.items():
        ours, want = np.asarray(ours), np.asarray(want)
        assert (ours.shape, ours.dtype) == (want.shape, want.dtype), name
        if want.dtype.kind in "iub":
            np.testing.assert_array_equal(ours, want, err_msg=name)
        else:
            _near(ours, want, name, bound)


def _near(ours, want, name, bound):
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(want), err_msg=name)
    np.testing.assert_array_equal(ours[~np.isfinite(want)], want[~np.isfinite(want)], err_msg=name)
    finite = np.isfinite(want)
    if finite.any():
        error = np.abs(ours[finite] - want[finite]).max() / max(1.0, np.abs(want[finite]).max())
        assert error <= bound, f"{name} is off by {error:.1e}"


def _bound(case):
    return 1e-5 if case.dtype.itemsize <= 4 else 1e-10


@cache
def _on_one_process(name):
    """What one process observes, once for all numbers of ranks."""
    case = (CASES | ORDERS)[name]
    return watched_calls.observed(case, *case.tensors())


@on_few
def test_ranks_together_see_what_one_process_does(computed):
    for case in sweep([*CASES, *watched_calls.axes(computed.ranks), "replicated"]):
        with case as name:
            seen, unchanged = _on_one_process(SAME[name])
            assert unchanged
            (found,) = _layers(computed, name)
            _check(found, seen.layers[0], bound=_bound(CASES[SAME[name]]))


@on_few
def test_rows_and_keys_are_in_the_order_of_the_text(computed):
    for case in sweep(ORDERS):
        with case as name:
            seen, _ = _on_one_process(name)
            (found,) = _layers(computed, name)
            _check(found, seen.layers[0], bound=1e-10)


def _of_dense(weights, bins):
    """The statistics of whole matrices of weights, by their definitions."""
    b, h, n, m = weights.shape
    i, j = np.arange(n)[:, None] + m - n, np.arange(m)
    mass = weights.sum(-1)
    order = np.argsort(-weights, -1, kind="stable")[..., :8]
    top = np.take_along_axis(weights, order, -1)
    blocks = [np.add.reduceat(one, np.arange(0, m, bins[1]), -1) for one in (weights, np.ones((1, 1, n, m)))]
    sums, counts = (np.add.reduceat(one, np.arange(0, n, bins[0]), -2) for one in blocks)
    largest = np.maximum.reduceat(weights, np.arange(0, m, bins[1]), -1)
    return {
        "entropy": -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1),
        "received": weights.sum(-2),
        "top_keys": np.where(top > 0, order, -1).astype(np.int32),
        "top_weights": top,
        "mean": sums / counts,
        "max": np.maximum.reduceat(largest, np.arange(0, n, bins[0]), -2),
        "distance": (weights * np.abs(i - j)).sum(-1) / np.where(mass > 0, mass, 1),
        "confidence": weights.max(-1),
        "sink": np.where(j <= i, weights, 0).sum(-2) / np.maximum(n - np.arange(m), 1),
        "weights": weights,
        "margin": top[..., 0] - top[..., 1],
        "previous": np.concatenate([np.zeros((b, h, 1)), np.diagonal(weights, -1, 2, 3)], -1),
        "chosen": weights[..., [0, 3, 44]].sum(-1),
        "key_spans": np.stack([weights[..., :7].sum(-1), weights[..., [9, 25, 40]].sum(-1),
            weights[..., 30:].sum(-1)], -1),
    }  # fmt: skip


@on_few
def test_what_ranks_see_are_the_statistics_of_dense_weights(computed):
    for case in sweep(name for name in CASES if CASES[name].rule is not None):
        with case as name:
            _check_dense(computed, name)


def _check_dense(computed, name):
    case = CASES[name]
    weights = dense(*case.tensors(), visible=case.visible(), **case.dense).weights
    (found,) = _layers(computed, name)
    expected = _of_dense(weights, (found.query_bin, found.key_bin))
    if name == "values":
        v, projection = case.tensors()[2].numpy().repeat(2, 1), watched_calls.PROJECTION.numpy().reshape(6, 4, 5)
        norms = np.linalg.norm(np.einsum("bhjd,ehd->bhje", v, projection), axis=-1)
        moved = weights * norms[:, :, None]
        expected |= {"value_norm": moved.sum(-2), "value_norm.keys": norms, "value_norm.max": moved}
    for what in (*FIELDS, "weights", *found.statistics):
        if what not in expected or (what == "weights" and found.weights is None):
            continue
        want, ours = (
            expected[what],
            np.asarray(getattr(found, what) if hasattr(found, what) else found.statistics[what]),
        )
        if want.dtype.kind == "i":
            np.testing.assert_array_equal(ours, want, err_msg=what)
        else:
            _near(ours, want, what, _bound(case))


@on_few
def test_any_rectangle_of_weights_is_computed_from_the_kept_queries_and_keys(computed):
    case = CASES["queries, keys and values"]
    i, j = np.ogrid[:45, :45]
    weights = dense(*case.tensors(), visible=(j <= i) & (j > i - 20), sink=watched_calls._SINK).weights
    (found,) = _layers(computed, "queries, keys and values")
    np.testing.assert_allclose(found.qk.tile(1, 3, slice(0, 45), slice(0, 45)), weights[1, 3], atol=1e-12)


@on_few
def test_a_model_that_calls_the_function_of_pytorch_is_seen_as_by_one_process(computed):
    model = watched_calls.CallsPyTorch().double()
    with regard.watch(model, statistics=["induction"]) as seen:
        model(model.IDS)
    for case in sweep(["watch inside", "watch outside", "second pass"]):
        with case as name:
            (found,) = _layers(computed, name)
            _check(found, seen.layers[0], bound=1e-10)


@pytest.mark.parametrize("name", ["llama", "llama, watch inside"])
def test_llama_is_seen_as_by_one_process(of_llama, name):
    model, given = tiny_llama.llama().eval(), tiny_llama.inputs(padded=False)
    with regard.watch(model, **tiny_llama.WATCH) as seen:
        model(**given)
    layers = _layers(of_llama, name)
    assert len(layers) == len(seen.layers) == 2
    for ours, want in zip(layers, seen.layers, strict=True):
        _check(ours, want, bound=1e-10)
