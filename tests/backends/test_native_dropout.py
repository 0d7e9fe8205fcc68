"""Dropout in the native kernels: the weights that `Dropout` drops, bit for bit, and the gradients of the formula."""

import itertools

import numpy as np
import pytest
import torch

import regard
from regard import masks, positions, scores
from regard.backends import strips
from regard.backends.native import calls
from regard.dropout import Dropout
from regard.normalizers import Softmax
from sweeps import sweep

P = 0.3
# batch, heads, key–value heads, queries, keys, width
SHAPES = {
    "one block": (1, 1, 1, 64, 64, 16),
    "grouped, more keys": (2, 4, 2, 130, 333, 64),
    "more than a group of blocks": (1, 2, 2, 70, 1100, 32),
    "two queries": (2, 6, 2, 2, 150, 64),
    "one query": (3, 4, 1, 1, 700, 32),
    "few queries of other widths": (1, 2, 1, 5, 129, 24),
}
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def _some(b, h, n, m, share=0.5):
    return torch.rand(b, h, n, m, generator=torch.Generator().manual_seed(4)) < share


MASKS = {
    "all": lambda b, h, n, m: None,
    "causal": lambda b, h, n, m: masks.Causal(),
    "causal from the start": lambda b, h, n, m: masks.Causal(align="start"),
    "window": lambda b, h, n, m: masks.Causal() & masks.Window(100),
    "dilated": lambda b, h, n, m: masks.DilatedWindow(left=40, right=40, dilation=3),
    "documents": lambda b, h, n, m: masks.Document(
        torch.arange(m) // 90, (torch.arange(n) + m - n).clamp(min=0) // 90
    ),
    "padding": lambda b, h, n, m: masks.Padding(torch.arange(m)[None] < torch.tensor([m, m // 2, 3])[:b, None]),
    "prefix": lambda b, h, n, m: masks.Prefix(m // 3) | masks.Causal(),
    "longformer": lambda b, h, n, m: masks.longformer(64, global_positions=[0, m // 2]),
    "bigbird": lambda b, h, n, m: masks.bigbird(),
    "of heads": lambda b, h, n, m: _some(1, h, n, m),
    "of sequences": lambda b, h, n, m: _some(b, 1, n, m, 0.05),  # and rows that see nothing
    "nothing": lambda b, h, n, m: torch.zeros(1, 1, n, m, dtype=torch.bool),
}  # fmt: skip


def drawn(shape, dtype=torch.float32):
    b, h, kv, n, m, d = shape
    generator = torch.Generator().manual_seed(0)
    sizes = (b, h, n, d), (b, kv, m, d), (b, kv, m, d + 4), (b, h, n, d + 4)
    return [torch.randn(*one, generator=generator).to(dtype) for one in sizes]


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def seen_by(mask, n, m, b, h):
    """The visible pairs."""
    if mask is None:
        return torch.ones(b, h, n, m, dtype=torch.bool)
    return (mask if isinstance(mask, torch.Tensor) else mask.bind(n, m).dense(b, h)).expand(b, h, n, m)


def kept(shape, p=P, seed=5):
    """What a call with this generator keeps."""
    b, h, _, n, m, _ = shape
    whole = Dropout.of(p, seeded(seed), torch.device("cpu"))
    return whole.keep(slice(0, b), slice(0, h), torch.arange(n), torch.arange(m))


def _finished(number, steps, bits):
    for shift, times in steps:
        number = (number ^ (number >> shift)) * times % 2**bits
    return number


def test_what_is_kept_is_the_hash_of_the_documentation():
    """In numbers of Python, which never overflow: SplitMix64's finalizer of rows and columns, then MurmurHash3's."""
    steps = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)
    for seed in (3, -(2**60) - 5):
        found = Dropout(0.4, torch.tensor(seed)).keep(slice(1, 3), slice(2, 4), torch.arange(5), torch.arange(7))
        for b, h, i, j in np.ndindex(*found.shape):
            row = _finished((((b + 1 << 16) + h + 2 << 28) + i + seed) % 2**64, steps, 64)
            column = _finished((j + (seed >> 17)) % 2**64, steps, 64)
            bits = ((row ^ row >> 31) ^ (column ^ column >> 31)) >> 32
            bits = bits * 0x85EBCA6B % 2**32
            bits ^= bits >> 15 | (0xFFFE0000 if bits >> 31 else 0)
            bits = bits * 0xC2B2AE35 % 2**32
            assert bool(found[b, h, i, j]) == ((bits ^ 2**31) >= int(0.4 * 2**32))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_drops_the_weights_that_all_others_drop(shape):
    for case in sweep(itertools.product(MASKS, [torch.float32, torch.bfloat16])):
        with case as (name, dtype):
            b, h, kv, n, m, _ = SHAPES[shape]
            q, k = drawn(SHAPES[shape], dtype)[:2]
            mask = MASKS[name](b, h, n, m)
            values = torch.eye(m, dtype=dtype).expand(b, kv, m, m)  # the output is the weights
            found = {
                backend: regard.attention(q, k, values, mask=mask, dropout=P, generator=seeded(), backend=backend)
                for backend in ("native", "reference", "strips")
            }
            assert torch.equal(found["native"] != 0, kept(SHAPES[shape]) & seen_by(mask, n, m, b, h))
            assert torch.equal(found["native"] != 0, found["reference"] != 0)
            assert torch.equal(found["native"] != 0, found["strips"] != 0)
            most = 3e-7 if dtype == torch.float32 else 2**-8
            torch.testing.assert_close(found["native"].float(), found["reference"].float(), rtol=most * 8, atol=most)


def test_rates_and_seeds():
    for case in sweep(itertools.product([1e-9, 0.01, 0.5, 0.999, 1 - 1e-12], [0, 1, 77])):
        with case as (p, seed):
            shape = SHAPES["grouped, more keys"]
            b, _, kv, _, m, _ = shape
            q, k = drawn(shape)[:2]
            values = torch.eye(m).expand(b, kv, m, m)
            found = regard.attention(q, k, values, dropout=p, generator=seeded(seed), backend="native")
            assert torch.equal(found != 0, kept(shape, p, seed))


def formula(q, k, v, keep, *, p=P, mask=None, softcap=None, bias=None, sink=None):
    """Output and log-sum-exp in float64 with all weights at hand; a row that sees nothing is 0."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    s = s.masked_fill(~seen_by(mask, *s.shape[2:], *s.shape[:2]), -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink[:, None, None].expand(*s.shape[:3], 1)], -1)
    blind = (s == -torch.inf).all(-1, keepdim=True)
    s = s.masked_fill(blind, 0.0)
    lse = s.logsumexp(-1).masked_fill(blind[..., 0], -torch.inf)
    weights = s.softmax(-1).masked_fill(blind, 0.0)[..., : k.shape[2]]
    return (weights * keep / (1 - p)) @ v, lse


def assert_near(found, expected, most=5e-6):
    for name, one, other in zip(["output", "q", "k", "v", "sink"], found, expected, strict=False):
        error = (one.double() - other).abs().max()
        assert error <= most * max(1.0, float(other.abs().max())), f"{name} is off by {float(error):.1e}"


def both(call, exact, given, up):
    """Output and gradients of leaves, by a call and by the formula in float64."""
    leaves = [x.detach().requires_grad_() for x in given]
    output = call(*leaves)
    wide = [x.detach().double().requires_grad_() for x in given]
    right = exact(*wide)[0]
    return (
        (output.detach(), *torch.autograd.grad(output, leaves, up)),
        (right.detach(), *torch.autograd.grad(right, wide, up.double())),
    )


@pytest.fixture
def no_strips(monkeypatch):
    """The kernels alone compute gradients."""

    def never(*_):
        raise AssertionError("the backward of strips ran")

    monkeypatch.setattr(strips, "differentiate", never)


@pytest.mark.usefixtures("no_strips")
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_are_those_of_the_formula(shape):
    for case in sweep(MASKS):
        with case as name:
            b, h, _, n, m, _ = SHAPES[shape]
            *given, up = drawn(SHAPES[shape])
            mask = MASKS[name](b, h, n, m)
            found, right = both(
                lambda *x, mask=mask: regard.attention(*x, mask=mask, dropout=P, generator=seeded(), backend="native"),
                lambda *x, mask=mask: formula(*x, kept(SHAPES[shape]), mask=mask),
                given,
                up,
            )
            assert_near(found, right)


@pytest.mark.usefixtures("no_strips")
@pytest.mark.parametrize("p", [0.1, 0.9])
def test_with_every_option_at_once(p):
    shape = (2, 2, 1, 130, 200, 24)
    *given, up = drawn(shape)
    bias, sink = torch.randn(1, 2, 130, 200, generator=seeded(1)), torch.tensor([0.5, -1.0])
    asked = {"mask": masks.Causal(), "dropout": p, "generator": None, "score": scores.ScaledDot(softcap=2.0)}
    found, right = both(
        lambda q, k, v, s: regard.attention(
            q, k, v, **{**asked, "generator": seeded()}, bias=bias, normalizer=Softmax(s), backend="native"
        ),
        lambda q, k, v, s: formula(
            q, k, v, kept(shape, p), p=p, mask=masks.Causal(), softcap=2.0, bias=bias.double(), sink=s
        ),
        [*given, sink],
        up,
    )
    assert_near(found, right, 5e-6 / (1 - p))


@pytest.mark.usefixtures("no_strips")
def test_a_bias_of_distances():
    shape = (1, 2, 2, 200, 200, 16)
    *given, up = drawn(shape)
    apart = (torch.arange(200)[:, None] - torch.arange(200)).abs()
    bias = -apart * torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)[:, None, None]
    found, right = both(
        lambda *x: regard.attention(
            *x, bias=positions.ALiBi(2), mask=masks.Causal(), dropout=P, generator=seeded(), backend="native"
        ),
        lambda *x: formula(*x, kept(shape), mask=masks.Causal(), bias=bias),
        given,
        up,
    )
    assert_near(found, right)


@pytest.mark.usefixtures("no_strips")
def test_the_log_sum_exp_is_that_of_all_weights_and_has_its_gradient():
    shape = SHAPES["grouped, more keys"]
    *given, up = drawn(shape)
    up_lse = up[..., 0].contiguous()
    leaves = [x.requires_grad_() for x in given]
    output, lse = regard.attention(
        *leaves, mask=masks.Causal(), dropout=P, generator=seeded(), return_lse=True, backend="native"
    )
    wide = [x.detach().double().requires_grad_() for x in given]
    right, right_lse = formula(*wide, kept(shape), mask=masks.Causal())
    torch.testing.assert_close(lse.double(), right_lse, rtol=0, atol=3e-6)
    found = torch.autograd.grad((output, lse), leaves, (up, up_lse))
    assert_near(
        [output.detach(), *found],
        [right.detach(), *torch.autograd.grad((right, right_lse), wide, (up.double(), up_lse.double()))],
    )


@TYPES
def test_the_error_in_narrow_types_is_at_most_that_of_strips_twice(dtype):
    shape = (1, 2, 2, 256, 256, 32)
    *given, up = drawn(shape, dtype)
    errors = {}
    for backend in ("native", "strips"):
        found, right = both(
            lambda *x, name=backend: regard.attention(
                *x, mask=masks.Causal(), dropout=P, generator=seeded(), backend=name
            ),
            lambda *x: formula(*x, kept(shape), mask=masks.Causal()),
            given,
            up,
        )
        errors[backend] = [float((a - b).square().mean().sqrt()) for a, b in zip(found, right, strict=True)]
    for ours, plain in zip(errors["native"], errors["strips"], strict=True):
        assert ours <= 2 * plain


@pytest.mark.parametrize("parts", [1, 3, 100])
def test_the_tiles_of_a_head_may_be_divided_among_any_number_of_tasks(parts, monkeypatch):
    monkeypatch.setattr(calls, "_parts_of", lambda _sides, tiles: min(parts, tiles))
    shape = SHAPES["grouped, more keys"]
    *given, up = drawn(shape)
    found, right = both(
        lambda *x: regard.attention(*x, dropout=P, generator=seeded(), backend="native"),
        lambda *x: formula(*x, kept(shape)),
        given,
        up,
    )
    assert_near(found, right)


def test_second_derivatives_drop_the_same_weights():
    shape = (1, 2, 1, 70, 80, 16)
    given = drawn(shape)[:3]

    def twice(call, leaves):
        first = torch.autograd.grad(call(*leaves).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), leaves)

    found = twice(
        lambda *x: regard.attention(*x, mask=masks.Causal(), dropout=P, generator=seeded(), backend="strips"),
        [x.detach().requires_grad_() for x in given],
    )
    right = twice(
        lambda *x: formula(*x, kept(shape), mask=masks.Causal())[0], [x.double().requires_grad_() for x in given]
    )
    assert_near([0 * found[0], *found], [0 * right[0], *right], 2e-5)
