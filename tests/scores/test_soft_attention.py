"""Soft attention as it is introduced: one query over a bag of vectors, then several, then written in columns."""

import math

import numpy as np
import torch

import regard
from regard.scores import Additive, Bilinear, Dot, ScaledDot
from sweeps import sweep


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


W, U, V = randn(6, 4, seed=7) / 2, randn(6, 5, seed=8) / 5**0.5, randn(6, seed=9) / 6**0.5
B = randn(4, 5, seed=10) / 5**0.5
# Each score with the formula for one query q and one key x, in numpy.
SCORES = {
    "additive": (Additive(W, U, V), lambda q, x: V.numpy() @ np.tanh(W.numpy() @ q + U.numpy() @ x), 5),
    "dot": (Dot(), lambda q, x: q @ x, 4),
    "scaled dot": (ScaledDot(), lambda q, x: q @ x / math.sqrt(4), 4),
    "bilinear": (Bilinear(B), lambda q, x: q @ B.numpy() @ x, 5),
}


def expectation(formula, q, keys, values):
    """Σ αₙ vₙ with αₙ = exp s(q, kₙ) / Σ exp s(q, kₘ), one term after the other."""
    size = [math.exp(formula(q, key)) for key in keys]
    return sum(s / sum(size) * value for s, value in zip(size, values, strict=True))


def test_one_query_over_a_bag_is_the_expectation_of_its_vectors():
    for case in sweep(SCORES):
        with case as label:
            score, formula, width = SCORES[label]
            q, bag = randn(1, 4), randn(9, width, seed=1)
            out, weights = regard.attention(q, bag, bag, score=score, return_weights=True)
            np.testing.assert_allclose(
                out[0].numpy(), expectation(formula, q[0].numpy(), bag.numpy(), bag.numpy()), atol=1e-12
            )
            np.testing.assert_allclose(weights.sum(-1).numpy(), [1.0], atol=1e-12)
            assert (weights > 0).all()


def test_keys_may_be_apart_from_the_values():
    for case in sweep(SCORES):
        with case as label:
            score, formula, width = SCORES[label]
            q, keys, values = randn(1, 4), randn(9, width, seed=1), randn(9, 3, seed=2)
            out = regard.attention(q, keys, values, score=score)
            expected = expectation(formula, q[0].numpy(), keys.numpy(), values.numpy())
            np.testing.assert_allclose(out[0].numpy(), expected, atol=1e-12)


def test_a_bag_has_no_order():
    for case in sweep(SCORES):
        with case as label:
            score, _, width = SCORES[label]
            q, keys, values = randn(1, 4), randn(9, width, seed=1), randn(9, 3, seed=2)
            order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
            shuffled = regard.attention(q, keys[order], values[order], score=score)
            torch.testing.assert_close(shuffled, regard.attention(q, keys, values, score=score))


def test_several_queries_are_each_alone():
    for case in sweep(SCORES):
        with case as label:
            score, _, width = SCORES[label]
            queries, keys, values = randn(6, 4), randn(9, width, seed=1), randn(9, 3, seed=2)
            together = regard.attention(queries, keys, values, score=score)
            alone = torch.cat([regard.attention(q[None], keys, values, score=score) for q in queries])
            torch.testing.assert_close(together, alone)


def test_in_columns_it_is_the_transpose():
    # Vectors as columns: V · softmax(Kᵀ Q / √d), the softmax over each column.
    q, k, v = randn(4, 6), randn(4, 9, seed=1), randn(3, 9, seed=2)
    scores = k.numpy().T @ q.numpy() / math.sqrt(4)
    weights = np.exp(scores) / np.exp(scores).sum(0)
    np.testing.assert_allclose(regard.attention(q.T, k.T, v.T).T.numpy(), v.numpy() @ weights, atol=1e-12)


def test_equal_scores_give_the_mean_and_a_far_larger_one_gives_its_vector():
    bag = randn(9, 4)
    torch.testing.assert_close(regard.attention(torch.zeros(1, 4).double(), bag, bag)[0], bag.mean(0))
    winner = regard.attention(1e4 * bag[2:3], bag / bag.norm(dim=-1, keepdim=True), bag, score=Dot())
    torch.testing.assert_close(winner, bag[2:3])
