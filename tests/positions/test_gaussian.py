"""Luong's local-p, whole: a page of numpy against mask and factor."""

from itertools import product

import numpy as np
import pytest
import torch

from regard import attention, masks, scores
from regard.errors import InputError
from regard.positions import Gaussian
from sweeps import sweep


def _local_p(q, k, v, p, radius):
    """Luong et al. 2015, 3.2: for one sequence, query by query; p may be anywhere."""
    outputs, weights = [], []
    for h, place in zip(q, p, strict=True):
        first, last = max(0, int(np.floor(place)) - radius), min(len(k) - 1, int(np.floor(place)) + radius)
        inside = np.arange(first, last + 1)
        score = k[inside] @ h
        align = np.exp(score - score.max())
        align = align / align.sum() * np.exp(-((inside - place) ** 2) / (2 * (radius / 2) ** 2))
        row = np.zeros(len(k))
        row[inside] = align
        weights.append(row)
        outputs.append(row @ v)
    return np.stack(outputs), np.stack(weights)


def test_local_p_is_luongs():
    for case in sweep(product([3, 9, 12], [1, 2, 5])):
        with case as (queries, radius):
            random = np.random.default_rng(queries)
            keys = 9
            q, k, v = (random.standard_normal((2, n, 4)) for n in (queries, keys, keys))
            p = keys / (1 + np.exp(-2 * random.standard_normal((2, queries))))
            wanted = [_local_p(*one, radius) for one in zip(q, k, v, p, strict=True)]

            center = torch.tensor(p)
            out, weights = attention(
                torch.tensor(q),
                torch.tensor(k),
                torch.tensor(v),
                score=scores.Dot(),
                mask=_window(center, radius, keys),
                weight_factor=Gaussian(center, radius),
                return_weights=True,
                backend="reference",
            )
            np.testing.assert_allclose(
                weights.squeeze(1).numpy(), np.stack([one[1] for one in wanted]), rtol=0, atol=1e-12
            )
            np.testing.assert_allclose(out.numpy(), np.stack([one[0] for one in wanted]), rtol=0, atol=1e-12)
            assert (weights.sum(-1) < 1).all()


def _window(center, radius, keys):
    if hasattr(masks, "LocalPredictive"):
        return masks.LocalPredictive(center, radius)
    far = torch.arange(keys) - center.floor()[..., None]
    return masks.Dense((far.abs() <= radius)[:, None])


def test_the_center_learns_through_attention():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(3))

    def ours(center):
        return attention(q, k, v, weight_factor=Gaussian(center, 2), backend="reference")

    center = torch.tensor([[0.3, 1.4, 2.2], [1.9, 0.1, 1.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ours, center)
    far = torch.arange(3) - center[..., None]
    theirs = torch.softmax(q @ k.mT / 2, -1) * torch.exp(-(far**2) / 2)
    (gradient,) = torch.autograd.grad((theirs @ v).square().sum(), center)
    (our_gradient,) = torch.autograd.grad(ours(center).square().sum(), center)
    torch.testing.assert_close(our_gradient, gradient, rtol=1e-10, atol=1e-12)


def test_rows_are_the_queries_in_order_wherever_they_stand():
    center = torch.tensor([[1.0, 2.0]])
    for start in (0, 5, -1):
        bell = (
            Gaussian(center, 2)
            .resolve(2, 4, start)
            .tile(slice(0, 1), slice(0, 1), torch.arange(start, start + 2), torch.arange(4))
        )
        assert bell[0, 0].argmax(1).tolist() == [1, 2]


def test_a_center_that_all_sequences_share_is_made_once():
    assert Gaussian(torch.zeros(1, 3), 2).leading == (1, 1)
    assert Gaussian(torch.zeros(2, 3), 2).leading == (2, 1)


def test_a_narrow_center_is_computed_wide():
    center = torch.tensor([[300.0]], dtype=torch.bfloat16)
    bell = Gaussian(center, 2)(*(torch.tensor(x) for x in (0, 0, 0, 301)))
    assert bell.dtype == torch.float32
    assert bell.item() == pytest.approx(np.exp(-0.5))


def test_a_wrong_factor_says_what_is_right():
    cases = [
        (
            lambda: Gaussian(torch.zeros(3), 2),
            r"`center` must be \(batch, queries\), .* got \(3,\): write center\[None\]",
        ),
        (lambda: Gaussian(torch.zeros(1, 3).long(), 2), "floating-point tensor .* got torch.int64"),
        (lambda: Gaussian([[1.0]], 2), "got list"),
        (lambda: Gaussian(torch.zeros(1, 3), 0), "`radius` is half the width of the window .* above 0, got 0"),
        (lambda: Gaussian(torch.zeros(1, 3), float("inf")), "finite"),
        (lambda: Gaussian(torch.zeros(1, 3), 2).resolve(4, 4, 0), r"each of 4 queries, got 3 in shape \(1, 3\)"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
