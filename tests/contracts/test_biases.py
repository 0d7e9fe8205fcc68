"""Every bias answers alike for pairs and for tiles, its tensors get gradients, and its docstring shows its numbers."""

import doctest
import inspect
import itertools
import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from regard import attention, positions
from regard.errors import InputError
from regard.positions import Bias, Relative
from regard.values import flatten, tensors, unflatten
from sweeps import sweep

BATCH, HEADS, QUERIES, KEYS = 2, 3, 9, 12
START = KEYS - QUERIES
RANDOM = np.random.default_rng(0)
DENSE = RANDOM.standard_normal((BATCH, HEADS, QUERIES, KEYS))
SLOPES = RANDOM.standard_normal(HEADS)
T5 = RANDOM.standard_normal((8, HEADS))
TABLE = RANDOM.standard_normal((7, HEADS))
GRID = RANDOM.standard_normal((5 * 7, HEADS))
CUBE = RANDOM.standard_normal((3 * 3 * 5, HEADS))
CENTER = RANDOM.uniform(0, KEYS, (BATCH, QUERIES))


def _t5(distance, bidirectional):
    """The bucket of one distance, 8 of them up to 16, found by counting which thresholds it passes."""
    side = 4 if bidirectional else 8
    far = abs(distance) if bidirectional else max(distance, 0)
    exact = side // 2
    steps = [math.ceil(exact * (16 / exact) ** (n / (side - exact))) for n in range(1, side - exact)]
    bucket = far if far < exact else exact + sum(far >= step for step in steps)
    return bucket + (side if bidirectional and distance < 0 else 0)


def _grid(shape, i, j):
    """The row of the table, from two cells that numpy finds."""
    far = [a - b + size - 1 for a, b, size in zip(*(np.unravel_index(x, shape) for x in (i, j)), shape, strict=True)]
    return np.ravel_multi_index(np.broadcast_arrays(*far), [2 * size - 1 for size in shape])


# For every bias: some of its values, each with the rule written once more in numpy (query position i, key position j).
# A new bias needs one entry here; everything below then holds for it too.
EXAMPLES = {
    "ALiBi": [
        (positions.ALiBi(HEADS), lambda b, h, i, j: -np.array([1 / 16, 1 / 256, 1 / 4])[h] * (i - j)),
        (positions.ALiBi(HEADS, torch.tensor(SLOPES)), lambda b, h, i, j: -SLOPES[h] * (i - j)),
        (positions.ALiBi(HEADS, torch.tensor(SLOPES), True), lambda b, h, i, j: -SLOPES[h] * abs(i - j)),
    ],
    "DenseBias": [
        (positions.DenseBias(torch.tensor(DENSE)), lambda b, h, i, j: DENSE[b, h, i - START, j]),
        (positions.DenseBias(torch.tensor(DENSE[0, 0, :, :1])), lambda b, h, i, j: DENSE[0, 0, i - START, 0] + 0 * j),
    ],
    "Gaussian": [
        (
            positions.Gaussian(torch.tensor(CENTER), radius=3),
            lambda b, h, i, j: np.exp(-((j - CENTER[b, i - START]) ** 2) / (2 * 1.5**2)),
        ),
        (
            positions.Gaussian(torch.tensor(CENTER[:1]), radius=2.5),
            lambda b, h, i, j: np.exp(-((j - CENTER[0, i - START]) ** 2) / (2 * 1.25**2)),
        ),
    ],
    "RelativePositionBiasND": [
        (positions.RelativePositionBiasND(torch.tensor(GRID), (3, 4)), lambda b, h, i, j: GRID[_grid((3, 4), i, j), h]),
        (
            positions.RelativePositionBiasND(torch.tensor(CUBE), (2, 2, 3)),
            lambda b, h, i, j: CUBE[_grid((2, 2, 3), i, j), h],
        ),
    ],
    "RelativePositionBias": [
        (positions.RelativePositionBias(torch.tensor(TABLE)), lambda b, h, i, j: TABLE[np.clip(i - j, -3, 3) + 3, h]),
        (positions.RelativePositionBias(torch.tensor(TABLE[:1])), lambda b, h, i, j: TABLE[0 * (i - j), h]),
    ],
    "T5Bias": [
        (
            positions.T5Bias(torch.tensor(T5), bidirectional=side, max_distance=16),
            lambda b, h, i, j, side=side: T5[np.vectorize(lambda far: _t5(far, side))(i - j), h],
        )
        for side in (False, True)
    ],
}
ALL = {
    f"{name}-{n}": (bias.resolve(QUERIES, KEYS, START), rule)
    for name, many in EXAMPLES.items()
    for n, (bias, rule) in enumerate(many)
}
HOLDING = [name for name, (bias, _) in ALL.items() if tensors(bias)]
ROWS, COLUMNS = torch.arange(START, KEYS), torch.arange(KEYS)
WHOLE = slice(0, BATCH), slice(0, HEADS)


