"""A parameter inside a value that is assigned to a module is found in the graph of a loss."""

import copy

import pytest
import torch
from torch import nn

import regard
from regard import normalizers, positions, scores
from regard.nn import MultiHeadAttention, ValueModule, unregistered_parameters
from sweeps import sweep

X = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0))


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(1)))


def t5(table):
    return positions.T5Bias(table, bidirectional=True)


class Lost(nn.Module):
    """What is assigned is a value, of which PyTorch knows nothing."""

    def __init__(self, **given):
        super().__init__()
        self.given = given
        for name, value in given.items():
            setattr(self, name, value)

    def forward(self, x):
        return regard.attention(x, x, x, **{name: getattr(self, name) for name in self.given})


class Kept(nn.Module):
    """The way out in two lines."""

    def __init__(self):
        super().__init__()
        self.table = parameter(32, 2)

    def forward(self, x):
        return regard.attention(x, x, x, bias=t5(self.table))


class Registered(nn.Module):
    """The way out for a value that is made elsewhere."""

    def __init__(self, name, value):
        super().__init__()
        self.name, self.value = name, ValueModule(value)

    def forward(self, x):
        return regard.attention(x, x, x, **{self.name: self.value()})


PARTS = {
    "T5": {"bias": t5(parameter(32, 2))},
    "ALiBi": {"bias": positions.ALiBi(2, slopes=parameter(2))},
    "dense bias": {"bias": positions.DenseBias(parameter(6, 6))},
    "bilinear": {"score": scores.Bilinear(parameter(8, 8))},
    "sink": {"normalizer": normalizers.Softmax(sink=parameter(2))},
}


def shapes(loss, *modules):
    return [tuple(tensor.shape) for tensor in unregistered_parameters(loss, *modules)]


def test_a_value_that_is_assigned_hides_its_parameter_and_a_value_module_registers_it():
    for case in sweep(PARTS):
        with case as which:
            ((name, value),) = PARTS[which].items()
            module = Lost(**{name: value})
            (tensor,) = [x for x in vars(value).values() if isinstance(x, nn.Parameter)]
            assert list(module.parameters()) == []
            assert unregistered_parameters(module(X).sum(), module)[0] is tensor
            assert shapes(nn.Sequential(nn.Identity(), module)(X).sum(), module) == [tuple(tensor.shape)]
            registered = Registered(name, value)
            assert [x is tensor for x in registered.parameters()] == [True]
            assert shapes(registered(X).sum(), registered) == []


def test_what_a_model_has_is_not_listed_however_it_is_run():
    kept = Kept()
    for module in (kept, copy.deepcopy(kept), nn.Sequential(Kept(), Kept())):
        assert shapes(module(X).square().sum(), module) == []
    attention = MultiHeadAttention(16, 2, attn_bias=t5(parameter(32, 2)), score=scores.Bilinear(parameter(8, 8)))
    assert shapes(attention(torch.randn(1, 6, 16)).sum(), attention) == []
    assert shapes(kept(X).sum()) == [(32, 2)]
    assert shapes(kept(X.clone().requires_grad_()).sum(), kept) == [(1, 2, 6, 8)]  # an input is a leaf too
    with torch.no_grad():
        assert shapes(kept(X).sum()) == []
    again = torch.utils.checkpoint.checkpoint(Lost(bias=t5(parameter(32, 2))), X, use_reentrant=False)
    assert shapes(again.sum(), kept) == [(32, 2)]


@pytest.mark.slow
def test_compiled_code_is_looked_into_as_well():
    torch._dynamo.reset()
    lost, kept = Lost(bias=t5(parameter(32, 2))), Kept()
    assert shapes(torch.compile(lost, backend="aot_eager")(X).sum(), lost) == [(32, 2)]
    assert shapes(torch.compile(kept, backend="aot_eager")(X).sum(), kept) == []
