"""Soft attention: a bag as one vector, by the formulas of Yang et al. and Xu et al. in numpy."""

import numpy as np
import pytest
import torch

from oracles import f64, softmax
from regard.errors import InputError
from regard.nn import AttentionPooling


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("query_width", [None, 3])
def test_equals_the_formula(query_width):
    torch.manual_seed(0)
    module = AttentionPooling(5, hidden_features=4, query_dim=query_width).double()
    bag, real = randn(2, 7, 5), torch.arange(7)[None] < torch.tensor([[7], [4]])
    query = None if query_width is None else randn(2, 3, seed=1)
    output, weights = module(bag, query, key_padding_mask=~real, need_weights=True)
    hidden = f64(bag) @ f64(module.key_proj.weight).T + f64(module.key_proj.bias)
    if query is not None:
        hidden = hidden + (f64(query) @ f64(module.query_proj.weight).T)[:, None]
    scores = np.where(real.numpy(), np.tanh(hidden) @ f64(module.vector), -np.inf)
    expected = softmax(scores)[0]
    np.testing.assert_allclose(f64(weights), expected, atol=1e-12)
    np.testing.assert_allclose(f64(output), np.einsum("bn,bnd->bd", expected, f64(bag)), atol=1e-12)
    torch.testing.assert_close(module(bag, query, key_padding_mask=~real), output)


def test_the_order_of_the_bag_does_not_matter():
    module, bag = AttentionPooling(5).double(), randn(2, 7, 5)
    torch.testing.assert_close(module(bag), module(bag[:, torch.randperm(7)]))


def test_an_empty_bag_gives_zero():
    module, bag = AttentionPooling(5).double(), randn(2, 7, 5).requires_grad_()
    real = torch.tensor([[True] * 7, [False] * 7])
    output = module(bag, key_padding_mask=~real)
    assert (output[1] == 0).all()
    assert torch.autograd.grad(output.sum(), bag)[0].isfinite().all()


def test_refusals_name_the_way_out():
    bag = torch.zeros(2, 7, 5)
    with pytest.raises(InputError, match="build it with `query_dim=`"):
        AttentionPooling(5)(bag, torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"`query` is missing: pass \(batch, 3\)"):
        AttentionPooling(5, query_dim=3)(bag)
    with pytest.raises(InputError, match=r"write x\[None\]"):
        AttentionPooling(5)(bag[0])
