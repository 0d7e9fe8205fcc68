"""A score of one's own that holds something by sequence or by head gives the same at every length and backend."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import masks
from regard.backends.selection import named
from regard.errors import InputError
from regard.problem import Problem
from regard.scores import Score
from sweeps import sweep

BATCH, HEADS, DIM = 2, 3, 4
CPU = tuple(named().values())


@dataclass(frozen=True, eq=False)
class Broadcasting(Score):
    """Gains that broadcast over all sequences and heads: of those in a tile it hears nothing."""

    gain: Tensor

    def tile(self, q, k, i, j):
        return self.gain * (q @ k.mT)

    def value_term(self, weights, i, j):
        return (weights * self.gain).sum(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Hearing(Score):
    """The same gains, looked up for the sequences and heads of the tile."""

    gain: Tensor  # (batch or 1, heads or 1, 1, 1)

    def _at(self, batch, head):
        sizes = self.gain.shape
        gain = self.gain[batch] if sizes[0] > 1 else self.gain
        return gain[:, head] if sizes[1] > 1 else gain

    def tile(self, q, k, i, j, batch, head):
        return self._at(batch, head) * (q @ k.mT)

    def value_term(self, weights, i, j, batch, head):
        return (weights * self._at(batch, head)).sum(-1, keepdim=True)


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def made(n):
    real = torch.ones(BATCH, n)
    real[1, (n + 1) // 2 :] = 0
    return {
        "all": None,
        "causal": masks.Causal(),
        "by sequence": masks.Padding(real),
        "by head": masks.RandomBlocks(1, block=64, heads=HEADS, seed=1) if n > 128 else masks.Causal(),
        "by both": masks.Dense(torch.rand(BATCH, HEADS, n, n, generator=torch.Generator().manual_seed(2)) < 0.7),
    }


def dense(q, k, v, gain, mask):
    """The formula on whole tensors."""
    n = q.shape[2]
    visible = torch.ones(1, 1, n, n, dtype=torch.bool)
    if mask is not None:
        visible = mask.bind(n, n).dense(BATCH, HEADS, q.device)
    scores = (gain * (q @ k.mT)).masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill(~visible, 0.0).nan_to_num(0.0)
    return weights @ v + (weights * gain).sum(-1, keepdim=True)


def run(kind, shape, mask, n, backend):
    q, k, v = (drawn(BATCH, HEADS, n, DIM, seed=one) for one in range(3))
    gain = drawn(*shape, seed=3)
    leaves = [one.requires_grad_() for one in (q, k, v, gain)]
    if kind is None:
        out = dense(*leaves, mask)
    else:
        out = regard.attention(q, k, v, score=kind(gain), mask=mask, backend=backend)
    return out, torch.autograd.grad((out * drawn(*out.shape, seed=4)).sum(), leaves)


SHAPES = {"head": (1, HEADS, 1, 1), "sequence": (BATCH, 1, 1, 1), "both": (BATCH, HEADS, 1, 1)}


QUICK = [(1, "all"), (1, "by sequence"), (128, "causal"), (128, "by both"), (512, "by head"), (700, "by sequence")]
CASES = list(itertools.product(SHAPES, [*QUICK, (512, "by sequence"), (700, "all"), (700, "by head")]))


@pytest.mark.parametrize(
    "quick", [pytest.param(True, id="quick"), pytest.param(False, id="the others", marks=pytest.mark.slow)]
)
def test_every_backend_gives_the_formula_and_its_gradients(quick):
    for case in sweep(pair for pair in CASES if (pair[0] == "both" and pair[1] in QUICK) == quick):
        with case as (of, (n, name)):
            shape = SHAPES[of]
            mask = made(n)[name]
            expected, slopes = run(None, shape, mask, n, None)
            x = torch.zeros(BATCH, HEADS, n, DIM, dtype=torch.float64)
            for kind in (Broadcasting, Hearing):
                problem = Problem.of(x, x, x, score=kind(torch.ones(shape, dtype=torch.float64)), mask=mask)
                names = [one.name for one in CPU if one.refuses(problem) is None]
                assert {"reference", "strips"} <= set(names)
                for backend in names:
                    found, ours = run(kind, shape, mask, n, backend)
                    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
                    for one, other in zip(ours, slopes, strict=True):
                        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", [Broadcasting, Hearing])
def test_watching_gives_the_same_weights(kind):
    class Model(torch.nn.Module):
        def forward(self, x):
            return regard.attention(x, x, x, score=kind(gain), mask=made(130)["by sequence"])

    x, gain = drawn(BATCH, HEADS, 130, DIM), drawn(BATCH, HEADS, 1, 1, seed=3)
    expected = regard.attention(
        x, x, x, score=kind(gain), mask=made(130)["by sequence"], return_weights=True, backend="reference"
    )[1]
    with torch.no_grad(), regard.watch(model := Model(), keep="weights") as seen:
        model(x)
    np.testing.assert_allclose(seen.layers[0].weights, expected.numpy(), rtol=1e-9, atol=1e-12)


def test_a_tile_of_another_shape_is_refused_with_the_way_out():
    @dataclass(frozen=True, eq=False)
    class Wrong(Score):
        def tile(self, q, k, i, j):
            return torch.zeros(3, 1, 1, 1)

    x = drawn(BATCH, HEADS, 5, DIM)
    for backend in ("reference", "strips"):
        with pytest.raises(InputError, match=r"Wrong\.tile must .*\(2, 3, 5, 5\), got \(3, 1, 1, 1\): take `batch`"):
            regard.attention(x, x, x, score=Wrong(), backend=backend)
