"""What dropout draws: the asked rate, independent of everything, from the generator, alike on every backend."""

import itertools
import math

import numpy as np
import pytest
import torch

import regard
from backend_lists import GENERAL
from regard import masks
from regard.dropout import Dropout
from regard.problem import Problem
from regard.scores import ScaledDot
from sweeps import sweep

DROPPING = [
    one
    for one in GENERAL
    if one.refuses(Problem.of(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2, 2), dropout=0.5)) is None
]
every_backend = pytest.mark.parametrize("backend", DROPPING, ids=lambda one: one.name)
RATES = [0.1, 0.5, 0.9]


def _keep(p, seed, *, batch=slice(0, 1), heads=slice(0, 1), rows=512, columns=512):
    drop = Dropout(p, torch.tensor(seed))
    rows, columns = (x if isinstance(x, torch.Tensor) else torch.arange(x) for x in (rows, columns))
    return drop.keep(batch, heads, rows, columns)


def _generator(seed):
    return torch.Generator().manual_seed(seed)


def _inputs(n=150, width=4, dtype=torch.float64):
    return tuple(torch.randn(2, 2, n, width, generator=_generator(s), dtype=dtype) for s in range(3))


def _is_chance(kept, p, sigmas=5.0):
    """So many kept of so many are likely with the probability p."""
    kept = kept.double()
    spread = math.sqrt(p * (1 - p) / kept.numel())
    assert abs(float(kept.mean()) - p) < sigmas * spread


SEEDS = [0, 1, -1, 2, 3, 12345, 2**61 + 7, -(2**62), 2**17, 2**32]


def test_as_many_are_kept_as_asked():
    for case in sweep(itertools.product(RATES, SEEDS)):
        with case as (p, seed):
            keep = _keep(p, seed, batch=slice(0, 2), heads=slice(0, 2))
            _is_chance(keep, 1 - p)
            # Rows and columns each, against the binomial's spread: neither all alike nor some that are always dropped.
            for dim in (-1, -2):
                counts = keep.sum(dim).double()
                assert abs(float(counts.var()) / (512 * p * (1 - p)) - 1) < 0.2
                assert float((counts - 512 * (1 - p)).abs().max()) < 6 * math.sqrt(512 * p * (1 - p))


@pytest.mark.parametrize("p", RATES)
def test_neighbours_know_nothing_of_each_other(p):
    shifts = [(0, 1), (1, 0), (1, 1), (1, -1), (0, 16), (16, 0), (0, 128), (128, 0), (64, 64)]
    for case in sweep(itertools.product(SEEDS, shifts)):
        with case as (seed, shift):
            keep = _keep(p, seed)[0, 0]
            other = keep.roll(shift, (0, 1))
            _is_chance(keep & other, (1 - p) ** 2)


def test_the_corners_of_rectangles_know_nothing_of_each_other():
    for case in sweep(itertools.product(RATES, SEEDS)):
        with case as (p, seed):
            # Rows and columns are hashed apart: the fourth corner must not follow from the other three.
            keep = _keep(p, seed)[0, 0]
            for down, right in ((1, 1), (2, 3), (16, 16), (128, 64), (255, 1)):
                corners = [keep.roll(by, (0, 1)) for by in ((0, 0), (down, 0), (0, right), (down, right))]
                _is_chance(torch.stack(corners).all(0), (1 - p) ** 4, sigmas=6)
                parity = torch.stack(corners).sum(0) % 2
                _is_chance(parity == 0, (1 + (2 * p - 1) ** 4) / 2, sigmas=6)


def test_the_spectrum_is_flat():
    for case in sweep(RATES):
        with case as p:
            keep = _keep(p, 3)[0, 0].double().numpy() - (1 - p)
            power = np.abs(np.fft.fft2(keep)) ** 2 / (keep.size * p * (1 - p))
            # Each is exponential with mean 1: of 2¹⁸ the largest is about ln 2¹⁸ = 12.5.
            assert power.max() < 25
            assert np.abs(power.reshape(64, 8, 64, 8).mean((1, 3)) - 1).max() < 1


def test_what_differs_drops_other_weights():
    for case in sweep(["batch", "head", "batch and head", "seed", "seed of the next bit", "far rows"]):
        with case as other:
            keep = _keep(0.5, 7)
            different = {
                "batch": lambda: _keep(0.5, 7, batch=slice(1, 2)),
                "head": lambda: _keep(0.5, 7, heads=slice(1, 2)),
                "batch and head": lambda: _keep(0.5, 7, batch=slice(3, 4), heads=slice(5, 6)),
                "seed": lambda: _keep(0.5, 8),
                "seed of the next bit": lambda: _keep(0.5, 7 + 2**40),
                "far rows": lambda: _keep(0.5, 7, rows=torch.arange(512) + 2**20),
            }[other]()
            _is_chance(keep == different, 0.5)


