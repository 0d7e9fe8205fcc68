"""A bias of i − j that learns in the native kernels: the gradient of its table, beside the formula in float64.

The formula looks the table up pair by pair, with transformers' buckets for T5's.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

import regard
from regard import masks, positions, scores
from regard.backends import strips
from regard.backends.native import calls, threads
from regard.dropout import Dropout
from regard.normalizers import Softmax
from sweeps import sweep

# batch, heads, key–value heads, queries, keys, width
SHAPES = {
    "whole blocks": (1, 2, 2, 256, 256, 32),
    "grouped, more keys": (2, 4, 2, 130, 333, 64),
    "more than a group of blocks": (1, 2, 1, 70, 1100, 16),
    "more queries": (1, 2, 2, 300, 77, 24),
    "three queries": (2, 2, 1, 3, 150, 32),
    "one query": (1, 4, 1, 1, 700, 32),
    "one key": (1, 2, 2, 67, 1, 16),
}


def _some(n, m, share, *leading):
    return torch.rand(*leading, n, m, generator=torch.Generator().manual_seed(4)) < share


MASKS = {
    "all": lambda b, h, n, m: None,
    "causal": lambda b, h, n, m: masks.Causal(),
    "causal from the start": lambda b, h, n, m: masks.Causal(align="start"),
    "window": lambda b, h, n, m: masks.Causal() & masks.Window(100),
    "both sides": lambda b, h, n, m: masks.Window(left=20, right=70),
    "dilated": lambda b, h, n, m: masks.DilatedWindow(left=40, right=40, dilation=3),
    "documents": lambda b, h, n, m: (
        masks.Causal() & masks.Document(torch.arange(m) // 90, (torch.arange(n) + m - n).clamp(min=0) // 90)
    ),
    "padding": lambda b, h, n, m: masks.Padding(torch.arange(m)[None] < torch.tensor([m, max(1, m // 2)])[:b, None]),
    "prefix": lambda b, h, n, m: masks.Prefix(m // 3) | masks.Causal(),
    "longformer": lambda b, h, n, m: masks.longformer(64, global_positions=[0, m // 2]),
    "bigbird": lambda b, h, n, m: masks.bigbird(),
    "few pairs": lambda b, h, n, m: _some(n, m, 0.02),  # and rows that see nothing
    "of heads": lambda b, h, n, m: _some(n, m, 0.5, 1, h),
    "of sequences": lambda b, h, n, m: _some(n, m, 0.5, b, 1),
    "elsewhere": lambda b, h, n, m: masks.Causal().bind(n, m, q_offset=max(0, m - n) // 2),
    "nothing": lambda b, h, n, m: torch.zeros(n, m, dtype=torch.bool),
}


def _t5(bidirectional, distances):
    def pairs(table, distance):
        bucket = T5Attention._relative_position_bucket(-distance, bidirectional, len(table), distances)
        return table[bucket].permute(2, 0, 1)

    return lambda table: positions.T5Bias(table, bidirectional=bidirectional, max_distance=distances), pairs


def _clipped(table, distance):
    most = len(table) // 2
    return table[distance.clamp(-most, most) + most].permute(2, 0, 1)


# What a parameter of some rows and heads gives for each pair, as a value of regard's and by whole tensors.
KINDS = {
    "T5, decoder": (32, *_t5(False, 128)),
    "T5, encoder": (32, *_t5(True, 128)),
    "T5, few": (8, *_t5(True, 20)),
    "clipped": (81, positions.RelativePositionBias, _clipped),
    "clipped far": (2401, positions.RelativePositionBias, _clipped),  # about one number for each diagonal
    "ALiBi": (
        1,
        lambda table: positions.ALiBi(table.shape[1], table[0], bidirectional=True),
        lambda table, distance: -table[0][:, None, None] * distance.abs(),
    ),
}


def parameter(kind, heads, dtype=torch.float32):
    rows = KINDS[kind][0]
    table = torch.randn(rows, heads, generator=torch.Generator().manual_seed(7))
    return (table * (0.02 if kind == "ALiBi" else 1.0)).to(dtype)


def drawn(shape, dtype=torch.float32, seed=0):
    b, h, kv, n, m, d = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = (b, h, n, d), (b, kv, m, d), (b, kv, m, d + 4), (b, h, n, d + 4)
    return [torch.randn(*one, generator=generator).to(dtype) for one in sizes]


def seen_by(mask, n, m, b, h):
    if mask is None:
        return torch.ones(b, h, n, m, dtype=torch.bool)
    if isinstance(mask, masks.Mask):
        mask = mask.bind(n, m)
    return (mask if isinstance(mask, torch.Tensor) else mask.dense(b, h)).expand(b, h, n, m)


def formula(q, k, v, bias, *, mask=None, scale=None, softcap=None, sink=None, keep=None, p=0.0):
    """Output and log-sum-exp in float64 with all weights at hand; a row that sees nothing is 0."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = (s + bias).masked_fill(~seen_by(mask, *s.shape[2:], *s.shape[:2]), -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink[:, None, None].expand(*s.shape[:3], 1)], -1)
    blind = (s == -torch.inf).all(-1, keepdim=True)
    s = s.masked_fill(blind, 0.0)
    lse = s.logsumexp(-1).masked_fill(blind[..., 0], -torch.inf)
    weights = s.softmax(-1).masked_fill(blind, 0.0)[..., : k.shape[2]]
    return (weights if keep is None else weights * keep / (1 - p)) @ v, lse


