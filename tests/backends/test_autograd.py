"""Gradients by small steps, torch.func and torch.compile, for each way a backend computes."""

import itertools

import pytest
import torch

import regard
from backend_lists import GENERAL
from regard import masks, normalizers, positions, scores
from regard.backends import strips
from regard.errors import InputError
from regard.masks.plan_cache import PLANS
from regard.problem import Problem
from regard.tensors import run_eagerly
from sweeps import sweep

N = 20  # two blocks of 16 below, of which rows are cut too


def _randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _q_k_v(queries=9, keys=N):
    return _randn(1, 2, queries, 4), _randn(1, 1, keys, 4, seed=1), _randn(1, 1, keys, 3, seed=2)


# What is held, and what is asked with it: something of each part of the equation.
WAYS = {
    "plain": ((), dict),
    "causal": ((), lambda: {"mask": masks.Causal()}),
    "fixed bias": ((), lambda: {"bias": positions.ALiBi(2)}),
    "softcap": ((), lambda: {"score": scores.ScaledDot(softcap=0.7)}),
    "dropout": ((), lambda: {"dropout": 0.4, "generator": torch.Generator().manual_seed(0)}),
    "sink": ((_randn(2, seed=3),), lambda sink: {"normalizer": normalizers.Softmax(sink)}),
    "sigmoid": ((), lambda: {"normalizer": normalizers.Sigmoid()}),
    "bias of heads": ((_randn(1, 2, 9, N, seed=3),), lambda bias: {"bias": bias}),
    "bias of a key": ((_randn(1, N, seed=3),), lambda bias: {"bias": bias}),
    "t5": ((_randn(8, 2, seed=3),), lambda table: {"bias": positions.T5Bias(table, bidirectional=True)}),
    "windowed t5": (
        (_randn(8, 2, seed=3),),
        lambda table: {"bias": positions.T5Bias(table, bidirectional=False), "mask": masks.Causal() & masks.Window(7)},
    ),
    "gaussian": ((5 + _randn(1, 9, seed=3),), lambda center: {"weight_factor": positions.Gaussian(center, 6.0)}),
    "additive": (
        (_randn(3, 4, seed=3), _randn(3, 4, seed=4), _randn(3, seed=5)),
        lambda *held: {"score": scores.Additive(*held)},
    ),
    "shaw": ((_randn(7, 4, seed=3), _randn(7, 3, seed=4)), lambda *held: {"score": scores.Shaw(*held)}),
    "relative key query": ((_randn(7, 4, seed=3),), lambda table: {"score": scores.RelativeKeyQuery(table)}),
    "deberta": (
        (_randn(2, 12, 4, seed=3), _randn(2, 12, 4, seed=4)),
        lambda *held: {"score": scores.DeBERTa(*held, 6, 30)},
    ),
    "everything": (
        (_randn(3, 4, seed=3), _randn(3, 3, seed=4), _randn(2, seed=5), _randn(8, 2, seed=6)),
        lambda keys, values, sink, table: {
            "score": scores.Shaw(keys, values, softcap=2.0),
            "normalizer": normalizers.Softmax(sink),
            "bias": positions.T5Bias(table, bidirectional=False),
            "mask": masks.Causal() & masks.Window(15),
            "dropout": 0.3,
            "generator": torch.Generator().manual_seed(0),
        },
    ),
}


def _ways_of(backend):
    """The names of the ways that a backend computes."""
    for name, (held, asked) in WAYS.items():
        if backend.refuses(Problem.of(*_q_k_v(), **asked(*held))) is None:
            yield name


WAYS_OF = {backend.name: list(_ways_of(backend)) for backend in GENERAL}
every_backend = pytest.mark.parametrize("backend", WAYS_OF)


@pytest.fixture(autouse=True)
def _small_strips(monkeypatch):
    monkeypatch.setattr(strips, "BLOCK", 16)
    monkeypatch.setattr(strips, "_SCORES", 2**7)  # a few rows of one head
    PLANS.clear()  # so that plans are made inside torch.func too


