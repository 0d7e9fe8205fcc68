"""The reference against formulas in numpy, differentiated by hand: what oracles.dense does not have."""

import numpy as np
import pytest
import torch

from oracles import causal, f64, softmax
from regard import masks, positions
from regard.backends import Reference
from regard.dropout import Dropout
from regard.normalizers import Sigmoid, Softmax
from regard.problem import Problem
from sweeps import sweep

B, H, KV, N, M, D, DV = 2, 4, 2, 6, 9, 5, 3
RANDOM = np.random.default_rng(0)
Q, K, V = (RANDOM.standard_normal(size) for size in ((B, H, N, D), (B, KV, M, D), (B, KV, M, DV)))
UP, UP_LSE = RANDOM.standard_normal((B, H, N, DV)), RANDOM.standard_normal((B, H, N))
WIDE_K, WIDE_V = np.repeat(K, 2, 1), np.repeat(V, 2, 1)
SCORES = np.einsum("bhid,bhjd->bhij", Q, WIDE_K) / D**0.5
D_WEIGHTS = np.einsum("bhid,bhjd->bhij", UP, WIDE_V)
SEEN = causal(N, M)


def _leaves():
    return tuple(torch.tensor(x, requires_grad=True) for x in (Q, K, V))


def _near(ours, theirs):
    np.testing.assert_allclose(f64(ours), theirs, atol=1e-12, rtol=0)


def _ungroup(x):
    return x.reshape(B, KV, 2, *x.shape[2:]).sum(2)


def _check(answer, leaves, used, d_scores):
    """Output and gradients, given the weights that meet the values and the gradient of the scores."""
    _near(answer.output, np.einsum("bhij,bhjd->bhid", used, WIDE_V))
    grads = torch.autograd.grad(answer.output, leaves, torch.tensor(UP), retain_graph=True)
    _near(grads[0], np.einsum("bhij,bhjd->bhid", d_scores, WIDE_K) / D**0.5)
    _near(grads[1], _ungroup(np.einsum("bhij,bhid->bhjd", d_scores, Q)) / D**0.5)
    _near(grads[2], _ungroup(np.einsum("bhij,bhid->bhjd", used, UP)))


def _through_softmax(weights, d_weights):
    return weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))


def test_sigmoid():
    for case in sweep([None, 0.0, -1.5]):
        with case as shift:
            leaves = _leaves()
            answer = Reference()(Problem.of(*leaves, mask=masks.Causal(), normalizer=Sigmoid(shift)))
            weights = SEEN / (1 + np.exp(-(SCORES + (-np.log(M) if shift is None else shift))))
            _check(answer, leaves, weights, D_WEIGHTS * weights * (1 - weights))


def test_factor():
    leaves, gate = _leaves(), RANDOM.standard_normal((1, H, N, M))
    factor = torch.tensor(gate, requires_grad=True)
    answer = Reference()(Problem.of(*leaves, mask=masks.Causal(), weight_factor=positions.DenseBias(factor)))
    weights = softmax(np.where(SEEN, SCORES, -np.inf))[0]
    _check(answer, leaves, gate * weights, _through_softmax(weights, gate * D_WEIGHTS))
    (ours,) = torch.autograd.grad(answer.output, factor, torch.tensor(UP))
    _near(ours, (weights * D_WEIGHTS).sum(0, keepdims=True))


def _mixed(x):
    """The finalizer of SplitMix64 in Python's own integers; the upper 32 bits."""
    x &= 2**64 - 1
    for times, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
        x = (x ^ (x >> shift)) * times % 2**64
    return (x ^ (x >> 31)) >> 32


def _kept(seed, p, b, h, i, j):
    """The formula of regard.dropout in Python's own integers."""
    bits = _mixed(((((b << 16) + h) << 28) + i) + seed) ^ _mixed(j + (seed >> 17))
    bits = bits * 0x85EBCA6B % 2**32
    signed = bits - 2**32 if bits >= 2**31 else bits
    bits = (signed ^ (signed >> 15)) % 2**32 * 0xC2B2AE35 % 2**32
    return (bits - 2**32 if bits >= 2**31 else bits) >= int(p * 2**32) - 2**31


def test_dropout():
    for case in sweep([0, 1, -1, 2**61 + 12345, -(2**62)]):
        with case as seed:
            p, leaves = 0.4, _leaves()
            problem = Problem.of(*leaves, mask=masks.Causal())
            object.__setattr__(problem, "dropout", Dropout(p, torch.tensor(seed)))
            answer = Reference()(problem)
            at = np.ndindex(B, H, N, M)
            keep = np.array([_kept(seed, p, *where) for where in at]).reshape(B, H, N, M) / (1 - p)
            weights = softmax(np.where(SEEN, SCORES, -np.inf))[0]
            _check(answer, leaves, keep * weights, _through_softmax(weights, keep * D_WEIGHTS))


@pytest.mark.parametrize("has_sink", [False, True])
def test_the_gradient_of_the_log_sum_exp_is_the_weights(has_sink):
    leaves, logits = _leaves(), RANDOM.standard_normal(H)
    sink = torch.tensor(logits, requires_grad=True)
    normalizer = Softmax(sink if has_sink else None)
    answer = Reference()(Problem.of(*leaves, mask=masks.Causal(), normalizer=normalizer, return_lse=True))
    weights, lse, to_sink = softmax(np.where(SEEN, SCORES, -np.inf), logits if has_sink else None)
    _near(answer.lse, lse)
    grads = torch.autograd.grad(answer.lse, (leaves[0], leaves[1], sink), torch.tensor(UP_LSE), allow_unused=True)
    d_scores = weights * UP_LSE[..., None]
    _near(grads[0], np.einsum("bhij,bhjd->bhid", d_scores, WIDE_K) / D**0.5)
    _near(grads[1], _ungroup(np.einsum("bhij,bhid->bhjd", d_scores, Q)) / D**0.5)
    if has_sink:
        _near(grads[2], (to_sink * UP_LSE).sum((0, 2)))
