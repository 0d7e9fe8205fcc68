"""Rows of the second pass, put together again, are the dense weights of the call."""

import itertools

import numpy as np
import pytest
import torch

from oracles import causal, dense, entropy, f64, window
from regard.masks import Causal, Padding, Window
from regard.normalizers import Softmax
from regard.observe import weight_rows
from regard.observe.call_kinds import CallFromQK, CallFromWeights
from regard.observe.statistics import Extent, HeatMap
from regard.problem import Problem
from regard.scores import ScaledDot
from sweeps import sweep

LOWEST = {"-inf": -np.inf, "finfo.min": float(torch.finfo(torch.float32).min), "-1e9": -1e9, "-1e4": -1e4}


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gathered(call, start=0, align=1):
    """All rows of a call as one array, each row exactly once; and the strongest keys and entropies with them."""
    whole = np.zeros((call.batch, call.heads, call.queries, call.keys))
    entropies = np.zeros((call.batch, call.heads, call.queries))
    times = np.zeros((call.batch, call.heads, call.queries), int)
    for rows in call.blocks(start, align):
        at = slice(rows.rows.start - start, rows.rows.stop - start)
        inside = slice(rows.columns.start, min(rows.columns.stop, call.keys))
        part = f64(rows.weights)
        assert (part[..., inside.stop - inside.start :] == 0).all(), "columns behind the last key have no weight"
        whole[rows.batch_index, rows.heads, at, inside] = part[..., : inside.stop - inside.start]
        entropies[rows.batch_index, rows.heads, at] = f64(rows.entropy)
        times[rows.batch_index, rows.heads, at] += 1
    assert (times == 1).all(), "each row comes exactly once"
    return whole, entropies


def check(problem, expected, tolerance=1e-12):
    weights, entropies = gathered(CallFromQK(problem), align=4)
    np.testing.assert_allclose(weights, expected.weights, atol=tolerance)
    np.testing.assert_allclose(entropies, entropy(expected.weights), atol=30 * tolerance)
    assert (entropies >= 0).all()


