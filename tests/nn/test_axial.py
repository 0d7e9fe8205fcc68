"""Axial attention: an explicit loop over every line of the grid, in numpy."""

import itertools

import numpy as np
import pytest
import torch

from oracles import dense, f64
from regard.errors import InputError
from regard.nn import AxialAttention


def line(attend, x):
    """One line of cells (n, width) through one MultiHeadAttention."""
    heads, n = attend.heads, len(x)
    q, k, v = (
        (x @ f64(layer.weight).T + f64(layer.bias)).reshape(1, n, heads, -1).swapaxes(1, 2)
        for layer in (attend.q_proj, attend.k_proj, attend.v_proj)
    )
    rows = dense(q, k, v).output.swapaxes(1, 2).reshape(n, -1)
    return rows @ f64(attend.out_proj.weight).T + f64(attend.out_proj.bias)


def along(attend, x, axis):
    """Every line of a grid (batch, *grid, width) along one axis."""
    out = np.empty_like(x)
    for cell in itertools.product(*(range(size) for size in x.shape[:-1])):
        if cell[axis] == 0:
            at = (*cell[:axis], slice(None), *cell[axis + 1 :])
            out[at] = line(attend, x[at])
    return out


@pytest.mark.parametrize("grid", [(5,), (3, 4), (2, 3, 4), (2, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("combine", ["sum", "sequential"])
def test_equals_loops_over_all_lines(combine, grid):
    torch.manual_seed(0)
    module = AxialAttention(8, 2, axes=len(grid), combine=combine).double()
    x = torch.randn(2, *grid, 8, dtype=torch.float64)
    expected, total = f64(x), 0
    for axis, attend in enumerate(module.along, start=1):
        if combine == "sequential":
            expected = along(attend, expected, axis)
        total = total + along(attend, f64(x), axis)
    np.testing.assert_allclose(f64(module(x)), expected if combine == "sequential" else total, atol=1e-12)


def test_each_axis_has_weights_of_its_own():
    assert len(list(AxialAttention(8, 2, axes=3).parameters())) == 3 * 8


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match='`combine` must be "sum" or "sequential"'):
        AxialAttention(8, 2, combine="mean")
    with pytest.raises(InputError, match=r"with 2 axes, got shape \(1, 3, 8\): build the module with another `axes=`"):
        AxialAttention(8, 2)(torch.zeros(1, 3, 8))
    with pytest.raises(InputError, match="`axes` counts axes"):
        AxialAttention(8, 2, axes=0)
