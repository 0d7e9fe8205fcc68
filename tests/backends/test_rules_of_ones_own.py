"""Rules of one's own, on every backend: masks that read few of their arguments, biases of another type."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import regard
from regard import masks, positions
from sweeps import sweep

BACKENDS = ("auto", "reference", "sdpa", "strips", "native")
MASKS = {
    "heads": lambda b, h, i, j: h > 0,
    "sequences": lambda b, h, i, j: b > 0,
    "heads and keys": lambda b, h, i, j: (h > 0) | (j < 3),
    "keys": lambda b, h, i, j: j < 5,
    "queries": lambda b, h, i, j: i > 3,
    "both numbers": lambda b, h, i, j: (b + h) % 2 == 0,
}


def drawn(n: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(2, 2, n, 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for _ in "qkv"]


def numbers(n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    b, h = torch.arange(2)[:, None, None, None], torch.arange(2)[None, :, None, None]
    return b, h, torch.arange(n)[:, None], torch.arange(n)


def check(given: list[Tensor], pairs: Tensor | None, added: Tensor | None, backend: str, **options: object) -> None:
    output = regard.attention(*given, backend=backend, **options)
    found = output, *torch.autograd.grad(output.square().sum(), given)
    q, k, v = (x.detach().double().requires_grad_() for x in given)
    scores = q @ k.mT / 8**0.5 + (0 if added is None else added.double())
    seen = torch.ones((), dtype=torch.bool) if pairs is None else pairs
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    expected = torch.where(seen, weights, 0.0) @ v  # a row that sees nothing is 0
    tolerance = 1e-10 if given[0].dtype == torch.float64 else 2e-4
    for one, other in zip(found, (expected, *torch.autograd.grad(expected.square().sum(), (q, k, v))), strict=True):
        torch.testing.assert_close(one.double(), other.nan_to_num(0.0), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("n", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_a_mask_may_read_any_of_its_arguments(n: int) -> None:
    for case in sweep(itertools.product(MASKS, BACKENDS)):
        with case as (name, backend):
            mask: Callable[..., Tensor] = MASKS[name]
            check(drawn(n, torch.float32), mask(*numbers(n)), None, backend, mask=masks.MaskMod(mask))


@dataclass(frozen=True)
class Near(positions.Bias):
    dtype: torch.dtype

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (-(i - j).abs() / 8).to(self.dtype)


@dataclass(frozen=True)
class Near2(positions.Relative):
    dtype: torch.dtype

    def diagonals(self, distance: Tensor) -> Tensor:
        return (-distance.abs() / 8).to(self.dtype)[None]


TYPES = [
    (kind, of_queries, of_numbers, masked)
    for kind in (Near, Near2)
    for of_queries in (torch.float32, torch.float64)
    for of_numbers in (torch.float32, torch.float64, torch.bfloat16, torch.int64)
    for masked in (False, True)
]
KEPT = [one for one in TYPES if not one[3] and (one[0] is Near or one[1:3] == (torch.float64, torch.float32))]


@pytest.mark.parametrize(
    "quick", [pytest.param(True, id="quick"), pytest.param(False, id="the others", marks=pytest.mark.slow)]
)
def test_a_bias_may_give_numbers_of_any_type(quick):
    """A kernel read numbers of float32 as if they were of the queries' float64."""
    for case in sweep(way for way in TYPES if (way in KEPT) == quick):
        with case as (kind, of_queries, of_numbers, masked):
            n = 520  # where `auto` takes blocks
            *_, i, j = numbers(n)
            bias = (-(i - j).abs() / 8).to(of_numbers)
            mask, visible = (masks.Causal() & masks.Window(90), (j <= i) & (i - j < 90)) if masked else (None, None)
            for backend in BACKENDS if of_queries == torch.float32 else BACKENDS[:-1]:
                check(drawn(n, of_queries), visible, bias, backend, mask=mask, bias=kind(of_numbers))
