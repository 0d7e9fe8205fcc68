"""Every backend computes the formula: values and all gradients, for each mask, head layout and type."""

import itertools

import numpy as np
import pytest
import torch

from backend_lists import GENERAL
from oracles import Largest, causal, dense, window
from regard import masks
from regard.backends import Sdpa
from regard.backends.native import Native
from regard.normalizers import Softmax
from regard.problem import Problem
from regard.scores import ScaledDot
from sweeps import sweep

# batch, heads, key–value heads, queries, keys, width, value width
LAYOUTS = {
    "square": (2, 4, 4, 7, 7, 5, 5),
    "grouped": (2, 4, 2, 5, 9, 8, 3),
    "one kv head, more queries than keys": (1, 4, 1, 9, 6, 4, 6),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}


def _padding(batch, keys):
    real = np.ones((batch, keys), bool)
    real[0, keys - 2 :] = False
    real[-1, 0] = False
    return real


def _matrix(batch, heads, queries, keys):
    seen = np.random.default_rng(3).random((batch, heads, queries, keys)) < 0.6
    seen[:, :, 1] = False  # a row that sees nothing
    return seen


def _none(b, h, n, m):
    return None, None


def _causal(b, h, n, m):
    return masks.Causal(), causal(n, m)


def _causal_start(b, h, n, m):
    return masks.Causal(align="start"), np.tri(n, m, dtype=bool)


def _window(b, h, n, m):
    return masks.Causal() & masks.Window(3), causal(n, m) & window(n, m, 2, 0)


def _both_sides(b, h, n, m):
    return masks.Window(left=1, right=2), window(n, m, 1, 2)


def _padded(b, h, n, m):
    real = _padding(b, m)
    return masks.Padding(torch.tensor(real)), real[:, None, None]


def _padded_causal(b, h, n, m):
    real = _padding(b, m)
    return masks.Causal() & masks.Padding(torch.tensor(real)), causal(n, m) & real[:, None, None]


def _tensor(b, h, n, m):
    seen = _matrix(b, h, n, m)
    return torch.tensor(seen), seen


def _not_itself(b, h, n, m):
    return ~masks.Window(1), ~window(n, m, 0, 0)


def _rule(b, h, n, m):
    rule = masks.MaskMod(lambda batch, head, i, j: (i + j + head) % 2 == 0)
    i, j = np.arange(n)[:, None] + m - n, np.arange(m)
    return rule, (i + j + np.arange(h)[:, None, None]) % 2 == 0


EVERY = (*GENERAL, Native())
every_backend = pytest.mark.parametrize("backend", EVERY, ids=lambda backend: backend.name)
_MAKERS = (_none, _causal, _causal_start, _window, _both_sides, _padded, _padded_causal, _tensor, _not_itself, _rule)
MASKS = {make.__name__.strip("_"): make for make in _MAKERS}


def _case(layout, dtype, make_mask, *, bias=None, learned=False, **options):
    b, h, kv, n, m, d, dv = LAYOUTS[layout]
    generator = torch.Generator().manual_seed(1)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    q, k, v = randn(b, h, n, d), randn(b, kv, m, d), randn(b, kv, m, dv)
    mask, visible = make_mask(b, h, n, m)
    if bias is not None:
        bias = randn(*(size if one == 1 else 1 for one, size in zip(bias, (b, h, n, m), strict=True)))
        if not learned:
            bias[..., 0] = -torch.inf
            bias.flatten(0, -2)[1] = -torch.inf  # a row that the bias hides whole
        bias.requires_grad_(learned)
    sink = options.pop("sink", None)
    if sink:
        sink = randn(h).requires_grad_()
    for x in (q, k, v):
        x.requires_grad_()
    softcap = options.pop("softcap", None)
    problem = Problem.of(q, k, v, mask=mask, bias=bias, score=ScaledDot(softcap), normalizer=Softmax(sink), **options)
    cotangent = randn(b, h, n, dv)
    expected = dense(
        q, k, v, visible=visible, bias=bias, sink=sink, softcap=softcap, scale=options.get("scale"), cotangent=cotangent
    )
    return problem, {"q": q, "k": k, "v": v, "bias": bias, "sink": sink}, cotangent, expected


def _computes(backend, options):
    """Whether a backend computes such a problem, by what it declares itself."""
    return backend.refuses(_case("grouped", _types(backend)[0], _none, **options)[0]) is None


def _types(backend):
    """The types of inputs that a backend takes, the widest first."""
    return [dtype for dtype in TOLERANCE if backend.name != "native" or dtype != torch.float64]


