"""A parameter inside a value that is assigned to a module is never silently left out of training."""

import copy

import pytest
import torch
from torch import nn

import regard
from regard import normalizers, positions, scores
from regard.errors import InputError
from regard.nn import MultiHeadAttention, ValueModule
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


PARTS = {
    "T5": {"bias": t5(parameter(32, 2))},
    "ALiBi": {"bias": positions.ALiBi(2, slopes=parameter(2))},
    "dense bias": {"bias": positions.DenseBias(parameter(6, 6))},
    "bilinear": {"score": scores.Bilinear(parameter(8, 8))},
    "sink": {"normalizer": normalizers.Softmax(sink=parameter(2))},
}


def test_the_first_call_in_a_module_that_lacks_the_parameter_is_refused():
    for case in sweep(PARTS):
        with case as which:
            part = PARTS[which]
            module = Lost(**part)
            assert list(module.parameters()) == []
            (name,) = part
            for _ in range(2):
                with pytest.raises(
                    InputError, match=rf"`{name}` .*Lost: write `self\..*nn\.Parameter.* in __init__.*in forward"
                ):
                    module(X)
            with pytest.raises(InputError, match="no module has"):
                nn.Sequential(nn.Identity(), module)(X)


def test_the_way_out_trains_moves_and_saves():
    module = Kept()
    module(X).square().sum().backward()
    assert module.table.grad.abs().sum() > 0
    assert list(module.state_dict()) == ["table"]
    held = ValueModule(t5(parameter(32, 2)))
    assert [name for name, _ in Lost(bias=held).named_parameters()] == ["bias.table"]


def test_there_is_no_false_alarm():
    bias = t5(parameter(32, 2))
    regard.attention(X, X, X, bias=bias)  # outside of modules anything goes
    torch.func.functional_call(Kept(), {"table": parameter(32, 2)}, X)
    torch.func.functional_call(Kept(), {"table": torch.zeros(32, 2)}, X)
    copy.deepcopy(Kept())(X)
    nn.Sequential(Kept(), Kept())(X)
    MultiHeadAttention(16, 2, attn_bias=t5(parameter(32, 2)), score=scores.Bilinear(parameter(8, 8)))(
        X.flatten(1, 2)[:, :6].repeat(1, 1, 2)
    )


def test_a_module_may_use_the_parameter_of_another():
    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = parameter(32, 2)
            self.child = Lost(bias=t5(self.table))

        def forward(self, x):
            return self.child(x)

    Parent()(X)
    parent = Parent()
    parent.child(X)  # whose owner is not running


def test_an_optimizer_may_have_the_parameter():
    table = parameter(32, 2)
    optimizer = torch.optim.SGD([table], lr=0.1)
    Lost(bias=t5(table))(X)
    del optimizer


def test_compiled_it_computes():
    torch._dynamo.reset()
    module = Kept()
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="eager")(X), module(X))