def _matrix(rule):
    at = np.ix_(range(BATCH), range(HEADS), range(START, KEYS), range(KEYS))
    return torch.tensor(np.broadcast_to(rule(*at), (BATCH, HEADS, QUERIES, KEYS)).copy())


def _pairs(bias, dtype=torch.int64):
    return bias(
        *(torch.tensor(x, dtype=dtype) for x in np.ix_(range(BATCH), range(HEADS), range(START, KEYS), COLUMNS))
    )


def _full(values):
    return values.expand(BATCH, HEADS, QUERIES, KEYS)


def _exported():
    members = {name: getattr(positions, name) for name in positions.__all__}
    return {name for name, one in members.items() if inspect.isclass(one) and issubclass(one, Bias)}


def test_every_exported_bias_is_tested_here():
    assert _exported() - {"Bias", "Relative"} == set(EXAMPLES)


def test_a_bias_is_its_rule():
    for case in sweep(ALL):
        with case as name:
            bias, rule = ALL[name]
            torch.testing.assert_close(
                _full(bias.tile(*WHOLE, ROWS, COLUMNS)).double(), _matrix(rule), rtol=1e-12, atol=1e-12
            )


def test_pairs_and_tiles_agree():
    for case in sweep(itertools.product(ALL, [torch.int64, torch.int32])):
        with case as (name, dtype):
            bias, _ = ALL[name]
            tile, pairs = bias.tile(*WHOLE, ROWS.to(dtype), COLUMNS.to(dtype)), _pairs(bias, dtype)
            assert tile.dtype == pairs.dtype
            assert torch.equal(_full(tile), _full(pairs))


def test_one_pair_can_be_asked_alone():
    for case in sweep(ALL):
        with case as name:
            bias, rule = ALL[name]
            at = [torch.tensor(x) for x in (1, 2, START + 4, 7)]
            torch.testing.assert_close(bias(*at).double(), _matrix(rule)[1, 2, 4, 7], rtol=1e-12, atol=1e-12)


def test_a_tile_is_a_part_of_the_whole():
    for case in sweep(ALL):
        with case as name:
            bias, rule = ALL[name]
            part = bias.tile(slice(1, 2), slice(1, 3), ROWS[2:7], COLUMNS[5:])
            torch.testing.assert_close(
                part.expand(1, 2, 5, 7).double(), _matrix(rule)[1:2, 1:3, 2:7, 5:], rtol=1e-12, atol=1e-12
            )


def test_leading_says_what_differs():
    for case in sweep(ALL):
        with case as name:
            bias, rule = ALL[name]
            batch, heads = bias.leading
            assert bias.tile(*WHOLE, ROWS, COLUMNS).shape == (batch, heads, QUERIES, KEYS)
            whole = _matrix(rule)
            assert torch.equal(whole, whole[: 1 if batch == 1 else None, : 1 if heads == 1 else None].expand_as(whole))


def test_a_relative_bias_knows_the_distance_alone():
    for case in sweep([name for name, (bias, _) in ALL.items() if isinstance(bias, Relative)]):
        with case as name:
            bias, _ = ALL[name]
            torch.testing.assert_close(
                bias.tile(*WHOLE, ROWS + 1000, COLUMNS + 1000), bias.tile(*WHOLE, ROWS, COLUMNS), rtol=0, atol=0
            )
            assert bias.diagonals(torch.tensor([3, -2])).shape == (HEADS, 2)


def test_a_bias_of_ones_own_may_know_the_key_alone():
    class Far(Bias):
        def __call__(self, batch, head, i, j):
            return j.double()

    assert torch.equal(Far().tile(*WHOLE, ROWS, COLUMNS), COLUMNS.double().expand(1, 1, QUERIES, KEYS))


def test_what_is_no_relative_bias_does_not_know_it():
    assert {name for name in EXAMPLES if issubclass(getattr(positions, name), Relative)} == {
        "ALiBi",
        "RelativePositionBias",
        "T5Bias",
    }


