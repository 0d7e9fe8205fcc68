"""Modules under torch.func: each member of an ensemble, and the gradient of each example, as they are alone."""

from functools import partial

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import Parameter

import regard
from regard import nn
from sweeps import sweep

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

MODULES = {
    "additive": lambda: nn.AdditiveAttention(16),
    "axial": lambda: nn.AxialAttention(16, 2),
    "BigBird": lambda: nn.BigBirdAttention(16, 2, block=4, num_random_blocks=2, seed=3),
    "encoder block": lambda: nn.EncoderBlock(16, 2, 32, norm_first=True),
    "local-m": lambda: nn.LocalAttention(16, 3, alignment="monotonic"),
    "local-p": lambda: nn.LocalAttention(16, 3),
    "Longformer": lambda: nn.LongformerAttention(16, 2, 8),
    "neighborhood": lambda: nn.NeighborhoodAttention(16, 2, 3),
    "pooling": lambda: nn.AttentionPooling(16),
    "window": lambda: nn.SlidingWindowAttention(16, 2, 8),
    "ALiBi": lambda: nn.MultiHeadAttention(16, 2, mask=regard.masks.Causal(), attn_bias=regard.positions.ALiBi(2)),
    "T5": lambda: nn.MultiHeadAttention(
        16, 2, attn_bias=regard.positions.T5Bias(Parameter(torch.randn(32, 2)), bidirectional=True)
    ),
    "sink": lambda: nn.MultiHeadAttention(16, 2, normalizer=regard.normalizers.Softmax(Parameter(torch.randn(2)))),
    "bilinear score": lambda: nn.MultiHeadAttention(16, 2, score=regard.scores.Bilinear(Parameter(torch.randn(8, 8)))),
    "additive score": lambda: nn.MultiHeadAttention(
        16, 2, score=regard.scores.Additive(None, Parameter(torch.randn(8, 8)), Parameter(torch.randn(2, 8)))
    ),
    "Shaw in a block": lambda: nn.EncoderBlock(
        16, 2, 32, attention={"score": regard.scores.Shaw(Parameter(torch.randn(9, 8)), Parameter(torch.randn(9, 8)))}
    ),
    "learned positions": lambda: nn.LearnedPositions(16, 48),
}
TWO_AXES = ("axial",)


def _run(module, x):
    inputs = (x, x) if isinstance(module, nn.AdditiveAttention | nn.LocalAttention) else (x,)
    found = module(*inputs)
    return found[0] if isinstance(found, tuple) else found


def _inputs(name, texts):
    shape = (texts, 6, 8, 16) if name in TWO_AXES else (texts, 48, 16)
    return torch.randn(*shape, dtype=torch.float64)


def _call(module, parameters, x):
    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return _run(self.inner, x)

    return functional_call(Whole(), {f"inner.{name}": one for name, one in parameters.items()}, (x,))


def test_an_ensemble_is_mapped_over():
    for case in sweep(MODULES):
        with case as name:
            torch.manual_seed(0)
            members = [MODULES[name]().double() for _ in range(3)]
            x = _inputs(name, 2)
            parameters, _ = stack_module_state(members)
            mapped = vmap(partial(_call, members[0]), (0, None))(parameters, x)
            torch.testing.assert_close(mapped, torch.stack([_run(one, x) for one in members]), rtol=1e-12, atol=1e-12)


def test_each_example_has_a_gradient_of_its_own():
    for case in sweep(MODULES):
        with case as name:
            torch.manual_seed(1)
            module = MODULES[name]().double()
            x = _inputs(name, 3)
            parameters = {key: one.detach() for key, one in module.named_parameters()}

            def loss(parameters, one, module=module):
                return (_call(module, parameters, one[None]) ** 2).sum()

            mapped = vmap(grad(loss), (None, 0))(parameters, x)
            for at in range(3):
                module.zero_grad()
                (_run(module, x[at : at + 1]) ** 2).sum().backward()
                for key, one in module.named_parameters():
                    expected = torch.zeros_like(one) if one.grad is None else one.grad
                    torch.testing.assert_close(mapped[key][at], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_the_seed_decides_the_blocks_whatever_the_randomness(randomness):
    torch.manual_seed(2)
    members = [MODULES["BigBird"]().double() for _ in range(3)]
    x = _inputs("BigBird", 2)
    parameters, _ = stack_module_state(members)
    state = torch.get_rng_state()
    mapped = vmap(lambda one: _call(members[0], one, x), randomness=randomness)(parameters)
    torch.testing.assert_close(mapped, torch.stack([one(x) for one in members]), rtol=1e-12, atol=1e-12)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_centre_that_is_not_finite_is_found_in_any_member():
    members = [nn.LocalAttention(16, 3).double() for _ in range(3)]
    parameters, _ = stack_module_state(members)
    parameters["place_vector"].data[1] = torch.nan
    x = _inputs("local-p", 2)
    with pytest.raises(regard.errors.InputError, match="`center` must be finite"):
        vmap(partial(_call, members[0]), (0, None))(parameters, x)
