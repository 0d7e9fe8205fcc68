"""torch.func: the derivatives of the formula by `auto` and `reference`, and a sentence by all that lack them."""

import itertools

import pytest
import torch
from torch.autograd import forward_ad

import regard
from regard import attention, positions
from regard.errors import InputError
from regard.masks import Causal
from sweeps import sweep

X = torch.randn(1, 2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def call(backend):
    return lambda q: regard.attention(q, X, X, mask=Causal(), backend=backend)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch loops over its fused kernel
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_vmap_over_the_backward(backend):
    for run in (
        lambda f: torch.func.jacrev(lambda q: f(q).sum((0, 1, 3)))(X),
        lambda f: torch.func.vmap(torch.func.grad(lambda q: f(q).square().sum()))(torch.stack([X, 2 * X])),
    ):
        torch.testing.assert_close(run(call(backend)), run(exact))


def test_second_derivatives():
    run = lambda f: torch.autograd.functional.hvp(lambda q: f(q).square().sum(), X, X + 1)[1]  # noqa: E731
    torch.testing.assert_close(run(call("strips")), run(exact))


def exact(q):
    """The formula, without any of our code."""
    scores = (q @ X.mT / 2).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ X


def dual(f):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(X, X + 1))).tangent


FORWARD = {
    "jvp": lambda f: torch.func.jvp(f, (X,), (X + 1,))[1],
    "dual level": dual,
    "jacfwd": lambda f: torch.func.jacfwd(lambda q: f(q).sum((0, 1, 3)))(X),
    "hessian": lambda f: torch.func.hessian(lambda q: f(q).square().sum())(X),
}
TWICE = {
    "grad of grad": lambda f: torch.func.grad(lambda q: torch.func.grad(lambda p: f(p).square().sum())(q).sum())(X),
    "jacrev of jacrev": lambda f: torch.func.jacrev(torch.func.jacrev(lambda q: f(q).square().sum()))(X),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", [*FORWARD, *TWICE])
def test_auto_takes_the_formula_where_no_other_has_the_derivative(name):
    run = (FORWARD | TWICE)[name]
    call("auto")(X)  # a call of these sizes that is known is not taken either
    torch.testing.assert_close(run(call("auto")), run(exact))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("backend", ["sdpa", "strips", "native", "flex"])
def test_the_others_refuse_it_and_drop_no_tangent(backend):
    for case in sweep([*FORWARD, *TWICE]):
        with case as name:
            lacks = "no forward-mode derivative" if name in FORWARD else "no second derivative inside torch.func"
            with pytest.raises(
                InputError, match=rf"'{backend}' cannot run this call: it has {lacks}.*\"auto\" takes one"
            ):
                (FORWARD | TWICE)[name](call(backend))


STEPS = torch.arange(6)[:, None] - torch.arange(6)
RELATIVE = {  # the bias, its tensor, and each entry of the bias by the formula
    "alibi": (
        lambda slopes: positions.ALiBi(2, slopes, bidirectional=True),
        torch.tensor([0.5, 0.25], dtype=torch.float64),
        lambda slopes: -slopes[:, None, None] * STEPS.abs(),
    ),
    "table": (
        positions.RelativePositionBias,
        torch.randn(11, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
        lambda table: table[STEPS + 5].permute(2, 0, 1),
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("kind", RELATIVE)
def test_relative_biases_have_every_derivative_by_their_tensors(kind):
    bias, table, written_out = RELATIVE[kind]
    derivatives = {
        "jvp": lambda f: torch.func.jvp(f, (table,), (table + 1,))[1],
        "jacfwd": lambda f: torch.func.jacfwd(torch.func.jacfwd(lambda x: f(x).square().sum()))(table),
        "hessian": lambda f: torch.func.hessian(lambda x: f(x).square().sum())(table),
        "jacrev of jacrev": lambda f: torch.func.jacrev(torch.func.jacrev(lambda x: f(x).square().sum()))(table),
    }
    for case in sweep(itertools.product(derivatives, ["auto", "reference"])):
        with case as (name, backend):
            ours = derivatives[name](lambda x, to=backend: regard.attention(X, X, X, bias=bias(x), backend=to))
            expected = derivatives[name](lambda x: (X @ X.mT / 2 + written_out(x)).softmax(-1) @ X)
            torch.testing.assert_close(ours, expected)


def test_a_tangent_of_a_learned_part_counts_and_one_of_another_tensor_does_not():
    bias = torch.zeros(6, 6, dtype=torch.float64)
    with forward_ad.dual_level():
        learned = forward_ad.make_dual(bias, bias + 1)
        assert regard.explain(X, X, X, bias=learned).backend == "reference"
        assert regard.explain(X, X, X, bias=bias).backend == "sdpa"


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_a_gradient_of_a_gradient_of_the_fused_kernel_names_the_backends_that_have_one(backend):
    q = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(call(backend)(q).square().sum(), q, create_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(exact(q).square().sum(), q)[0])
    with pytest.raises(InputError, match=r'no second derivative: pass backend="strips"'):
        first.sum().backward()


LEARNS = {
    "autograd over vmap": lambda f, bias: torch.autograd.grad(
        torch.func.vmap(f)(bias.requires_grad_()).square().sum(), bias
    )[0],
    "grad over vmap": lambda f, bias: torch.func.grad(lambda b: torch.func.vmap(f)(b).square().sum())(bias),
    "vmap over grad": lambda f, bias: torch.func.vmap(torch.func.grad(lambda b: f(b).square().sum()))(bias),
    "vmap in vmap": lambda f, bias: torch.autograd.grad(
        torch.func.vmap(torch.func.vmap(f))(bias.requires_grad_()[None]).square().sum(), bias
    )[0],
}


@pytest.mark.parametrize("way", LEARNS)
def test_auto_trains_an_ensemble_s_biases(way):
    """PyTorch's fused kernel does not know that a bias which vmap maps over is learned."""
    x, bias = X.float(), torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))

    def formula(b):
        return (x @ x.mT / 2 + b[None]).softmax(-1) @ x

    def ours(b):
        return attention(x, x, x, bias=b[None])

    found, expected = LEARNS[way](ours, bias.clone()), LEARNS[way](formula, bias.clone())
    torch.testing.assert_close(found, expected)
    assert expected.abs().max() > 1e-2


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_a_bias_under_vmap_that_nothing_learns_is_for_the_fused_kernel():
    bias = torch.randn(3, 2, 6, 6, requires_grad=True)
    sdpa = lambda b: attention(*[X.float()] * 3, bias=b[None], backend="sdpa")  # noqa: E731
    with torch.no_grad():
        torch.func.vmap(sdpa)(bias)
    with pytest.raises(InputError, match="no gradient of a bias that"):
        torch.func.vmap(sdpa)(bias)
