"""Neighborhood attention: every cell gathers its neighbours one by one, in numpy."""

from itertools import product

import numpy as np
import pytest
import torch

from oracles import f64, softmax
from regard.errors import InputError
from regard.nn import NeighborhoodAttention
from sweeps import sweep


def neighbours(cell, grid, sizes, boundary):
    """The cells that a cell sees."""
    ranges = []
    for at, side, size in zip(cell, grid, sizes, strict=True):
        first = at - size // 2
        if boundary == "shift":
            first = min(max(first, 0), side - size)
        ranges.append([one for one in range(first, first + size) if 0 <= one < side])
    return list(product(*ranges))


def test_equals_an_explicit_gather():
    for case in sweep(product(["shift", "crop"], [((7,), 3), ((5, 6), 3), ((4, 5), (3, 5)), ((3, 4, 5), (1, 3, 3))])):
        with case as (boundary, (grid, size)):
            torch.manual_seed(0)
            size = size if isinstance(size, tuple) or len(grid) == 1 else (size,) * len(grid)
            module = NeighborhoodAttention(8, 2, size, boundary=boundary).double()
            x, attend = torch.randn(2, *grid, 8, dtype=torch.float64), module.attention
            q, k, v = (f64(layer(x)).reshape(2, *grid, 2, 4) for layer in (attend.q_proj, attend.k_proj, attend.v_proj))
            rows = np.empty_like(q)
            sizes = (size,) if isinstance(size, int) else size
            for b, h in product(range(2), range(2)):
                for cell in product(*(range(side) for side in grid)):
                    near = neighbours(cell, grid, sizes, boundary)
                    keys, values = (np.stack([y[(b, *one, h)] for one in near]) for y in (k, v))
                    rows[(b, *cell, h)] = softmax((keys @ q[(b, *cell, h)] / 2)[None])[0][0] @ values
            expected = attend.out_proj(torch.from_numpy(rows.reshape(2, *grid, 8)))
            np.testing.assert_allclose(f64(module(x)), f64(expected), atol=1e-12)
            output, weights = module(x, need_weights=True)
            assert weights.shape == (2, 2, np.prod(grid), np.prod(grid))
            torch.testing.assert_close(output, expected)


def test_one_number_serves_any_number_of_axes():
    module = NeighborhoodAttention(8, 2, 3)
    for grid in ((5,), (4, 5), (3, 4, 5)):
        assert module(torch.zeros(1, *grid, 8)).shape == (1, *grid, 8)
        assert int((module(torch.zeros(1, *grid, 8), need_weights=True)[1][0, 0, 0] > 0).sum()) == 3 ** len(grid)


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match="must be odd, got"):
        NeighborhoodAttention(8, 2, 4)
    with pytest.raises(InputError, match=r"`kernel_size` must be an integer, or a tuple .*, got 3\.0"):
        NeighborhoodAttention(8, 2, 3.0)
    with pytest.raises(InputError, match='boundary="crop"'):
        NeighborhoodAttention(8, 2, 5)(torch.zeros(1, 4, 8))
    with pytest.raises(InputError, match=r"write x\[None\]"):
        NeighborhoodAttention(8, 2, 3)(torch.zeros(4, 8))
    with pytest.raises(InputError, match="one for each axis of the grid"):
        NeighborhoodAttention(8, 2, (3, 3))(torch.zeros(1, 4, 8))
