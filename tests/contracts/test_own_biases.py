"""A bias of one's own that reads batch or head gives the same at every length and backend, without `leading`."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import masks
from regard.backends.flex import Flex
from regard.backends.selection import named
from regard.errors import InputError
from regard.positions import Bias, Relative
from regard.problem import Problem
from sweeps import sweep

BATCH, HEADS, DIM = 2, 3, 4
CPU = tuple(named().values())


@dataclass(frozen=True, eq=False)
class ByHead(Bias):
    t: Tensor  # (heads,)

    def __call__(self, batch, head, i, j):
        return self.t[head] * torch.cos(0.3 * i + 0.2 * j)


@dataclass(frozen=True, eq=False)
class ByBatch(Bias):
    t: Tensor  # (batch,)

    def __call__(self, batch, head, i, j):
        return self.t[batch] * torch.cos(0.3 * i + 0.2 * j)


@dataclass(frozen=True, eq=False)
class ByBoth(Bias):
    t: Tensor  # (batch, heads)

    def __call__(self, batch, head, i, j):
        return self.t[batch, head] * torch.cos(0.3 * i + 0.2 * j)


@dataclass(frozen=True, eq=False)
class Broadcasting(Bias):
    """The numbers of all heads, which it does not look up."""

    t: Tensor  # (heads,)

    def __call__(self, batch, head, i, j):
        return self.t[:, None, None] * torch.cos(0.3 * i + 0.2 * j)


@dataclass(frozen=True, eq=False)
class Diagonal(Relative):
    t: Tensor  # (heads,)

    def diagonals(self, distance):
        return self.t[:, None] * torch.cos(0.3 * distance)


KINDS = {
    ByHead: (HEADS,),
    ByBatch: (BATCH,),
    ByBoth: (BATCH, HEADS),
    Broadcasting: (HEADS,),
    Diagonal: (HEADS,),
}


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix(kind, t, n):
    """The bias (batch, heads, n, n) by whole tensors."""
    i, j = torch.arange(n)[:, None], torch.arange(n)
    if kind is Diagonal:
        return t[None, :, None, None] * torch.cos(0.3 * (i - j))
    shape = {ByBatch: (BATCH, 1, 1, 1), ByBoth: (BATCH, HEADS, 1, 1)}.get(kind, (1, HEADS, 1, 1))
    return t.reshape(shape) * torch.cos(0.3 * i + 0.2 * j)


def mask_of(name, n):
    real = torch.ones(BATCH, n)
    real[1, (n + 1) // 2 :] = 0
    return {
        "all": None,
        "by sequence": masks.Padding(real),
        "by head": masks.RandomBlocks(1, block=64, heads=HEADS, seed=1) if n > 128 else masks.Causal(),
    }[name]


def dense(q, k, v, t, kind, place, mask):
    n = q.shape[2]
    scores = q @ k.mT / DIM**0.5
    scores = scores + matrix(kind, t, n) if place == "bias" else scores
    if mask is not None:
        scores = scores.masked_fill(~mask.bind(n, n).dense(BATCH, HEADS, q.device), -torch.inf)
    weights = torch.softmax(scores, -1)
    return (weights if place == "bias" else weights * matrix(kind, t, n)) @ v


SIZES = {1: "all", 128: "by head", 512: "by sequence", 700: "by head"}
CASES = list(itertools.product(KINDS, SIZES))
KEPT = [(kind, n) for kind, n in CASES if n < 700 or kind is ByBoth]


@pytest.mark.parametrize(
    "quick", [pytest.param(True, id="quick"), pytest.param(False, id="the others", marks=pytest.mark.slow)]
)
def test_every_backend_gives_the_formula_and_its_gradients(quick):
    for case in sweep(pair for pair in CASES if (pair in KEPT) == quick):
        with case as (kind, n):
            place = "weight_factor" if (kind, n) in ((ByBoth, 512), (Broadcasting, 128)) else "bias"
            mask = mask_of(SIZES[n], n)
            leaves = [drawn(BATCH, HEADS, n, DIM, seed=one).requires_grad_() for one in range(3)]
            leaves.append(drawn(*KINDS[kind], seed=3).requires_grad_())
            up = drawn(BATCH, HEADS, n, DIM, seed=4)
            expected = dense(*leaves, kind, place, mask)
            slopes = torch.autograd.grad((expected * up).sum(), leaves)
            problem = Problem.of(*leaves[:3], mask=mask, **{place: kind(leaves[3])})
            able = [one for one in CPU if one.refuses(problem) is None]
            assert {"reference", "strips"} <= {one.name for one in able}
            for backend in able:
                found = backend(problem).output
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
                for one, other in zip(torch.autograd.grad((found * up).sum(), leaves), slopes, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_narrow_queries_without_gradients():
    """The native kernels, and the few keys that a causal mask leaves, where no gradient is wanted."""
    for case in sweep(KINDS):
        with case as kind:
            x, t = drawn(BATCH, HEADS, 140, DIM).float(), drawn(*KINDS[kind], seed=3).float()
            for queries in (3, 140):
                expected = regard.attention(x[:, :, -queries:], x, x, bias=matrix(kind, t, 140)[..., -queries:, :])
                for backend in ("reference", "sdpa", "strips", "native", "auto"):
                    found = regard.attention(x[:, :, -queries:], x, x, bias=kind(t), backend=backend)
                    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [one for one in KINDS if one is not Broadcasting])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_asks_for_single_pairs(kind):
    x, t = drawn(BATCH, HEADS, 9, DIM).float(), drawn(*KINDS[kind], seed=3).float()
    flex, problem = Flex(compiles=False), Problem.of(x, x, x, bias=kind(t))
    assert flex.refuses(problem) is None
    torch.testing.assert_close(flex(problem).output, regard.attention(x, x, x, bias=matrix(kind, t, 9)))


class Attends(torch.nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.bias = bias

    def forward(self, x):
        return regard.attention(x, x, x, bias=self.bias)


def test_watching_gives_the_same_weights():
    for case in sweep(KINDS):
        with case as kind:
            x, t = drawn(BATCH, HEADS, 70, DIM), drawn(*KINDS[kind], seed=3)
            expected = torch.softmax(x @ x.mT / DIM**0.5 + matrix(kind, t, 70), -1)
            for keep in ("weights", "qk"):
                with torch.no_grad(), regard.watch(model := Attends(kind(t)), keep=keep) as seen:
                    model(x)
                layer, everything = seen.layers[0], slice(0, 70)
                for b, h in ((0, 0), (0, 2), (1, 1)):
                    found = layer.weights[b, h] if keep == "weights" else layer.qk.tile(b, h, everything, everything)
                    np.testing.assert_allclose(found, expected[b, h].numpy(), rtol=1e-6, atol=1e-9)


def test_leading_is_found_and_only_where_it_is_needed():
    x = torch.zeros(BATCH, HEADS, 5, DIM)
    for kind, leading in ((ByHead, (1, HEADS)), (ByBatch, (BATCH, 1)), (ByBoth, (BATCH, HEADS)), (Diagonal, (1, 3))):
        assert Problem.of(x, x, x, bias=kind(torch.ones(KINDS[kind]))).bias.leading == leading
    plain = Broadcasting(torch.ones(1))
    assert Problem.of(x, x, x, bias=plain).bias is plain
    with pytest.raises(InputError, match="broadcast to batch 2 and heads 3, got batch 1 and heads 5"):
        regard.attention(x, x, x, bias=Broadcasting(torch.ones(5)))


def test_compiled_code_gives_the_same():
    x, t = torch.randn(BATCH, HEADS, 8, DIM), torch.tensor([0.0, 1.0, 5.0])
    compiled = torch.compile(lambda x, t: regard.attention(x, x, x, bias=ByHead(t)), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, t), regard.attention(x, x, x, bias=ByHead(t), backend="reference"))
