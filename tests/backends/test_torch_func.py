"""torch.func over blockwise: the derivatives of reference, or a sentence that names it."""

import pytest
import torch

import regard
from regard.errors import InputError
from regard.masks import Causal

X = torch.randn(1, 2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def call(backend):
    return lambda q: regard.attention(q, X, X, mask=Causal(), backend=backend)


def test_vmap_over_the_backward():
    for run in (
        lambda f: torch.func.jacrev(lambda q: f(q).sum((0, 1, 3)))(X),
        lambda f: torch.func.vmap(torch.func.grad(lambda q: f(q).square().sum()))(torch.stack([X, 2 * X])),
    ):
        torch.testing.assert_close(run(call("blockwise")), run(call("reference")))


def test_second_derivatives():
    run = lambda f: torch.autograd.functional.hvp(lambda q: f(q).square().sum(), X, X + 1)[1]  # noqa: E731
    torch.testing.assert_close(run(call("blockwise")), run(call("reference")))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_forward_mode_is_refused_with_the_way_out():
    with pytest.raises(InputError, match=r'no forward-mode derivative.*backend="reference"'):
        torch.func.jvp(call("blockwise"), (X,), (X,))
