"""Bilinear attention: Luong's "general" in numpy."""

import numpy as np
import pytest
import torch

from oracles import f64, softmax
from regard.errors import InputError
from regard.masks import Padding
from regard.nn import BilinearAttention


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equals_the_formula():
    torch.manual_seed(0)
    module = BilinearAttention(5, 6).double()
    q, k, real = randn(2, 3, 5), randn(2, 7, 6, seed=1), torch.arange(7)[None] < torch.tensor([[7], [4]])
    output, weights = module(q, k, mask=Padding(real), need_weights=True)
    scores = f64(q) @ f64(module.weight) @ f64(k).swapaxes(1, 2)
    expected = softmax(np.where(real.numpy()[:, None], scores, -np.inf))[0]
    np.testing.assert_allclose(f64(weights), expected, atol=1e-12)
    np.testing.assert_allclose(f64(output), expected @ f64(k), atol=1e-12)
    torch.testing.assert_close(module(q, k, k[..., :2], mask=Padding(real)), output[..., :2])


def test_its_scores_start_with_variance_one():
    torch.manual_seed(0)
    products = torch.randn(400, 64) @ BilinearAttention(64, 32).weight @ torch.randn(32, 400)
    assert abs(float(products.detach().std()) - 1) < 0.1


def test_dropout_acts_in_training_only():
    module, q, k = BilinearAttention(5, dropout=0.5).double(), randn(3, 5), randn(7, 5, seed=1)
    torch.testing.assert_close(module.eval()(q, k), module(q, k))
    output, weights = module.train()(q, k, need_weights=True)
    assert not torch.allclose(output, weights @ k)


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match="build the module with `embed_dim=6`"):
        BilinearAttention(5, 6)(torch.zeros(3, 6), torch.zeros(7, 6))
