"""A bias that learns beside the fused kernel: the formula's gradients, in parts, and its second derivatives."""

import itertools

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import masks, positions
from regard.backends import bias_gradient
from sweeps import sweep


def formula(q, k, v, bias, visible):
    """Written out, with autograd's gradients, in the type that it is given."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
    return weights.masked_fill(~visible, 0.0) @ v


SIZES = {
    "one": (1, 1, 1, 1, 1, 4, 4),
    "windows": (5, 4, 4, 9, 9, 8, 8),
    "grouped": (2, 4, 2, 7, 9, 8, 5),
    "long": (1, 2, 1, 70, 90, 4, 4),
}
BIASES = {
    "of heads": lambda b, h, n, m: (1, h, n, m),
    "of sequences": lambda b, h, n, m: (b, 1, n, m),
    "of keys": lambda b, h, n, m: (1, 1, 1, m),
    "of queries": lambda b, h, n, m: (1, h, n, 1),
    "of all": lambda b, h, n, m: (b, h, n, m),
    "matrix": lambda b, h, n, m: (n, m),
}
VISIBLE = {
    "all": lambda b, n, m: torch.ones(1, 1, n, m).bool(),
    "some": lambda b, n, m: torch.rand(b, 1, n, m, generator=torch.Generator().manual_seed(3)) > 0.3,
    "none in a row": lambda b, n, m: torch.arange(n)[:, None].expand(1, 1, n, m) > 0,
}


def test_outputs_and_gradients_are_those_of_the_formula_in_whole_and_in_parts(monkeypatch):
    for case in sweep(itertools.product(SIZES, BIASES, VISIBLE, [2**20, 64, 1])):
        with case as (size, which, hidden, weights):
            monkeypatch.setattr(bias_gradient, "_WEIGHTS", weights)
            b, h, g, n, m, d, e = SIZES[size]
            torch.manual_seed(0)
            shapes = (b, h, n, d), (b, g, m, d), (b, g, m, e), BIASES[which](b, h, n, m)
            given = [torch.randn(shape, requires_grad=True) for shape in shapes]
            exact = [x.detach().double().requires_grad_() for x in given]
            visible = VISIBLE[hidden](b, n, m)
            output = regard.attention(*given[:3], bias=given[3], mask=masks.Dense(visible), backend="sdpa")
            expected = formula(*exact, visible)
            up = torch.randn(expected.shape)
            found = output, *torch.autograd.grad(output, given, up)
            wanted = expected, *torch.autograd.grad(expected, exact, up.double())
            for ours, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)


def test_first_and_second_derivatives_are_those_of_small_steps():
    q, k, v = (torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)

    def call(*given):
        return regard.attention(*given[:3], bias=given[3], backend="sdpa")

    assert torch.autograd.gradcheck(call, (q, k, v, bias))
    assert torch.autograd.gradgradcheck(call, (q, k, v, bias))
    for wanted in ([bias], [q], [k, v]):
        leaves = [x if any(x is one for one in wanted) else x.detach() for x in (q, k, v, bias)]
        for grad, whole in zip(
            torch.autograd.grad(call(*leaves).sum(), wanted),
            torch.autograd.grad(call(q, k, v, bias).sum(), wanted),
            strict=True,
        ):
            torch.testing.assert_close(grad, whole)


def test_a_row_of_minus_infinities_gives_zeros_and_finite_gradients():
    q, k, v = (torch.randn(1, 1, 2, 8, requires_grad=True) for _ in range(3))
    bias = torch.tensor([[-torch.inf, -torch.inf], [0.5, -0.5]], requires_grad=True)
    output = regard.attention(q, k, v, bias=bias)
    assert not output[0, 0, 0].any()
    grads = torch.autograd.grad(output.sum(), (q, k, v, bias))
    alone = torch.autograd.grad(regard.attention(q[:, :, 1:], k, v, bias=bias[1:]).sum(), (q, k, v, bias))
    for grad, expected in zip(grads, alone, strict=True):
        torch.testing.assert_close(grad, expected)


def test_the_bias_of_half_types_is_summed_in_float32_and_that_of_tables_reaches_them():
    torch.manual_seed(0)
    q, k, v = (torch.randn(300, 2, 9, 8, dtype=torch.bfloat16) for _ in range(3))
    table = torch.randn(32, 2, requires_grad=True)
    bias = positions.T5Bias(table, bidirectional=True)
    (grad,) = torch.autograd.grad(regard.attention(q, k, v, bias=bias).float().sum(), table)
    exact = table.detach().double().requires_grad_()
    given = [x.double() for x in (q, k, v)]
    output = regard.attention(*given, bias=positions.T5Bias(exact, bidirectional=True), backend="reference")
    (expected,) = torch.autograd.grad(output.sum(), exact)
    torch.testing.assert_close(grad.double(), expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("grad", [False, True])
def test_the_forward_is_the_fused_kernels_to_the_bit(grad):
    q, k, v = (torch.randn(64, 4, 49, 32) for _ in range(3))
    bias = torch.randn(1, 4, 49, 49, requires_grad=True)
    with torch.set_grad_enabled(grad):
        output = regard.attention(q, k, v, bias=bias)
    assert torch.equal(output, scaled_dot_product_attention(q, k, v, attn_mask=bias.detach()))


def test_gradients_are_the_same_where_autocast_is_on_around_the_backward():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 9, 8, requires_grad=True) for _ in range(3))
    bias = (50 * torch.randn(1, 2, 9, 9)).requires_grad_()
    plain = torch.autograd.grad(regard.attention(q, k, v, bias=bias).sum(), (q, k, v, bias))
    output = regard.attention(q, k, v, bias=bias)
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(output.sum(), (q, k, v, bias))
    for one, other in zip(plain, inside, strict=True):
        torch.testing.assert_close(one, other)
