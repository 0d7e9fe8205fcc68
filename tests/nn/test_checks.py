"""A module's own mask and that of the call, bound to a place or not, hide together."""

from itertools import product

import pytest
import torch

from regard import masks
from regard.errors import InputError
from regard.nn import MultiHeadAttention
from sweeps import sweep

X = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
BOTH = (torch.ones(5, 5).tril() * torch.ones(5, 5).triu(-1)).bool()


def test_both_hide_wherever_they_are_bound():
    for case in sweep(
        product([masks.Causal(), masks.Causal().bind(5, 5)], [masks.Window(2), masks.Window(2).bind(5, 5)])
    ):
        with case as (own, given):
            _, weights = MultiHeadAttention(8, 2, mask=own)(X, mask=given, need_weights=True)
            assert torch.equal(weights > 0, BOTH.expand(1, 2, 5, 5))


def test_two_places_are_refused():
    module = MultiHeadAttention(8, 2, mask=masks.Causal().bind(5, 5))
    with pytest.raises(InputError, match=r"one place, got .*\(5, 5, -2\) and \(5, 5, 0\): leave the module's unbound"):
        module(X, mask=masks.Window(2).bind(5, 5, -2))