def real(batch, keys):
    seen = np.ones((batch, keys), bool)
    seen[0, keys * 2 // 3 :], seen[-1, : keys // 4] = False, False
    return seen


def test_rows_are_the_dense_weights():
    for case in sweep(
        itertools.product(
            [1, 5, 127, 128, 129, 300, 513, 700], ["all", "causal", "padded", "window", "windowed and padded"]
        )
    ):
        with case as (n, kind):
            batch = 2 if n < 513 else 1
            q, k = randn(batch, 2, n, 4), 3 * randn(batch, 1, n, 4, seed=1)  # two query heads share their keys
            padding = real(batch, n)
            mask, visible = {
                "all": (None, None),
                "causal": (Causal(), causal(n, n)),
                "padded": (Padding(torch.tensor(padding)), padding[:, None, None]),
                "window": (Causal() & Window(40), causal(n, n) & window(n, n, 39, 0)),
                "windowed and padded": (
                    Window(left=9, right=9) & Padding(torch.tensor(padding)),
                    window(n, n, 9, 9) & padding[:, None, None],
                ),
            }[kind]
            check(Problem.of(q, k, k, mask=mask), dense(q, k, k, visible=visible))


def test_cross_attention_has_its_own_keys():
    for case in sweep(itertools.product([(1, 300), (3, 129), (130, 7), (200, 131), (131, 200)], [False, True])):
        with case as ((queries, keys), masked):
            q, k = randn(1, 2, queries, 4), randn(1, 2, keys, 4, seed=1)
            visible = causal(queries, keys) if masked else None
            check(Problem.of(q, k, k, mask=Causal() if masked else None), dense(q, k, k, visible=visible))


def test_what_changes_the_scores_changes_the_rows():
    for case in sweep(["sink", "softcap", "scale", "all"]):
        with case as options:
            q, k = randn(2, 4, 140, 8), 4 * randn(2, 2, 140, 8, seed=1)
            sink = randn(4, seed=2) * 5 if options in ("sink", "all") else None
            softcap = 3.0 if options in ("softcap", "all") else None
            scale = 0.2 if options in ("scale", "all") else None
            problem = Problem.of(
                q, k, k, mask=Causal(), scale=scale, normalizer=Softmax(sink), score=ScaledDot(softcap=softcap)
            )
            check(problem, dense(q, k, k, visible=causal(140, 140), sink=sink, softcap=softcap, scale=scale))


def test_a_bias_hides_keys_whatever_number_was_written_for_minus_infinity():
    for case in sweep(
        itertools.product(LOWEST.values(), ["2d", "per sequence", "per head"], [torch.float64, torch.float32])
    ):
        with case as (number, shape, dtype):
            n = 150
            q, k = randn(2, 2, n, 4, dtype=dtype), randn(2, 2, n, 4, seed=1, dtype=dtype)
            visible = np.broadcast_to(causal(n, n), (2, 2, n, n)).copy()
            if shape == "per sequence":
                visible &= real(2, n)[:, None, None]  # the first rows of the last sequence see nothing
            if shape == "per head":
                visible[:, 1] &= window(n, n, 3, 0)
            kept = {"2d": visible[:1, :1], "per sequence": visible[:, :1], "per head": visible[:1]}[shape]
            bias = torch.where(torch.tensor(kept), 0.0, number).to(dtype)
            check(
                Problem.of(q, k, k, bias=bias),
                dense(q, k, k, visible=visible),
                1e-12 if dtype == torch.float64 else 1e-6,
            )


def test_a_bias_of_ordinary_numbers_is_added():
    q, k, bias = randn(1, 2, 140, 4), randn(1, 2, 140, 4, seed=1), 30 * randn(1, 2, 140, 140, seed=2)
    check(Problem.of(q, k, k, bias=bias, mask=Causal()), dense(q, k, k, bias=bias, visible=causal(140, 140)))


def test_a_row_that_sees_nothing_is_zero():
    for case in sweep(["mask", "bias", "mask and sink"]):
        with case as kind:
            n = 140
            x = randn(1, 2, n, 4)
            seen = np.ones((n, n), bool)
            seen[[0, 77, n - 1]] = False
            sink = randn(2, seed=3) if kind == "mask and sink" else None
            asked = (
                {"bias": torch.where(torch.tensor(seen), 0.0, -torch.inf).double()}
                if kind == "bias"
                else {"mask": torch.tensor(seen)}
            )
            weights, entropies = gathered(CallFromQK(Problem.of(x, x, x, normalizer=Softmax(sink), **asked)))
            assert (weights[:, :, [0, 77, n - 1]] == 0).all()
            assert (entropies[:, :, [0, 77, n - 1]] == 0).all()
            np.testing.assert_allclose(weights, dense(x, x, x, visible=seen, sink=sink).weights, atol=1e-12)


def test_scores_far_below_zero_are_weighed_under_a_mask():
    # Row 0 of a causal call sees itself alone, however badly it fits.
    q, k = torch.full((1, 1, 3, 1), -200.0), torch.full((1, 1, 3, 1), 200.0)
    weights, _ = gathered(CallFromQK(Problem.of(q, k, k, mask=Causal(), scale=1.0)))
    np.testing.assert_allclose(weights[0, 0], causal(3, 3) / np.array([[1], [2], [3]]), atol=1e-6)


def test_rows_of_narrow_types_are_computed_in_float32():
    for case in sweep([torch.float32, torch.float16, torch.bfloat16]):
        with case as dtype:
            x = randn(1, 2, 200, 8, dtype=dtype)
            check(Problem.of(x, x, x, mask=Causal()), dense(x, x, x, visible=causal(200, 200)), 1e-6)


def test_blocks_end_where_bins_end():
    for case in sweep(itertools.product([0, 1, 3, 8], [1, 4, 16])):
        with case as (start, align):
            x = randn(1, 1, 50, 2)
            for call in (CallFromQK(Problem.of(x, x, x)), CallFromWeights(randn(1, 1, 50, 50).softmax(-1))):
                blocks = [rows.rows for rows in call.blocks(start, align)]
                assert [one.start for one in blocks] == [start, *(one.stop for one in blocks[:-1])]
                assert blocks[-1].stop == start + 50
                assert all(one.stop % align == 0 for one in blocks[:-1])


def test_given_weights_come_through_as_they_are():
    for case in sweep(itertools.product([1, 5, 128, 129, 513], [torch.float64, torch.float32, torch.bfloat16])):
        with case as (n, dtype):
            weights = randn(2, 2, n, n).softmax(-1).to(dtype)
            again, entropies = gathered(CallFromWeights(weights), align=4)
            np.testing.assert_array_equal(again, f64(weights))
            np.testing.assert_allclose(entropies, entropy(f64(weights)), atol=1e-5 if dtype != torch.float64 else 1e-12)


def test_the_strongest_are_those_of_a_full_sort():
    for case in sweep([5, 128, 513, 2048]):
        with case as keys:
            call = CallFromQK(Problem.of(randn(1, 2, 9, 4), 4 * randn(1, 2, keys, 4, seed=1), randn(1, 2, keys, 4)))
            for rows in call.blocks(0, 1):
                count = min(8, keys)
                values, columns = rows.strongest(8)
                expected = np.sort(f64(rows.weights), -1)[..., ::-1][..., :count]
                np.testing.assert_array_equal(f64(values)[..., :count], expected)
                np.testing.assert_array_equal(np.take_along_axis(f64(rows.weights), columns.numpy(), -1), f64(values))


VISIBLE = [
    ({}, [1, 1, 1, 1], [1, 1, 1, 1]),
    ({"mask": Window(2)}, [0, 0, 1, 1], [1, 1, 0, 0]),
    ({"mask": Padding(torch.tensor([[True, True, False, False]]))}, [1, 1, 0, 0], [1, 1, 0, 0]),
    ({"bias": torch.tensor([[0.0, -1e9, -torch.inf, 2.0]])}, [1, 0, 0, 1], [1, 0, 0, 1]),
    ({"bias": torch.zeros(4, 4).fill_diagonal_(-torch.inf)}, [1, 1, 1, 0], [1, 0, 1, 1]),
]


def test_a_row_tells_which_keys_it_sees():
    for case in sweep(VISIBLE):
        with case as (asked, last, second):
            x = randn(1, 1, 4, 2, dtype=torch.float32)
            call = CallFromQK(Problem.of(x, x, x, **asked))
            assert call.row(3).int().flatten().tolist() == last
            assert call.row(1).int().flatten().tolist() == second
            weights = dense(x, x, x, visible=np.array([second, second, last, last], bool)).weights
            assert CallFromWeights(torch.tensor(weights)).row(3).int().flatten().tolist() == last
            assert CallFromWeights(torch.tensor(weights)).row(1).int().flatten().tolist() == second


@pytest.mark.parametrize("elements", [2**12, 2**16])
def test_blocks_smaller_than_a_bin_add_up_to_it(elements, monkeypatch):
    """Whole bins of very long texts would be hundreds of megabytes; of those a block has a part."""
    n = 9000  # bins of 64
    q, k = randn(1, 1, n, 2, dtype=torch.float32), randn(1, 1, n, 2, seed=1, dtype=torch.float32)
    problem = Problem(q, k, k, scale=1.0, mask=Causal().bind(n, n))

    def folded():
        extent = Extent(1, 1, n, n, dtype=torch.float32, device=q.device)
        heat, sizes = HeatMap(), set()
        heat.start(extent)
        for rows in CallFromQK(problem).blocks(0, 64):
            heat.fold(rows)
            sizes.add(rows.weights.numel())
        return heat.finish(extent), max(sizes)

    monkeypatch.setattr(weight_rows, "BLOCK_ELEMENTS", 2**30)
    monkeypatch.setattr(weight_rows, "_TALLEST", 64)
    whole, _ = folded()
    monkeypatch.setattr(weight_rows, "BLOCK_ELEMENTS", elements)
    parts, largest = folded()
    assert largest <= max(elements, 16 * (n + 128))
    for name in ("mean", "max"):
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5)
