"""Rows of which the whole bias is very low, as padding written as numbers leaves them: in float32 the logarithm of such
a row's sum has no digits left, and weights must not be made of it.

Queries and keys are whole numbers and the scale is a quarter, so that scores keep all digits beside −2²⁰; beside −1e9
and below they are 0. So the formula in float64 is right for float32 too.
"""

import itertools

import numpy as np
import pytest
import torch

import regard
from oracles import causal, dense, f64, window
from regard import masks
from regard.normalizers import Softmax
from sweeps import sweep

N, HEADS, KV_HEADS, DIM = 300, 2, 1, 16
LOWS = {"-2**20": -(2.0**20), "-1e9": -1e9, "lowest": torch.finfo(torch.float32).min}
OWN = ["auto", "strips", "reference", "native"]


def whole_numbers(*shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, shape)).float()


def inputs(low_rows, low, *, batch=1):
    q = whole_numbers(batch, HEADS, N, DIM, seed=0)
    if low < -(2.0**20):
        q[:, :, low_rows] = 0
    k, v = whole_numbers(batch, KV_HEADS, N, DIM, seed=1), torch.randn(batch, KV_HEADS, N, DIM)
    v[..., 0] = 1.0  # this column of the output is the sum of the weights
    return q, k, v


def padding(low):
    """Half of the keys are padding, and the first rows see no others."""
    bias = torch.zeros(1, 1, 1, N)
    bias[..., : N // 2] = low
    seen = causal(N, N) & window(N, N, 63, 0)
    return bias, masks.Causal() & masks.Window(64), seen, slice(0, N // 2)


def one_row(low):
    bias = torch.zeros(N, N)
    bias[7] = low
    return bias, None, None, slice(7, 8)


def of_sequences(low):
    """Masks of which each sequence has its own, so that each is laid out by itself."""
    real = np.ones((2, N), bool)
    real[0, 200:] = False
    seen = real[:, None, None] & window(N, N, 100, 100)
    bias = torch.zeros(N, N)
    bias[100:] = low
    return bias, masks.Padding(torch.from_numpy(real)) & masks.Window(left=100, right=100), seen, slice(100, N)


CASES = {"padding": padding, "one row": one_row, "of sequences": of_sequences}


def attend(case, low, backend, *, learned=True, sink=None, **options):
    """The call and what is expected: output and gradients, of the bias and the sink too if they are learned."""
    bias, mask, seen, low_rows = CASES[case](LOWS[low])
    torch.manual_seed(2)
    given = inputs(low_rows, LOWS[low], batch=2 if case == "of sequences" else 1)
    up = torch.randn_like(given[0])
    leaves = [one.clone().requires_grad_() for one in (*given, bias)]
    leaves[3].requires_grad_(learned)
    normalizer = None if sink is None else Softmax(sink)
    output = regard.attention(*leaves[:3], bias=leaves[3], mask=mask, normalizer=normalizer, backend=backend, **options)
    output.backward(up)
    right = dense(*given, visible=seen, bias=bias[(None,) * (4 - bias.ndim)], sink=sink, cotangent=up)
    return output, leaves, right


def assert_right(output, leaves, right):
    np.testing.assert_allclose(f64(output), right.output, atol=1e-5)
    for leaf, want in zip(leaves, (right.q, right.k, right.v, right.bias), strict=True):
        if leaf.requires_grad:
            np.testing.assert_allclose(f64(leaf.grad), want.reshape(leaf.shape), atol=1e-4 * max(1, abs(want).max()))


@pytest.mark.parametrize("backend", OWN)
def test_output_and_gradients_are_those_of_the_formula(backend):
    for case in sweep(itertools.product(CASES, LOWS, [False, True])):
        with case as (name, low, learned):
            assert_right(*attend(name, low, backend, learned=learned))


def test_so_they_are_with_a_dropout_that_drops_nothing():
    for case in sweep(itertools.product(CASES, ["auto", "strips", "reference"])):
        with case as (name, backend):
            assert_right(*attend(name, "-1e9", backend, learned=False, dropout=1e-12))


def test_a_sink_as_low_takes_its_share():
    for case in sweep(itertools.product(CASES, OWN)):
        with case as (name, backend):
            sink = torch.tensor([-(2.0**20) + 6, -(2.0**20) - 1]).requires_grad_()
            output, leaves, right = attend(name, "-2**20", backend, learned=False, sink=sink)
            assert_right(output, leaves, right)
            np.testing.assert_allclose(f64(sink.grad), right.sink, atol=1e-4 * max(1, abs(right.sink).max()))


@pytest.mark.parametrize("backend", OWN)
def test_a_sink_as_low_takes_its_share_where_nothing_is_learned(backend):
    sink = torch.tensor([-(2.0**20) + 6, -(2.0**20) - 1])
    bias, mask, seen, rows = padding(LOWS["-2**20"])
    given = inputs(rows, LOWS["-2**20"])
    found = regard.attention(*given, bias=bias, mask=mask, normalizer=Softmax(sink), backend=backend)
    np.testing.assert_allclose(found, dense(*given, visible=seen, bias=bias, sink=sink).output, atol=1e-5)


@pytest.mark.parametrize("backend", ["strips", "reference", "native"])
def test_the_gradient_of_the_log_sum_exp_is_the_weights(backend):
    bias, mask, seen, rows = padding(LOWS["-2**20"])
    q, k, v = inputs(rows, LOWS["-2**20"])
    q.requires_grad_()
    _, lse = regard.attention(q, k, v, bias=bias, mask=mask, return_lse=True, backend=backend)
    lse.sum().backward()
    want = dense(q, k, v, visible=seen, bias=bias)
    np.testing.assert_allclose(f64(lse), want.lse, rtol=1e-7, atol=1e-5)
    np.testing.assert_allclose(f64(q.grad), np.einsum("bhij,bhjd->bhid", want.weights, f64(k)) / 4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "strips", "reference"])
def test_float64_has_such_rows_too(backend):
    bias, mask, seen, rows = padding(-1e18)
    leaves = [one.double().requires_grad_() for one in inputs(rows, -1e18)]
    output = regard.attention(*leaves, bias=bias, mask=mask, backend=backend)
    output.backward(torch.ones_like(output))
    right = dense(*leaves, visible=seen, bias=bias, cotangent=torch.ones_like(output))
    np.testing.assert_allclose(f64(output), right.output, atol=1e-12)
    for leaf, want in zip(leaves, (right.q, right.k, right.v), strict=True):
        np.testing.assert_allclose(f64(leaf.grad), want, atol=1e-12 * max(1, abs(want).max()))


@pytest.mark.parametrize("backend", OWN[1:])
def test_scores_as_high_are_right_as_well(backend):
    # One entry of each vector makes every score 2²⁰ larger, without any bias.
    leaves = inputs(slice(0), 0.0)
    for one in leaves[:2]:
        one[..., 0] = 2.0**11
    leaves = [one.requires_grad_() for one in leaves]
    output = regard.attention(*leaves, mask=masks.Causal(), backend=backend)
    output.backward(torch.ones_like(output))
    right = dense(*leaves, visible=causal(N, N), cotangent=torch.ones_like(output))
    np.testing.assert_allclose(f64(output), right.output, atol=1e-5)
    np.testing.assert_allclose(f64(leaves[2].grad), right.v, atol=1e-5 * abs(right.v).max())


class TestSdpa:
    """PyTorch's kernel is right forward and wrong backward, so it is passed over where something learns."""

    def test_forward_it_runs(self):
        bias, mask, seen, rows = padding(-1e9)
        given = inputs(rows, -1e9)
        found = regard.attention(*given, bias=bias, mask=mask, backend="sdpa")
        np.testing.assert_allclose(found, dense(*given, visible=seen, bias=bias).output, atol=1e-5)

    def test_where_something_learns_it_refuses(self):
        x = torch.randn(1, 1, 8, 4).requires_grad_()
        bias = torch.zeros(8, 8)
        bias[3] = -1e9
        with pytest.raises(regard.errors.InputError, match="gradients are wrong in rows whose whole bias is below -10"):
            regard.attention(x, x, x, bias=bias, backend="sdpa")
        assert "sdpa refused: its gradients are wrong" in str(regard.explain(x, x, x, bias=bias))

    @pytest.mark.parametrize(
        "bias",
        [
            torch.full((8, 8), -1e9).triu(1),  # a float mask: every row sees a key without a bias
            torch.full((8, 8), -torch.inf).triu(0),  # the first row sees nothing at all
            torch.full((8, 8), -1000.0),
        ],
        ids=["causal", "nothing", "little"],
    )
    def test_a_bias_that_is_low_in_some_keys_alone_is_no_hindrance(self, bias):
        x = torch.randn(1, 1, 8, 4).requires_grad_()
        assert regard.explain(x, x, x, bias=bias).backend == "sdpa"

    def test_what_the_mask_leaves_counts(self):
        x, bias = torch.randn(1, 1, 8, 4).requires_grad_(), torch.zeros(8)
        bias[:4] = -1e9
        assert regard.explain(x, x, x, bias=bias[None]).backend == "sdpa"
        refusals = dict(regard.explain(x, x, x, bias=bias[None], mask=masks.Causal()).refusals)
        assert "rows whose whole bias" in refusals["sdpa"]

    def test_a_learned_bias_leaves_the_kernel_and_stays_right(self):
        q, k, v = inputs(slice(7, 8), -1e9)
        q, bias = q.requires_grad_(), one_row(-1e9)[0].requires_grad_()
        regard.attention(q, k, v, bias=bias, backend="sdpa").sum().backward()
        right = dense(q, k, v, bias=bias[None, None], cotangent=torch.ones_like(q))
        np.testing.assert_allclose(f64(q.grad), right.q, atol=1e-4)


def test_a_mean_of_equal_weights_is_a_mean():
    # By hand: whatever pieces the keys are cut into, all of them at −1e9 give the mean of all values.
    q, v = torch.zeros(1, 1, N, 4), torch.arange(float(N))[:, None].expand(1, 1, N, 4)
    bias = torch.full((N, N), -1e9).requires_grad_()
    found = regard.attention(q, q, v, bias=bias, backend="strips").detach()
    np.testing.assert_allclose(found, np.full((1, 1, N, 4), (N - 1) / 2), rtol=1e-6)
