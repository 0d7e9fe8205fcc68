"""Additive attention: Bahdanau's formula in numpy."""

import numpy as np
import pytest
import torch

from oracles import f64, softmax
from regard.errors import InputError
from regard.masks import Padding
from regard.nn import AdditiveAttention


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_equals_the_formula():
    torch.manual_seed(0)
    module = AdditiveAttention(5, 6, hidden_features=4).double()
    q, k, real = randn(2, 3, 5), randn(2, 7, 6, seed=1), torch.arange(7)[None] < torch.tensor([[7], [4]])
    output, weights = module(q, k, mask=Padding(real), need_weights=True)
    hidden = (f64(q) @ f64(module.query_proj.weight).T)[:, :, None] + (f64(k) @ f64(module.key_proj.weight).T)[:, None]
    scores = np.where(real.numpy()[:, None], np.tanh(hidden) @ f64(module.vector), -np.inf)
    expected = softmax(scores)[0]
    np.testing.assert_allclose(f64(weights), expected, atol=1e-12)
    np.testing.assert_allclose(f64(output), expected @ f64(k), atol=1e-12)


def test_values_may_be_others_than_the_keys():
    module, q, k, v = AdditiveAttention(5).double(), randn(3, 5), randn(7, 5, seed=1), randn(7, 2, seed=2)
    output, weights = module(q, k, v, need_weights=True)
    torch.testing.assert_close(output, weights @ v)


def test_every_weight_learns():
    module = AdditiveAttention(5, 6, hidden_features=4).double()
    module(randn(3, 5), randn(7, 6, seed=1)).square().sum().backward()
    assert all((p.grad != 0).any() for p in module.parameters())


def test_dropout_acts_in_training_only_and_weights_are_those_before_it():
    module, q, k = AdditiveAttention(5, dropout=0.5).double(), randn(3, 5), randn(7, 5, seed=1)
    torch.testing.assert_close(module.eval()(q, k), module(q, k))
    output, weights = module.train()(q, k, need_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, dtype=torch.float64))
    assert not torch.allclose(output, weights @ k)


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match="build the module with `kdim=5`"):
        AdditiveAttention(5, 6)(torch.zeros(3, 5), torch.zeros(7, 5))
    with pytest.raises(InputError, match="`hidden_features` is that of the layer between"):
        AdditiveAttention(5, hidden_features=0)