def _check(backend, problem, inputs, cotangent, expected):
    assert backend.refuses(problem) is None
    answer = backend(problem)
    tolerance = TOLERANCE[problem.q.dtype]
    assert answer.output.dtype == problem.q.dtype
    assert answer.output.shape == expected.output.shape
    _close(answer.output, expected.output, tolerance, "output")
    with torch.no_grad():  # may go another way
        _close(backend(problem).output, expected.output, tolerance, "output without gradients")
    answer.output.backward(cotangent)
    for name, tensor in inputs.items():
        if tensor is not None and tensor.requires_grad:
            assert tensor.grad is not None, name
            assert bool(tensor.grad.isfinite().all()), name
            _close(tensor.grad, getattr(expected, name).reshape(tensor.shape), 4 * tolerance, f"gradient of {name}")
    return answer


def _close(tensor, array, tolerance, what):
    error = np.abs(tensor.detach().double().numpy() - array).max()
    assert error <= tolerance * max(1.0, np.abs(array).max()), f"{what} is off by {error:.2e}"


@every_backend
def test_every_mask_gives_the_formula(backend):
    for case in sweep(itertools.product(LAYOUTS, _types(backend), MASKS)):
        with case as (layout, dtype, mask):
            _check(backend, *_case(layout, dtype, MASKS[mask]))


OPTIONS = {
    "scale": {"scale": 0.9},
    "negative scale": {"scale": -0.7},
    "scale 0": {"scale": 0.0},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": True},
    "bias that hides": {"bias": (1, 1, 1, 1)},
    "bias of all rows": {"bias": (0, 0, 1, 1)},
    "learned bias": {"bias": (1, 1, 1, 1), "learned": True},
    "learned bias of a head": {"bias": (0, 1, 0, 0), "learned": True},
    "learned bias of a key": {"bias": (0, 0, 0, 1), "learned": True},
    "all at once": {"bias": (0, 1, 1, 1), "learned": True, "softcap": 2.0, "sink": True, "scale": 0.4},
}


@every_backend
def test_every_option_gives_the_formula(backend):
    options = [name for name in OPTIONS if _computes(backend, OPTIONS[name])]
    for case in sweep(itertools.product(options, _types(backend), ["none", "window", "tensor"])):
        with case as (name, dtype, mask):
            _check(backend, *_case("grouped", dtype, MASKS[mask], **OPTIONS[name]))


def test_every_option_is_computed_by_a_backend():
    assert [name for name in OPTIONS if not any(_computes(backend, OPTIONS[name]) for backend in EVERY)] == []


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        pytest.param(backend, options, id=f"{backend.name}-{name}")
        for name, options in {"plain": {}, "sink": {"sink": True}}.items()
        for backend in EVERY
        if _computes(backend, {"return_weights": True, "return_lse": True, **options})
    ],
)
def test_weights_and_lse_are_those_of_the_formula(backend, options):
    case = _case("grouped", torch.float64, _tensor, return_weights=True, return_lse=True, **options)
    answer = _check(backend, *case)
    np.testing.assert_allclose(answer.weights.detach().numpy(), case[-1].weights, atol=1e-12)
    np.testing.assert_allclose(answer.lse.detach().numpy(), case[-1].lse, atol=1e-12)
    assert (answer.weights[:, :, 1] == 0).all()
    if not options:
        assert (answer.lse[:, :, 1] == -torch.inf).all()