def test_a_tile_is_a_part_of_the_whole_whatever_its_order():
    whole = _keep(0.3, 5, batch=slice(0, 3), heads=slice(0, 4), rows=64, columns=80)
    rows, columns = torch.tensor([[3, 9], [60, 61]]), torch.tensor([[70, 2, 3], [0, 1, 79]])
    part = _keep(0.3, 5, batch=slice(1, 3), heads=slice(2, 4), rows=rows, columns=columns)
    assert part.shape == (2, 2, 2, 2, 3)
    for item in range(2):
        at = np.ix_(range(1, 3), range(2, 4), rows[item], columns[item])
        assert torch.equal(part[:, :, item], whole[at])


def test_more_is_kept_where_less_is_dropped():
    some, more = _keep(0.5, 1), _keep(0.2, 1)
    assert (more | ~some).all()


@every_backend
def test_a_kept_weight_is_divided_by_its_chance(backend):
    for case in sweep([None, masks.Causal(), masks.Prefix(128)]):
        with case as mask:
            n, p = 150, 0.3
            q, k, _ = _inputs(n)
            eye = torch.eye(n, dtype=torch.float64).expand(2, 2, n, n)  # with these values the output is the weights
            weights = regard.attention(q, k, eye, mask=mask)
            dropped = regard.attention(q, k, eye, mask=mask, dropout=p, generator=_generator(0), backend=backend.name)
            kept = dropped != 0
            torch.testing.assert_close(dropped, weights / (1 - p) * kept)
            _is_chance(kept[weights > 0], 1 - p)
            for other in (kept.roll(1, 0), kept.roll(1, 1)):
                assert not torch.equal(kept, other)  # sequences and heads differ


@every_backend
def test_the_mean_over_seeds_is_the_output_without_dropout(backend):
    q, k, v = _inputs(60)
    generator, calls = _generator(0), 400
    runs = torch.stack(
        [regard.attention(q, k, v, dropout=0.4, generator=generator, backend=backend.name) for _ in range(calls)]
    )
    exact = regard.attention(q, k, v)
    error = (runs.mean(0) - exact) / (runs.std(0) / calls**0.5)
    assert error.abs().max() < 5
    assert 0.9 < float(error.std()) < 1.1


@every_backend
def test_the_seed_comes_from_the_generator(backend):
    q, k, v = _inputs()

    def run(generator):
        return regard.attention(q, k, v, dropout=0.5, generator=generator, backend=backend.name)

    generator = _generator(1)
    first, second = run(generator), run(generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, run(_generator(1)))
    assert not torch.equal(first, run(_generator(2)))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        assert torch.equal(first, run(None))  # PyTorch's own generator
    state = torch.get_rng_state()
    run(_generator(1))
    assert torch.equal(state, torch.get_rng_state())  # which is left alone where another is given


def test_backends_drop_the_same_weights():
    q, k, v = (x.requires_grad_() for x in _inputs(300))
    seen = masks.Causal() & masks.Window(70)
    results = []
    for backend in DROPPING:
        out = regard.attention(
            q, k, v, mask=seen, dropout=0.5, generator=_generator(4), backend=backend.name, score=ScaledDot(softcap=3.0)
        )
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    assert len(results) == 2
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@every_backend
def test_the_backward_drops_what_the_forward_dropped(backend):
    q, k, v = (x.requires_grad_() for x in _inputs(40))

    def run(*inputs):
        return regard.attention(*inputs, dropout=0.5, generator=_generator(3), backend=backend.name)

    up = torch.randn(2, 2, 40, 4, generator=_generator(9), dtype=torch.float64)
    grads = torch.autograd.grad((run(q, k, v) * up).sum(), (q, k, v))
    for at, grad in enumerate(grads):
        step = torch.randn(grad.shape, generator=_generator(at), dtype=torch.float64)
        ends = [run(*(x + sign * 1e-5 * step if n == at else x for n, x in enumerate((q, k, v)))) for sign in (1, -1)]
        slope = ((ends[0] - ends[1]) * up).sum() / 2e-5
        torch.testing.assert_close(slope, (grad * step).sum(), rtol=1e-7, atol=1e-8)


@every_backend
def test_dropped_weights_get_no_gradient(backend):
    n = 60
    q, k, _ = _inputs(n)
    values = torch.eye(n, dtype=torch.float64).expand(2, 2, n, n).clone().requires_grad_()
    out = regard.attention(q, k, values, dropout=0.5, generator=_generator(0), backend=backend.name)
    row = torch.autograd.grad(out[0, 1, 7].sum(), values)[0][0, 1]
    assert torch.equal(row.any(-1), out[0, 1, 7] != 0)


@every_backend
def test_returned_weights_are_those_before_dropout(backend):
    q, k, v = _inputs(20)
    if backend.refuses(Problem.of(q, k, v, return_weights=True)) is None:
        _, weights = regard.attention(
            q, k, v, dropout=0.5, generator=_generator(0), return_weights=True, backend=backend.name
        )
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 20, dtype=torch.float64))