def both(kind, given, table, up, *, backend="native", sink=None, softcap=None, mask=None, **options):
    """Output and gradients of leaves, by a call and by the formula in float64."""
    _, made, pairs = KINDS[kind]
    leaves = [x.detach().requires_grad_() for x in (*given, table, *([] if sink is None else [sink]))]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    dropped = {}
    if "dropout" in options:
        options["generator"] = torch.Generator().manual_seed(5)
        b, h, n, m = (*given[0].shape[:3], given[1].shape[2])
        rule = Dropout.of(options["dropout"], torch.Generator().manual_seed(5), torch.device("cpu"))
        dropped["keep"] = rule.keep(slice(0, b), slice(0, h), torch.arange(n), torch.arange(m))
        dropped["p"] = options["dropout"]
    output = regard.attention(
        *leaves[:3], bias=made(leaves[3]), mask=mask, backend=backend, score=scores.ScaledDot(softcap),
        normalizer=Softmax(*leaves[4:]), **options,
    )  # fmt: skip
    n, m = given[0].shape[2], given[1].shape[2]
    first = mask.q_offset if isinstance(mask, masks.BoundMask) else m - n
    distance = torch.arange(n)[:, None] + first - torch.arange(m)
    right = formula(
        *wide[:3], pairs(wide[3], distance), mask=mask, softcap=softcap, sink=wide[4] if len(wide) > 4 else None,
        scale=options.get("scale"), **dropped,
    )[0]  # fmt: skip
    return (
        (output.detach(), *torch.autograd.grad(output, leaves, up)),
        (right.detach(), *torch.autograd.grad(right, wide, up.double())),
    )


def assert_near(found, expected, most=5e-6):
    for name, one, other in zip(["output", "q", "k", "v", "table", "sink"], found, expected, strict=False):
        error = (one.double() - other).abs().max()
        most_here = 5 * most if name == "table" else most  # a number of it is the sum of thousands of pairs
        assert error <= most_here * max(1.0, float(other.abs().max())), f"{name} is off by {float(error):.1e}"


@pytest.fixture
def no_strips(monkeypatch):
    """The kernels alone compute gradients."""

    def never(*_):
        raise AssertionError("the backward of strips ran")

    monkeypatch.setattr(strips, "differentiate", never)


@pytest.mark.usefixtures("no_strips")
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_under_every_mask_are_those_of_the_formula(shape):
    for case in sweep(MASKS):
        with case as mask:
            b, h, _, n, m, _ = SHAPES[shape]
            *given, up = drawn(SHAPES[shape])
            found, right = both("T5, encoder", given, parameter("T5, encoder", h), up, mask=MASKS[mask](b, h, n, m))
            assert_near(found, right)


@pytest.mark.usefixtures("no_strips")
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_every_kind_are_those_of_the_formula(shape):
    for case in sweep(itertools.product(KINDS, [False, True])):
        with case as (kind, one_for_all):
            *given, up = drawn(SHAPES[shape])
            table = parameter(kind, 1 if one_for_all else SHAPES[shape][1])
            if one_for_all and kind != "ALiBi":
                assert KINDS[kind][1](table).leading == (1, 1)
            found, right = both(kind, given, table, up, mask=masks.Causal())
            assert_near(found, right)


OPTIONS = {
    "scale": {"scale": 0.9},
    "negative scale": {"scale": -0.7},
    "no scale": {"scale": 0.0},
    "tiny scale": {"scale": 1e-46},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": torch.tensor([0.5, -1.0])},
    "dropout": {"dropout": 0.3},
    "all at once": {"softcap": 2.0, "sink": torch.tensor([3.0, 0.0]), "scale": 0.4, "dropout": 0.1},
}


@pytest.mark.usefixtures("no_strips")
def test_gradients_with_every_option_are_those_of_the_formula():
    for case in sweep(itertools.product(OPTIONS, ["all", "causal", "window", "few pairs"])):
        with case as (name, mask):
            shape = (2, 2, 1, 130, 200, 24)
            *given, up = drawn(shape)
            seen = MASKS[mask](2, 2, 130, 200)
            found, right = both("T5, encoder", given, parameter("T5, encoder", 2), up, mask=seen, **OPTIONS[name])
            assert_near(found, right)