@every_backend
def test_gradients_are_those_of_small_steps(backend):
    for case in sweep(itertools.product([False, True], WAYS_OF[backend])):
        with case as (lse, name):
            held, asked = WAYS[name]
            options = asked(*held)
            if lse and (backend == "sdpa" or isinstance(options.get("normalizer"), normalizers.Sigmoid)):
                continue  # has none
            inputs = [one.clone().requires_grad_() for one in (*_q_k_v(), *held)]

            def run(q, k, v, *held, lse=lse, asked=asked):
                return regard.attention(q, k, v, backend=backend, return_lse=lse, **asked(*held))

            assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_gradients_by_every_single_step():
    for case in sweep(itertools.product(["reference", "strips", "sdpa"], [None, masks.Causal()])):
        with case as (backend, mask):
            inputs = [one.clone().requires_grad_() for one in _q_k_v(queries=3, keys=5)]
            assert torch.autograd.gradcheck(lambda *x: regard.attention(*x, mask=mask, backend=backend), inputs)


@every_backend
def test_one_gradient_alone_is_that_of_all(backend):
    for case in sweep(itertools.product(range(3), WAYS_OF[backend])):
        with case as (wanted, name):
            held, asked = WAYS[name]
            inputs = list(_q_k_v())
            every = [one.clone().requires_grad_() for one in inputs]
            (all_,) = torch.autograd.grad(
                regard.attention(*every, backend=backend, **asked(*held)).square().sum(), [every[wanted]]
            )
            inputs[wanted] = inputs[wanted].clone().requires_grad_()
            out = regard.attention(*inputs, backend=backend, **asked(*held))
            torch.testing.assert_close(torch.autograd.grad(out.square().sum(), inputs[wanted])[0], all_)


@every_backend
def test_without_a_graph_values_are_the_same(backend):
    for case in sweep(WAYS_OF[backend]):
        with case as name:
            held, asked = WAYS[name]
            q, k, v = (one.requires_grad_() for one in _q_k_v())
            out = regard.attention(q, k, v, backend=backend, **asked(*held))
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    ours = regard.attention(q, k, v, backend=backend, **asked(*held))
                assert not ours.requires_grad
                torch.testing.assert_close(ours, out)


@pytest.mark.parametrize("backend", [name for name in WAYS_OF if name != "strips"])
def test_func_grad_is_autograd(backend):
    for case in sweep(WAYS_OF[backend]):
        with case as name:
            held, asked = WAYS[name]
            PLANS.clear()
            inputs = (*_q_k_v(), *held)

            def loss(q, k, v, *held, asked=asked):
                return regard.attention(q, k, v, backend=backend, **asked(*held)).square().sum()

            # First, so that it plans for itself.
            ours = torch.func.grad(loss, argnums=tuple(range(len(inputs))))(*inputs)
            leaves = [one.clone().requires_grad_() for one in inputs]
            expected = torch.autograd.grad(loss(*leaves), leaves)
            for one, other in zip(ours, expected, strict=True):
                torch.testing.assert_close(one, other)


def _second(backend, held, asked, first):
    """Derivatives of the gradient of one input."""
    leaves = [one.clone().requires_grad_() for one in (*_q_k_v(), *held)]
    q, k, v, *rest = leaves
    loss = regard.attention(q, k, v, backend=backend, **asked(*rest)).square().sum()
    (grad,) = torch.autograd.grad(loss, leaves[first], create_graph=True)
    return torch.autograd.grad(grad.square().sum(), leaves)


def test_second_derivatives_are_right():
    inputs = [(name, first) for name, (held, _) in WAYS.items() for first in (0, 2, *range(3, 3 + len(held)))]
    for case in sweep(inputs):
        with case as (name, first):
            held, asked = WAYS[name]
            ours, expected = (_second(backend, held, asked, first) for backend in ("strips", "reference"))
            for one, other in zip(ours, expected, strict=True):
                torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch loops over its fused kernel