@every_backend
def test_a_row_that_sees_nothing_is_exactly_zero(backend):
    for case in sweep(_types(backend)):
        with case as dtype:
            x = torch.randn(1, 2, 4, 3, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
            problem = Problem.of(x, x, x, mask=masks.MaskMod(lambda b, h, i, j: (i != 2) & (j >= 0)))
            output = backend(problem).output
            assert (output[:, :, 2] == 0).all()
            assert (output[:, :, 1] != 0).all()
            output[:, :, 2].sum().backward()
            assert (x.grad == 0).all()


@every_backend
def test_a_bias_may_hide_a_row_of_one_block_alone_or_with_the_mask(backend):
    """33 keys are three blocks of 16; what hides a whole row of one of them says nothing of the others."""
    for case in sweep([False, True]):
        with case as masked:
            n, m = 4, 33
            q, k, v = (torch.randn(1, 2, s, 4, generator=torch.Generator().manual_seed(s)) for s in (n, m, m))
            bias = torch.linspace(-1, 1, n * m).reshape(n, m)
            bias[0, 32] = bias[1, :16] = bias[2, :32] = -torch.inf
            seen = np.arange(m) != 16 if masked else np.ones(m, bool)
            bias[3, 17:32] = -torch.inf
            for x in (q, k, v):
                x.requires_grad_()
            mask = masks.Dense(torch.tensor(seen[None]))
            problem = Problem.of(q, k, v, bias=bias, mask=mask, return_lse=backend.name != "sdpa")
            answer = backend(problem)
            up = torch.ones(1, 2, n, 4)
            expected = dense(q, k, v, visible=seen, bias=bias, cotangent=up)
            _close(answer.output, expected.output, 3e-6, "output")
            if answer.lse is not None:
                _close(answer.lse, expected.lse, 3e-6, "lse")
            for name, found in zip("qkv", torch.autograd.grad(answer.output, (q, k, v), up), strict=True):
                _close(found, getattr(expected, name), 1e-5, f"gradient of {name}")


@every_backend
def test_no_gradient_passes_a_mask(backend):
    n = 9
    q, k, v = (torch.randn(1, 2, n, 4, generator=torch.Generator().manual_seed(s)).requires_grad_() for s in range(3))
    seen = masks.Causal() & masks.Window(3)
    for row in range(n):
        output = backend(Problem.of(q, k, v, mask=seen)).output[:, :, row].sum()
        grads = torch.autograd.grad(output, (k, v))
        touched = [set(g.abs().sum((0, 1, 3)).nonzero().flatten().tolist()) for g in grads]
        inside = set(range(max(0, row - 2), row + 1))
        assert touched[1] == inside
        assert touched[0] <= inside


@every_backend
def test_tensors_of_any_strides_give_the_same(backend):
    q, k, v = (torch.randn(1, 2, 4, 6, generator=torch.Generator().manual_seed(s)) for s in range(3))
    expected = dense(q, k, v).output
    turned = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
    assert turned[0].stride(-1) != 1
    np.testing.assert_allclose(backend(Problem.of(*turned)).output.numpy(), expected, atol=1e-6)


@every_backend
def test_a_bound_mask_stays_where_it_was_put(backend):
    for case in sweep(itertools.product(["end", "start"], [0, 2, 5])):
        with case as (align, start):
            x = torch.randn(1, 1, 4, 3, generator=torch.Generator().manual_seed(0))
            first = 0 if align == "start" else start
            visible = np.arange(4) <= np.arange(first, first + 4)[:, None]
            problem = Problem.of(x, x, x, mask=masks.Causal(align=align).bind(4, 4, q_offset=start))
            np.testing.assert_allclose(
                backend(problem).output.numpy(), dense(x, x, x, visible=visible).output, atol=1e-6
            )


def test_the_fused_kernel_stays_fused():
    for case in sweep(["strided", "masked", "biased", "grouped", "value width"]):
        with case as how:
            n, generator = 600, torch.Generator().manual_seed(0)
            q, k, v = (torch.randn(1, 2, n, 4, generator=generator).requires_grad_() for _ in range(3))
            if how == "strided":
                q, k, v = (x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v))
            if how == "grouped":
                k, v = k[:, :1], v[:, :1]
            if how == "value width":
                v = v[..., :3]
            asked = {"masked": {"mask": masks.Window(9)}, "biased": {"bias": torch.randn(n, n, generator=generator)}}
            problem = Problem.of(q, k, v, **asked.get(how, {}))
            with Largest() as largest:
                Sdpa()(problem).output.sum().backward()
            # Nothing of queries × keys × heads: no more than one mask or bias, or the integers that make one up.
            assert largest.bytes <= 8 * n * n if asked.get(how) else largest.bytes < 200 * n


def test_a_learned_bias_counts_the_weights_that_pytorch_keeps():
    x, learned = torch.zeros(2, 4, 8, 3), torch.zeros(8, 8, requires_grad=True)
    assert Sdpa().bytes(Problem.of(x, x, x, bias=learned)) == 2 * 4 * 8 * 8 * 4
    with torch.no_grad():
        assert Sdpa().bytes(Problem.of(x, x, x, bias=learned)) == 8 * 8 * 4
    short = Problem.of(x, x, x, bias=learned, max_bytes=1000)
    assert "a learned bias keeps all weights, 2.0 KiB, more than the limit of 1000 B" in Sdpa().refuses(short)


REFUSED = {
    "weights": ({"return_weights": True}, "return weights"),
    "log-sum-exp": ({"return_lse": True}, "log-sum-exp"),
    "softcap": ({"score": ScaledDot(softcap=2.0)}, "softcap"),
    "sink": ({"normalizer": Softmax(torch.zeros(1))}, "sink logit"),
}


def test_the_fused_kernel_refuses_what_it_cannot_do_and_nothing_else():
    x = torch.zeros(1, 1, 3, 2)
    by_name = {backend.name: backend for backend in GENERAL}
    for case in sweep(REFUSED):
        with case as name:
            options, reason = REFUSED[name]
            assert reason in by_name["sdpa"].refuses(Problem.of(x, x, x, **options))
            assert by_name["reference"].refuses(Problem.of(x, x, x, **options)) is None
    for options in ({}, {"mask": masks.Window(2)}, {"bias": torch.randn(3, 3)}):
        assert by_name["sdpa"].refuses(Problem.of(x, x, x, **options)) is None
        assert by_name["reference"].refuses(Problem.of(x, x, x, **options)) is None