@pytest.mark.usefixtures("no_strips")
def test_distances_that_no_pair_has_get_no_gradient_at_all():
    n, m, most = 200, 330, 400
    *given, up = drawn((2, 2, 2, n, m, 16))
    table = torch.randn(2 * most + 1, 2).requires_grad_()
    kept = torch.arange(m)[None] >= torch.tensor([250, 300])[:, None]
    mask = masks.Causal() & masks.Window(100) & masks.Padding(kept)
    output = regard.attention(*given, bias=positions.RelativePositionBias(table), mask=mask, backend="native")
    found = torch.autograd.grad(output, table, up)[0]
    seen, (i, j) = mask.bind(n, m).dense(2).any(0)[0], np.indices((n, m))
    met = {int(one) for one in (i + m - n - j)[seen.numpy()]}
    there = torch.tensor([at - most in met for at in range(2 * most + 1)])
    assert met == set(range(80))  # the last query and the first key of a sequence
    assert torch.equal(found != 0, there[:, None].expand(-1, 2))


@pytest.mark.usefixtures("no_strips")
def test_the_table_learns_where_nothing_else_does():
    *given, up = drawn(SHAPES["whole blocks"])
    table = parameter("T5, decoder", 2).requires_grad_()
    bias = positions.T5Bias(table, bidirectional=False)
    output, lse = regard.attention(*given, bias=bias, mask=masks.Causal(), return_lse=True, backend="native")
    found = torch.autograd.grad((output, lse), table, (up, up[..., 0].contiguous()))[0]
    wide = table.detach().double().requires_grad_()
    distance = torch.arange(256)[:, None] - torch.arange(256)
    right = formula(*(x.double() for x in given), KINDS["T5, decoder"][2](wide, distance), mask=masks.Causal())
    expected = torch.autograd.grad(right, wide, (up.double(), up[..., 0].double()))[0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("no_strips")
def test_a_table_that_hides_distances():
    *given, up = drawn(SHAPES["whole blocks"])
    table = parameter("clipped", 2)
    table[45:70] = -torch.inf
    found, right = both("clipped", given, table, up, mask=masks.Causal())
    assert_near(found[:4], right[:4])
    torch.testing.assert_close(found[4].double(), right[4], rtol=0, atol=2e-5)
    assert not found[4][45:70].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("narrow", [False, True])
def test_the_error_in_narrow_types_is_at_most_that_of_strips(dtype, narrow):
    """Near −250 bfloat16 knows whole numbers alone: a table of float32 stays what it is."""
    *given, up = drawn((1, 2, 2, 512, 512, 32), dtype)
    table = parameter("T5, decoder", 2) - 250.0
    table = table.to(dtype) if narrow else table
    errors = {}
    for backend in ("native", "strips"):
        found, right = both("T5, decoder", given, table, up, mask=masks.Causal(), backend=backend)
        assert [one.dtype for one in found] == [dtype] * 4 + [table.dtype]
        errors[backend] = [float((a - b).square().mean().sqrt()) for a, b in zip(found, right, strict=True)]
        assert errors[backend][0] < 2e-3
    for ours, plain in zip(errors["native"], errors["strips"], strict=True):
        assert ours <= 1.1 * plain


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_gradients_are_the_same_bits_in_every_run(kv_heads, monkeypatch):
    *given, up = drawn((1, 2, kv_heads, 500, 500, 32))
    table, before = parameter("T5, decoder", 2), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected, right = both("T5, decoder", given, table, up, mask=masks.Causal())
        for at in range(6):
            if at == 3:
                monkeypatch.setattr(threads, "_region", lambda: None)
            leaves = [x.detach().requires_grad_() for x in (*given, table)]
            bias = positions.T5Bias(leaves[3], bidirectional=False)
            output = regard.attention(*leaves[:3], bias=bias, mask=masks.Causal(), backend="native")
            found = output, *torch.autograd.grad(output, leaves, up)
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    finally:
        torch.set_num_threads(before)
    assert_near(expected, right)


@pytest.mark.parametrize("parts", [1, 3, 8, 100])
def test_the_tiles_of_a_head_may_be_divided_among_any_number_of_tasks(parts, monkeypatch):
    monkeypatch.setattr(calls, "_parts_of", lambda _sides, tiles: min(parts, tiles))
    *given, up = drawn((2, 4, 2, 260, 330, 20))
    seen = MASKS["documents"](2, 4, 260, 330)
    found, right = both("T5, encoder", given, parameter("T5, encoder", 4), up, mask=seen)
    assert_near(found, right)


def test_many_threads_may_differentiate_at_once():
    inputs = [drawn((1, 4, 4, 200, 200, 64), seed=seed) for seed in range(4)]
    table = parameter("T5, decoder", 4)

    def run(one):
        leaf = table.clone().requires_grad_()
        bias = positions.T5Bias(leaf, bidirectional=False)
        output = regard.attention(*one[:3], mask=masks.Causal(), bias=bias, backend="native")
        return torch.autograd.grad(output, leaf, one[3])[0]

    expected = [run(one) for one in inputs]
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(run, 4 * inputs))
    assert all(torch.equal(ours, other) for ours, other in zip(found, 4 * expected, strict=True))
