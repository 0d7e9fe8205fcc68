"""The loss is the formula, summed over what is asked for."""

import math

import numpy as np
import pytest
import torch

from regard.train.loss_and_optimizer import IGNORED, summed_cross_entropy
from sweeps import sweep


def by_hand(logits, labels, smoothing):
    found = 0.0
    for row, label in zip(logits, labels, strict=True):
        if label == IGNORED:
            continue
        log = row - np.log(np.exp(row).sum())
        found -= (1 - smoothing) * log[label] + smoothing * log.mean()
    return found


def test_it_is_the_formula():
    for case in sweep([0.0, 0.1, 0.5]):
        with case as smoothing:
            generator = torch.Generator().manual_seed(0)
            logits = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
            labels = torch.tensor([[0, 6, IGNORED, 3, 3], [IGNORED, 1, 2, 5, 0]])
            found = summed_cross_entropy(logits.float(), labels, smoothing)
            assert float(found) == pytest.approx(
                by_hand(logits.flatten(0, 1).numpy(), labels.flatten().tolist(), smoothing)
            )


def test_where_nothing_is_asked_it_is_zero_with_a_gradient():
    logits = torch.randn(1, 3, 4, requires_grad=True)
    found = summed_cross_entropy(logits, torch.full((1, 3), IGNORED))
    found.backward()
    assert float(found.detach()) == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_half_precision_is_summed_in_single():
    logits = torch.zeros(1, 5000, 3, dtype=torch.bfloat16)
    found = summed_cross_entropy(logits, torch.zeros(1, 5000, dtype=torch.long))
    assert float(found) == pytest.approx(5000 * math.log(3), rel=1e-5)
