"""Masks of one's own that define no more than which pairs are seen."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

import regard
from oracles import causal, dense
from regard import masks
from regard.masks.rectangles import PARTIAL, Rectangles
from sweeps import sweep

N = 700  # long enough for blocks to be planned


@dataclass(frozen=True)
class Stride(masks.Mask):
    """Every so many keys, of head h one more."""

    step: int

    def __call__(self, batch, head, i, j):
        return (i - j) % (self.step + head) == 0


def test_nothing_is_promised_about_rectangles():
    edges = torch.arange(4)
    rectangles = Rectangles(edges[:, None], edges[:, None] + 1, edges, edges + 1)
    assert (Stride(2).blocks(rectangles) == PARTIAL).all()
    assert Stride(2).blocks(rectangles).shape == (1, 1, 4, 4)


def test_it_runs_at_a_length_at_which_blocks_are_planned():
    for case in sweep(product([0.0, 1e-12], [False, True], ["auto", "sdpa", "strips", "native", "reference"])):
        with case as (dropout, with_causal, backend):
            if dropout and backend == "sdpa":
                with pytest.raises(regard.errors.InputError, match="dropout"):
                    _attend(backend, with_causal, dropout)
                continue
            found, inputs = _attend(backend, with_causal, dropout)
            distance = np.arange(N)[:, None] - np.arange(N)
            seen = np.stack([distance % (2 + head) == 0 for head in range(2)])
            seen = seen & causal(N, N) if with_causal else seen
            np.testing.assert_allclose(found, dense(*inputs, visible=seen).output, atol=1e-5)


def _attend(backend, with_causal, dropout):
    inputs = torch.randn(3, 1, 2, N, 8, generator=torch.Generator().manual_seed(0)).unbind()
    mask = Stride(2) & masks.Causal() if with_causal else Stride(2)
    return regard.attention(*inputs, mask=mask, dropout=dropout, backend=backend), inputs
