"""Sliding windows: the dense formula over a band, and padding."""

from itertools import product

import numpy as np
import pytest
import torch

from oracles import dense, f64, window
from regard.errors import InputError
from regard.nn import SlidingWindowAttention
from sweeps import sweep


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equals_the_dense_formula_over_a_band():
    cases = product(
        [
            ({"sliding_window": 3}, 2, 0),
            ({"left": 2, "right": 1}, 2, 1),
            ({"right": 2}, 0, 2),
            ({"sliding_window": 99}, 98, 0),
        ],
        [False, True],
    )
    for case in sweep(cases):
        with case as ((given, before, after), padded):
            torch.manual_seed(0)
            module, x = SlidingWindowAttention(8, 2, **given).double(), randn(2, 9, 8)
            real = np.arange(9) < np.array([[9], [6 if padded else 9]])
            attend = module.attention
            q, k, v = (
                layer(x).view(2, 9, 2, 4).transpose(1, 2) for layer in (attend.q_proj, attend.k_proj, attend.v_proj)
            )
            found = dense(q, k, v, visible=window(9, 9, before, after) & real[:, None, None])
            rows = torch.from_numpy(found.output).transpose(1, 2).flatten(-2)
            padding = torch.from_numpy(~real) if padded else None
            output, weights = module(x, key_padding_mask=padding, need_weights=True)
            np.testing.assert_allclose(f64(output), f64(attend.out_proj(rows)) * real[..., None], atol=1e-12)
            np.testing.assert_allclose(f64(weights), found.weights * real[:, None, :, None], atol=1e-12)
            torch.testing.assert_close(module(x, key_padding_mask=padding), output)


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match="takes either a size or"):
        SlidingWindowAttention(8, 2)
    with pytest.raises(InputError, match="`embed_dim` must be a multiple of `num_heads`, got 8 and 3"):
        SlidingWindowAttention(8, 3, 4)
    module, x = SlidingWindowAttention(8, 2, 4), torch.zeros(1, 5, 8)
    with pytest.raises(InputError, match="attention_mask == 0"):
        module(x, key_padding_mask=torch.ones(1, 5))
    with pytest.raises(InputError, match=r"x\[None\] for one sequence"):
        module(x[0], key_padding_mask=torch.zeros(5, dtype=torch.bool))
