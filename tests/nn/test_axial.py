"""Axial attention: an explicit loop over every line of the grid, in numpy."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from oracles import dense, f64
from regard import scores
from regard.errors import InputError
from regard.nn import AxialAttention
from sweeps import sweep


def line(attend, x):
    """One line of cells (n, width) through one MultiHeadAttention, and its weights (heads, n, n)."""
    heads, n = attend.num_heads, len(x)
    q, k, v = (
        (x @ f64(layer.weight).T + f64(layer.bias)).reshape(1, n, heads, -1).swapaxes(1, 2)
        for layer in (attend.q_proj, attend.k_proj, attend.v_proj)
    )
    found = dense(q, k, v)
    rows = found.output.swapaxes(1, 2).reshape(n, -1)
    return rows @ f64(attend.out_proj.weight).T + f64(attend.out_proj.bias), found.weights[0]


def along(attend, x, axis):
    """Lines of a grid (batch, *grid, width) along one axis, and the weights (batch, *others, heads, side, side)."""
    out, side = np.empty_like(x), x.shape[axis]
    others = tuple(size for at, size in enumerate(x.shape[:-1]) if at != axis)
    weights = np.empty((*others, attend.num_heads, side, side))
    for cell in product(*(range(size) for size in x.shape[:-1])):
        if cell[axis] == 0:
            at = (*cell[:axis], slice(None), *cell[axis + 1 :])
            out[at], weights[cell[:axis] + cell[axis + 1 :]] = line(attend, x[at])
    return out, weights


def test_equals_loops_over_all_lines():
    for case in sweep(product([(5,), (3, 4), (2, 3, 4), (2, 1, 3, 2)], ["sum", "sequential"])):
        with case as (grid, merge_mode):
            torch.manual_seed(0)
            module = AxialAttention(8, 2, num_axes=len(grid), merge_mode=merge_mode).double()
            x = torch.randn(2, *grid, 8, dtype=torch.float64)
            expected, total, seen = f64(x), 0, []
            for axis, attend in enumerate(module.along, start=1):
                found, weights = along(attend, expected if merge_mode == "sequential" else f64(x), axis)
                expected = found if merge_mode == "sequential" else expected
                total = total + found
                seen.append(weights)
            wanted = expected if merge_mode == "sequential" else total
            np.testing.assert_allclose(f64(module(x)), wanted, atol=1e-12)
            output, weights = module(x, need_weights=True)
            np.testing.assert_allclose(f64(output), wanted, atol=1e-12)
            assert len(weights) == len(grid)
            for ours, theirs in zip(weights, seen, strict=True):
                np.testing.assert_allclose(f64(ours), theirs, atol=1e-12)


def test_each_axis_has_weights_of_its_own():
    assert len(list(AxialAttention(8, 2, num_axes=3).parameters())) == 3 * 8
    given = {"q_norm": nn.RMSNorm(4), "score": scores.Bilinear(nn.Parameter(torch.eye(4)))}
    module = AxialAttention(8, 2, num_axes=3, **given)
    assert len(list(module.parameters())) == 3 * (8 + 2)
    assert not {id(one) for one in module.parameters()} & {id(given["q_norm"].weight), id(given["score"].weight)}


def test_weights_beyond_the_budget_are_refused():
    module, x = AxialAttention(8, 2), torch.zeros(1, 4, 30, 8)
    assert len(module(x, need_weights=True, max_bytes=4 * 2 * 30 * 30 * 4)[1]) == 2
    with pytest.raises(InputError, match=r"need 28\.1 KiB .*: raise `max_bytes`"):
        module(x, need_weights=True, max_bytes=4 * 2 * 30 * 30 * 4 - 1)
    with pytest.raises(InputError, match=r"limit of 2\.0 GiB"):
        AxialAttention(8, 2, num_axes=1)(torch.zeros(1, 16500, 8), need_weights=True)


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match='`merge_mode` must be "sum" or "sequential"'):
        AxialAttention(8, 2, merge_mode="mean")
    with pytest.raises(
        InputError, match=r"with 2 axes, got shape \(1, 3, 8\): build the module with another `num_axes=`"
    ):
        AxialAttention(8, 2)(torch.zeros(1, 3, 8))
    with pytest.raises(InputError, match="`num_axes` counts axes"):
        AxialAttention(8, 2, num_axes=0)
