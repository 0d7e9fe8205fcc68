"""Classes of one's own mean what they say on every backend: what inherits from a class of regard and answers in another
way is not computed as its parent would be.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import regard
from regard import masks, normalizers, positions, scores
from sweeps import sweep

N = 600


class Doubled(scores.ScaledDot):
    def tile(self, q, k, i, j):
        return 2 * super().tile(q, k, i, j)


class Sharper(normalizers.Softmax):
    def weights(self, scores, visible):
        return super().weights(2 * scores, visible)


class Squares(normalizers.Softmax):
    def normalize(self, scores, visible, *, wants_sums):
        return super().normalize(scores.square(), visible, wants_sums=wants_sums)


class Halved(normalizers.Sigmoid):
    def weights(self, scores, visible):
        return super().weights(0.5 * scores, visible)


@dataclass(frozen=True, eq=False)
class Rectified(normalizers.Normalizer):
    """ReLU attention: a row is divided by the number of all keys."""

    def weights(self, scores, visible):
        weights = scores.relu() / scores.shape[-1]
        return weights if visible is None else weights.masked_fill(~visible, 0.0), None


@dataclass(frozen=True, eq=False)
class ByKeyAndHead(normalizers.Normalizer):
    temperature: Tensor  # (heads, keys)

    def weights(self, scores, visible):
        return normalizers.Softmax().weights(scores * self.temperature[:, None], visible)[0], None


class DoubledBias(positions.DenseBias):
    def tile(self, batch, heads, i, j):
        return 2 * super().tile(batch, heads, i, j)


class DoubledTable(positions.RelativePositionBias):
    def tile(self, batch, heads, i, j):
        return 2 * super().tile(batch, heads, i, j)


class Later(masks.Causal):
    def __call__(self, batch, head, i, j):
        return j <= i + 200


class Every(masks.Window):
    def __call__(self, batch, head, i, j):
        return (i - j).remainder(3) == 0


def drawn(*size, seed):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WINDOW = masks.Window(left=50, right=20)
CASES = {
    "a score": lambda wide: {"score": Doubled()},
    "a softmax": lambda wide: {"normalizer": Sharper(), "mask": WINDOW},
    "another softmax": lambda wide: {"normalizer": Squares(), "mask": WINDOW},
    "a sigmoid": lambda wide: {"normalizer": Halved(), "mask": WINDOW},
    "a normalizer that counts keys": lambda wide: {"normalizer": Rectified(), "mask": WINDOW},
    "one that knows keys and heads": lambda wide: {
        "normalizer": ByKeyAndHead(drawn(4, N, seed=5).abs().to(wide)),
        "mask": masks.Causal() & WINDOW,
    },
    "a bias of pairs": lambda wide: {"bias": DoubledBias(drawn(1, 4, N, N, seed=6).to(wide).requires_grad_())},
    "a bias of distances": lambda wide: {"bias": DoubledTable(drawn(41, 4, seed=7).to(wide).requires_grad_())},
    "a mask": lambda wide: {"mask": Later()},
    "a mask of a window": lambda wide: {"mask": Every(100)},
}


def results(backend, wide, case):
    q, k, v = (drawn(1, heads, N, 8, seed=at).to(wide).requires_grad_() for at, heads in enumerate((4, 2, 2)))
    asked = CASES[case](wide)
    output = regard.attention(q, k, v, backend=backend, **asked)
    held = [asked["bias"].values] if case == "a bias of pairs" else []
    held = [asked["bias"].table] if case == "a bias of distances" else held
    up = drawn(*output.shape, seed=9).to(wide)
    return output.detach(), *torch.autograd.grad(output, (q, k, v, *held), up)


@pytest.mark.parametrize("backend", ["auto", "strips", "sdpa", "native"])
def test_they_are_computed_as_they_say_or_refused(backend):
    refused = 0
    for case in sweep(CASES):
        with case as name:
            exact = results("reference", torch.float64, name)
            try:
                ours = results(backend, torch.float32, name)
            except regard.InputError:
                refused += 1
                continue
            for one, other in zip(ours, exact, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-5 * (1 + float(other.abs().max())))
    assert (refused == 0) == (backend in ("auto", "strips"))


@pytest.mark.parametrize("backend", ["auto", "strips", "native"])
@pytest.mark.parametrize("logit", [2.0, -100.0, -200.0])
def test_a_sink_beside_rows_that_see_nothing(backend, logit):
    found = {}
    for name, wide in ((backend, torch.float32), ("reference", torch.float64)):
        q, k, v = (drawn(1, 1, 512, 16, seed=at).to(wide).requires_grad_() for at in range(3))
        sink = torch.tensor([logit], dtype=wide, requires_grad=True)
        mask = masks.Document((torch.arange(512) // 128) - 1)
        output, lse = regard.attention(
            q, k, v, mask=mask, normalizer=normalizers.Softmax(sink), return_lse=True, backend=name
        )
        total = output.square().sum() + lse.sin().sum()
        found[name] = output.detach(), lse.detach(), *torch.autograd.grad(total, (q, k, v, sink))
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-4)