def test_vmap_is_a_loop():
    names = "plain", "causal", "softcap", "sink", "t5", "additive"
    for case in sweep(itertools.product(["reference", "auto"], names)):
        with case as (backend, name):
            PLANS.clear()
            held, asked = WAYS[name]
            q, k, v = (torch.stack([one, 2 * one, -one]) for one in _q_k_v())

            def run(q, k, v, held=held, asked=asked):
                return regard.attention(q, k, v, backend=backend, **asked(*held))

            ours = torch.func.vmap(run)(q, k, v)
            torch.testing.assert_close(ours, torch.stack([run(*one) for one in zip(q, k, v, strict=True)]))
            shared = torch.func.vmap(run, in_dims=(0, None, None))(q, k[0], v[0])
            torch.testing.assert_close(shared, torch.stack([run(one, k[0], v[0]) for one in q]))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch loops over the fused kernel's backward
@pytest.mark.parametrize("name", ["plain", "softcap"])
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_gradients_of_each_sample(backend, name):
    held, asked = WAYS[name]
    q, k, v = (torch.stack([one, 2 * one]) for one in _q_k_v())

    def loss(q, k, v):
        return regard.attention(q, k, v, backend=backend, **asked(*held)).square().sum()

    ours = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    alone = [torch.func.grad(loss, argnums=(0, 1, 2))(*one) for one in zip(q, k, v, strict=True)]
    for one, many in zip(ours, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(many))


def _block(q, k, v, backend):
    """A little more than attention, before and after it."""
    return regard.attention(torch.tanh(q), k, v, mask=masks.Causal(), backend=backend).sigmoid() * 2


@pytest.mark.parametrize("backend", ["strips", "native"])
def test_who_does_not_run_inside_torch_func_says_so_and_auto_takes_another(backend):
    q, k, v = (one.float() for one in _q_k_v())
    call = lambda q, backend: regard.attention(q, k, v, backend=backend, return_lse=True)[0]  # noqa: E731
    expected = call(q, "reference")
    transforms = {
        "vmap": lambda f: torch.func.vmap(f)(q[None])[0],
        "grad": lambda f: torch.func.grad(lambda q: f(q).sum())(q),
    }
    for case in sweep(transforms):
        with case as name:
            with pytest.raises(InputError, match=r"it does not run inside torch\.func; backend=.auto. takes one"):
                transforms[name](lambda q: call(q, backend))
            if name == "vmap":
                torch.testing.assert_close(transforms[name](lambda q: call(q, "auto")), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch.compile's own
@pytest.mark.parametrize(("backend", "whole"), [("sdpa", True), ("strips", False), ("auto", False)])
def test_compiled_it_computes_the_same(backend, whole):
    torch._dynamo.reset()
    compiled = torch.compile(_block, fullgraph=whole, backend="aot_eager")
    for n in (40, 56):
        q, k, v = (_randn(1, 2, n, 4, seed=s).requires_grad_() for s in range(3))
        expected = _block(q, k, v, backend)
        ours = compiled(q, k, v, backend)
        torch.testing.assert_close(ours, expected)
        for one, other in zip(
            *(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (ours, expected)), strict=True
        ):
            torch.testing.assert_close(one, other)


def test_no_compiler_follows_a_backend_that_runs_eagerly():
    followed = []

    class Doubling:
        @run_eagerly
        def __call__(self, problem):
            followed.append(torch.compiler.is_compiling())
            return problem * 2

    compiled = torch.compile(lambda x: Doubling()(x + 1) + 1, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [5, 5]
    assert followed == [False]


@pytest.mark.parametrize("seen", [0, 3])
def test_second_derivatives_are_there_where_a_text_is_padding_alone(seen):
    mask = masks.Padding(torch.arange(N)[None] < seen)
    q, k, v = leaves = [one.requires_grad_() for one in _q_k_v()]
    output = regard.attention(q, k, v, mask=mask, backend="strips")
    first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(one.square().sum() for one in first), leaves)
    assert [one.abs().sum() > 0 for one in second] == [seen > 0] * 3
