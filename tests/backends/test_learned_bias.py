"""A bias of all pairs that learns: the formula's gradients in float64, whoever `auto` takes."""

import itertools

import pytest
import torch

import regard
from regard import masks, positions
from regard.backends import strips
from sweeps import sweep


def formula(q, k, v, bias, visible=None):
    """Written out, with autograd's gradients, in the type that it is given."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    scores = scores if visible is None else scores.masked_fill(~visible, -torch.inf)
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0) @ v


# batch, heads, key–value heads, queries, keys, width, value width
SIZES = {
    "one": (1, 1, 1, 1, 1, 4, 4),
    "windows": (5, 4, 4, 9, 9, 8, 8),
    "grouped": (2, 4, 2, 7, 9, 8, 5),
    "long": (2, 2, 1, 24, 40, 4, 4),
}
SIDES = [tuple(sides) for sides in itertools.product("b1", "h1", "q1", "k1")]
VISIBLE = {
    "all": lambda n, m: None,
    "some": lambda n, m: torch.rand(1, 1, n, m, generator=torch.Generator().manual_seed(3)) > 0.3,
    "none in a row": lambda n, m: torch.arange(n)[:, None].expand(1, 1, n, m) > 0,
}


@pytest.fixture(params=[False, True], ids=["as chosen", "in small strips"])
def _in_strips(monkeypatch, request):
    """Let `auto` take strips at once, of a few rows of a head."""
    if request.param:
        for name, value in {"_OVERHEAD": 0, "_OVERHEAD_EACH": 0, "_SCORES": 128, "BLOCK": 16}.items():
            monkeypatch.setattr(strips, name, value)


def drawn(size, sides):
    b, h, g, n, m, d, e = SIZES[size]
    whole = {"b": b, "h": h, "q": n, "k": m, "1": 1}
    shapes = (b, h, n, d), (b, g, m, d), (b, g, m, e), tuple(whole[side] for side in sides)
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def assert_near(found, expected, most=1e-5):
    for name, one, other in zip(("output", "q", "k", "v", "bias"), found, expected, strict=True):
        assert one.shape == other.shape
        error = (one.double() - other).abs().max()
        assert error <= most * max(1.0, float(other.abs().max())), f"{name} is off by {float(error):.1e}"


@pytest.mark.usefixtures("_in_strips")
@pytest.mark.parametrize("size", SIZES)
def test_every_shape_that_broadcasts_has_the_gradients_of_the_formula(size):
    for case in sweep(itertools.product(SIDES, VISIBLE)):
        with case as (sides, hidden):
            given = [x.requires_grad_() for x in drawn(size, sides)]
            exact = [x.detach().double().requires_grad_() for x in given]
            visible = VISIBLE[hidden](*SIZES[size][3:5])
            mask = None if visible is None else masks.Dense(visible)
            output, expected = regard.attention(*given[:3], bias=given[3], mask=mask), formula(*exact, visible)
            up = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
            found = [output.detach(), *torch.autograd.grad(output, given, up)]
            assert_near(found, [expected.detach(), *torch.autograd.grad(expected, exact, up.double())])


def test_strips_are_taken_where_they_cost_less_than_the_weights_that_pytorch_keeps():
    x, bias = torch.zeros(1, 4, 300, 16), torch.zeros(1, 4, 300, 300, requires_grad=True)
    assert regard.explain(x, x, x, bias=bias).backend == "strips"
    with torch.no_grad():
        assert regard.explain(x, x, x, bias=bias).backend == "sdpa"


@pytest.mark.usefixtures("_in_strips")
def test_first_derivatives_and_second_ones_on_strips_are_those_of_small_steps():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 20, 3, dtype=torch.float64, generator=generator) for _ in range(3))
    given = [x.requires_grad_() for x in (q, k, v, torch.randn(1, 2, 20, 20, dtype=torch.float64, generator=generator))]

    def call(backend):
        return lambda *given: regard.attention(*given[:3], bias=given[3], backend=backend)

    assert torch.autograd.gradcheck(call("auto"), given, fast_mode=True)
    assert torch.autograd.gradgradcheck(call("strips"), given, fast_mode=True)


@pytest.mark.usefixtures("_in_strips")
def test_rows_and_entries_of_minus_infinity_hide_and_have_finite_gradients():
    for case in sweep(SIZES):
        with case as size:
            given = drawn(size, "bhqk")
            given[3][torch.rand(given[3].shape, generator=torch.Generator().manual_seed(5)) < 0.3] = -torch.inf
            given[3][:, :, 0] = -torch.inf
            given = [x.requires_grad_() for x in given]
            exact = [x.detach().double().requires_grad_() for x in given]
            output, expected = regard.attention(*given[:3], bias=given[3]), formula(*exact)
            assert not output[:, :, 0].any()
            found = [output.detach(), *torch.autograd.grad(output.square().sum(), given)]
            assert_near(found, [expected.detach(), *torch.autograd.grad(expected.square().sum(), exact)])


@pytest.mark.usefixtures("_in_strips")
def test_gradients_are_the_same_where_autocast_is_on_around_the_backward():
    given = drawn("windows", "1hqk")
    given = [x.requires_grad_() for x in (*given[:3], 50 * given[3])]
    plain = torch.autograd.grad(regard.attention(*given[:3], bias=given[3]).sum(), given)
    output = regard.attention(*given[:3], bias=given[3])
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(output.sum(), given)
    for one, other in zip(plain, inside, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("_in_strips")
def test_the_bias_of_half_types_is_summed_in_float32_and_that_of_tables_reaches_them():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(300, 2, 9, 8, generator=generator).bfloat16() for _ in range(3))
    table = torch.randn(32, 2, generator=generator, requires_grad=True)
    bias = positions.T5Bias(table, bidirectional=True)
    (grad,) = torch.autograd.grad(regard.attention(q, k, v, bias=bias).float().sum(), table)
    exact = table.detach().double().requires_grad_()
    given = [x.double() for x in (q, k, v)]
    output = regard.attention(*given, bias=positions.T5Bias(exact, bidirectional=True), backend="reference")
    (expected,) = torch.autograd.grad(output.sum(), exact)
    assert grad.dtype == torch.float32
    torch.testing.assert_close(grad.double(), expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


@pytest.mark.usefixtures("_in_strips")
def test_autocast_around_the_forward_narrows_the_output_alone():
    for case in sweep(SIZES):
        with case as size:
            given = [x.requires_grad_() for x in drawn(size, "1hqk")]
            exact = [x.detach().double().requires_grad_() for x in given]
            with torch.autocast("cpu", torch.bfloat16):
                output = regard.attention(*given[:3], bias=given[3])
            expected = formula(*exact)
            assert output.dtype == torch.bfloat16
            torch.testing.assert_close(output.double(), expected, rtol=2**-8, atol=1e-6)
            up = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
            found, wanted = torch.autograd.grad(output, given, up), torch.autograd.grad(expected, exact, up.double())
            assert_near([wanted[0], *found], [wanted[0], *wanted])  # the output is looked at above


@pytest.mark.usefixtures("_in_strips")
def test_a_bias_of_bfloat16_beside_queries_of_float32_has_a_gradient_that_is_rounded_once():
    for case in sweep(itertools.product(SIZES, ("bhqk", "1h1k", "11q1"))):
        with case as (size, sides):
            *qkv, wide = drawn(size, sides)
            given = [x.requires_grad_() for x in (*qkv, wide.bfloat16())]
            exact = [x.detach().double().requires_grad_() for x in given]
            output, expected = regard.attention(*given[:3], bias=given[3]), formula(*exact)
            found, wanted = (
                torch.autograd.grad(one.square().sum(), x) for one, x in ((output, given), (expected, exact))
            )
            assert output.dtype == torch.float32
            assert found[3].dtype == torch.bfloat16
            assert_near([output.detach(), *found[:3], wanted[3]], [expected.detach(), *wanted])
            torch.testing.assert_close(found[3].double(), wanted[3], rtol=2**-8, atol=1e-5)


@pytest.mark.usefixtures("_in_strips")
def test_a_bias_of_float32_beside_queries_of_bfloat16_has_a_gradient_of_float32():
    for case in sweep(itertools.product(SIZES, ("bhqk", "1h1k", "11q1"))):
        with case as (size, sides):
            *qkv, bias = drawn(size, sides)
            given = [x.requires_grad_() for x in (*(x.bfloat16() for x in qkv), bias)]
            exact = [x.detach().double().requires_grad_() for x in given]
            output, expected = regard.attention(*given[:3], bias=given[3]), formula(*exact)
            up = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
            found, wanted = torch.autograd.grad(output, given, up), torch.autograd.grad(expected, exact, up.double())
            assert found[3].dtype == torch.float32
            assert_near([*wanted[:1] * 4, found[3]], [*wanted[:1] * 4, wanted[3]])
            for one, other in zip((output, *found[:3]), (expected, *wanted[:3]), strict=True):
                assert one.dtype == torch.bfloat16
                torch.testing.assert_close(one.double(), other, rtol=2**-8, atol=1e-5)


# A bias (1, heads, queries, keys) as a view of a tensor of other sizes.
VIEWS = {
    "transposed": (lambda h, n, m: (1, h, m, n), lambda x, h, n, m: x.mT),
    "heads last": (lambda h, n, m: (n, m, h), lambda x, h, n, m: x.permute(2, 0, 1)[None]),
    "every second": (lambda h, n, m: (1, 2 * h, 2 * n, 2 * m), lambda x, h, n, m: x[:, ::2, 1::2, ::2]),
    "expanded": (lambda h, n, m: (h, 1, m), lambda x, h, n, m: x.expand(h, n, m)[None]),
    "flipped diagonals": (lambda h, n, m: (h, n + m), lambda x, h, n, m: x.unfold(1, m, 1)[None, :, :n].flip(2)),
}


@pytest.mark.usefixtures("_in_strips")
def test_a_bias_that_lies_in_memory_in_any_way_brings_its_gradient_to_the_tensor_that_it_views():
    for case in sweep(itertools.product(SIZES, VIEWS)):
        with case as (size, name):
            _, h, _, n, m, _, _ = SIZES[size]
            shape, view = VIEWS[name]
            tensor = torch.randn(shape(h, n, m), generator=torch.Generator().manual_seed(2))
            given = [x.requires_grad_() for x in (*drawn(size, "1111")[:3], tensor)]
            exact = [x.detach().double().requires_grad_() for x in given]
            output = regard.attention(*given[:3], bias=view(given[3], h, n, m))
            expected = formula(*exact[:3], view(exact[3], h, n, m))
            found = [output.detach(), *torch.autograd.grad(output.square().sum(), given)]
            assert_near(found, [expected.detach(), *torch.autograd.grad(expected.square().sum(), exact)])


@pytest.mark.usefixtures("_in_strips")
def test_gradients_with_a_graph_are_differentiated_again_by_what_auto_takes():
    for case in sweep(itertools.product(SIZES, ("bhqk", "1h1k", "11q1"), (torch.float32, torch.float64))):
        with case as (size, sides, dtype):
            given = [x.to(dtype).requires_grad_() for x in drawn(size, sides)]
            exact = [x.detach().double().requires_grad_() for x in given]
            assert regard.explain(*given[:3], bias=given[3]).backend in ("strips", "reference")
            found, wanted = (
                _twice(output, leaves)
                for output, leaves in ((regard.attention(*given[:3], bias=given[3]), given), (formula(*exact), exact))
            )
            assert_near([wanted[0], *found], [wanted[0], *wanted], 1e-12 if dtype == torch.float64 else 1e-4)


def _twice(output, leaves):
    """Gradients of a sum of the squares of gradients."""
    first = torch.autograd.grad(output.sin().sum(), leaves, create_graph=True)
    return torch.autograd.grad(sum(one.square().sum() for one in first), leaves, materialize_grads=True)
