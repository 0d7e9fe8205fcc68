"""The sigmoid as a normalizer: each pair for itself, against a page of numpy with its gradients by hand."""

import math
from itertools import product

import numpy as np
import pytest
import torch

import regard
from regard.errors import InputError
from regard.masks import Causal
from regard.normalizers import Sigmoid
from sweeps import sweep


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def page(q, k, v, visible, shift, up):
    """Output, weights and the gradients of q, k and v of sum(output · up), in float64."""
    q, k, v, up = (x.detach().double().numpy() for x in (q, k, v, up))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = q.shape[-1] ** -0.5
    sigma = 1 / (1 + np.exp(-(scale * np.einsum("bhid,bhjd->bhij", q, wide_k) + shift)))
    weights = np.where(visible, sigma, 0.0)
    d_scores = np.einsum("bhid,bhjd->bhij", up, wide_v) * weights * (1 - sigma) * scale

    def ungroup(x):
        return x.reshape(k.shape[0], k.shape[1], group, *x.shape[2:]).sum(2)

    return (
        np.einsum("bhij,bhjd->bhid", weights, wide_v),
        weights,
        np.einsum("bhij,bhjd->bhid", d_scores, wide_k),
        ungroup(np.einsum("bhij,bhid->bhjd", d_scores, q)),
        ungroup(np.einsum("bhij,bhid->bhjd", weights, up)),
    )


def test_it_is_the_formula():
    for case in sweep(product([(torch.float64, 1e-10), (torch.float32, 1e-5)], [None, 0.0, -2.5, 3.0], [4, 2, 1])):
        with case as ((dtype, tolerance), shift, kv_heads):
            q, k, v = (
                randn(2, heads, n, d, seed=seed, dtype=dtype).requires_grad_()
                for seed, (heads, n, d) in enumerate([(4, 5, 6), (kv_heads, 8, 6), (kv_heads, 8, 3)])
            )
            visible, up = randn(2, 4, 5, 8, seed=5) < 0.5, randn(2, 4, 5, 3, seed=6, dtype=dtype)
            visible[:, :, 1] = False
            out, weights = regard.attention(q, k, v, mask=visible, normalizer=Sigmoid(shift), return_weights=True)
            out.backward(up)
            expected = page(q, k, v, visible.numpy(), -math.log(8) if shift is None else shift, up)
            for ours, theirs in zip((out, weights, q.grad, k.grad, v.grad), expected, strict=True):
                np.testing.assert_allclose(ours.detach().numpy(), theirs, atol=tolerance)
            assert (out[:, :, 1] == 0).all()
            assert (q.grad[:, :, 1] == 0).all()


def test_a_pair_does_not_know_the_others():
    q, k = randn(1, 4), randn(9, 4, seed=1)
    asked = {"normalizer": Sigmoid(shift=-1.0), "return_weights": True}
    whole = regard.attention(q, k, k, **asked)[1]
    torch.testing.assert_close(regard.attention(q, k[:5], k[:5], **asked)[1], whole[:, :5])


def test_two_halves_add_up_to_the_whole_for_one_shift():
    q, k, v = randn(3, 4), randn(9, 4, seed=1), randn(9, 2, seed=2)
    normalizer = Sigmoid(shift=-math.log(9))
    halves = [regard.attention(q, k[at], v[at], normalizer=normalizer) for at in (slice(0, 4), slice(4, 9))]
    torch.testing.assert_close(sum(halves), regard.attention(q, k, v, normalizer=Sigmoid()))


def test_scores_of_zero_begin_near_a_sum_of_one():
    weights = regard.attention(
        torch.zeros(2, 4), torch.zeros(1000, 4), randn(1000, 3).float(), normalizer=Sigmoid(), return_weights=True
    )[1]
    torch.testing.assert_close(weights.sum(-1), torch.full((2,), 1000 / 1001))


def test_large_and_infinite_biases_keep_weights_and_gradients_finite():
    for case in sweep([1e4, -1e4, math.inf, -math.inf]):
        with case as size:
            q, k, v = (randn(3, 4, seed=seed, dtype=torch.float32).requires_grad_() for seed in range(3))
            bias = torch.full((3, 3), size)
            out, weights = regard.attention(
                q, k, v, bias=bias, mask=Causal(), normalizer=Sigmoid(), return_weights=True
            )
            torch.testing.assert_close(weights, torch.ones(3, 3).tril() * (size > 0))
            out.sum().backward()
            assert all(x.grad.isfinite().all() for x in (q, k, v))
            assert (q.grad == 0).all()


def test_gradcheck():
    q, k, v = (randn(1, 1, n, 2, seed=n).requires_grad_() for n in (3, 4, 4))

    def call(q, k, v):
        return regard.attention(q, k, v, mask=Causal(), normalizer=Sigmoid(), return_weights=True)

    assert torch.autograd.gradcheck(call, (q, k, v))


def test_there_is_no_log_sum_exp():
    with pytest.raises(InputError, match=r"`return_lse=True` needs a softmax: Sigmoid has no log-sum-exp"):
        regard.attention(randn(2, 3), randn(2, 3), randn(2, 3), normalizer=Sigmoid(), return_lse=True)


def test_a_shift_is_a_finite_number():
    for case in sweep([math.inf, math.nan, "1", True]):
        with case as shift, pytest.raises(InputError, match="`shift` must be a finite number or None"):
            Sigmoid(shift)