def test_tensors_in_a_bias_get_gradients():
    for case in sweep(HOLDING):
        with case as name:
            bias, _ = ALL[name]
            up = torch.tensor(RANDOM.standard_normal((BATCH, HEADS, QUERIES, KEYS)))
            grads = []
            for numbers in (lambda one: one.tile(*WHOLE, ROWS, COLUMNS), _pairs):
                held = [one.clone().requires_grad_() for one in tensors(bias)]
                grads.append(torch.autograd.grad((_full(numbers(unflatten(flatten(bias)[1], held))) * up).sum(), held))
            for tile, pairs in zip(*grads, strict=True):
                assert tile.dtype == torch.float64
                torch.testing.assert_close(tile, pairs, rtol=1e-12, atol=1e-12)
                assert tile.abs().max() > 0


def test_gradients_are_those_of_small_steps():
    for case in sweep(HOLDING):
        with case as name:
            bias, _ = ALL[name]
            held = [one.clone().requires_grad_() for one in tensors(bias)]
            assert torch.autograd.gradcheck(
                lambda *new, bias=bias: unflatten(flatten(bias)[1], new).tile(*WHOLE, ROWS[:3], COLUMNS[:4]), held
            )


def test_the_door_adds_it():
    for case in sweep([name for name, (bias, _) in ALL.items() if bias.role != "weight_factor"]):
        with case as name:
            bias, rule = ALL[name]
            torch.manual_seed(0)
            q, k, v = (torch.randn(BATCH, HEADS, n, 4, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
            w = torch.softmax(q @ k.mT / 2 + _matrix(rule), -1)
            torch.testing.assert_close(attention(q, k, v, bias=bias), w @ v, rtol=1e-10, atol=1e-10)


def test_the_door_multiplies_by_it():
    for case in sweep([name for name, (bias, _) in ALL.items() if bias.role != "bias"]):
        with case as name:
            bias, rule = ALL[name]
            torch.manual_seed(0)
            q, k, v = (torch.randn(BATCH, HEADS, n, 4, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
            w = torch.softmax(q @ k.mT / 2, -1) * _matrix(rule)
            torch.testing.assert_close(
                attention(q, k, v, weight_factor=bias, backend="reference"), w @ v, rtol=1e-10, atol=1e-10
            )


def test_narrow_tensors_serve_narrow_queries():
    for case in sweep([name for name in HOLDING if "DenseBias" not in name]):
        with case as name:
            bias, _ = ALL[name]
            narrow = unflatten(flatten(bias)[1], [one.to(torch.bfloat16) for one in tensors(bias)])
            exact = unflatten(flatten(bias)[1], [one.to(torch.bfloat16).double() for one in tensors(bias)])
            torch.testing.assert_close(
                narrow.tile(*WHOLE, ROWS, COLUMNS).double(),
                exact.tile(*WHOLE, ROWS, COLUMNS).double(),
                rtol=1e-6,
                atol=1e-6,
            )
            x = torch.zeros(BATCH, HEADS, KEYS, 4, dtype=torch.bfloat16)
            place = "weight_factor" if bias.role == "weight_factor" else "bias"
            assert attention(x[:, :, START:], x, x, **{place: narrow}).dtype == torch.bfloat16


def test_every_public_name_shows_an_example():
    for case in sweep(sorted(set(positions.__all__) - {"Bias", "Relative", "Rotary", "Scaling"})):
        with case as name:
            assert doctest.DocTestParser().get_examples(inspect.getdoc(getattr(positions, name)) or ""), name


def test_a_bias_is_frozen():
    for case in sweep(EXAMPLES):
        with case as name:
            bias = EXAMPLES[name][0][0]
            with pytest.raises(AttributeError, match="cannot assign"):
                setattr(bias, fields(bias)[0].name, None)


def test_a_bias_in_the_place_of_a_factor_is_refused_with_its_place():
    """A bell added to the scores hides nothing, slopes as factors turn weights negative: neither fails by itself."""
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(
        InputError, match="`bias` cannot be Gaussian, which multiplies the weights: pass it as `weight_factor=`"
    ):
        attention(q, q, q, bias=positions.Gaussian(torch.zeros(1, 3), radius=1))
    for bias in (positions.ALiBi(2), positions.T5Bias(torch.zeros(32, 2), bidirectional=True)):
        with pytest.raises(
            InputError, match=f"`weight_factor` cannot be {type(bias).__name__}, which is added to the scores"
        ):
            attention(q, q, q, weight_factor=bias)
