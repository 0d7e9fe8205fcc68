"""The experiment on scores: variance, softmax and gradient by the width, and the row of scores that a reader types."""

import itertools
from decimal import Decimal, localcontext

import pytest
import torch

from chromium import needs_chromium
from lessons.page_functions import call, page_functions

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def functions():
    with page_functions() as tab:
        yield tab


def uniform(seed):
    """The generator of the page (mulberry32) in Python's integers."""
    state = seed
    while True:
        state = (state + 0x6D2B79F5) % 2**32
        mixed = (state ^ state >> 15) * (1 | state) % 2**32
        mixed = (mixed + (mixed ^ mixed >> 7) * (61 | mixed)) % 2**32 ^ mixed
        yield ((mixed ^ mixed >> 14) % 2**32) / 2**32


def test_the_experiment_measures_random_queries_and_keys(functions):
    """The same random numbers in torch, with the gradient by its automatic differentiation."""
    queries, keys = 512, 8
    found = call(functions, "experiment", 1, 16)
    assert [result["width"] for result in found] == [1, 2, 4, 8, 16]
    numbers = torch.tensor(list(itertools.islice(uniform(1), 16 * queries * (1 + keys))), dtype=torch.float64)
    numbers = (2 * numbers - 1).mul(3**0.5).view(16, queries, 1 + keys)
    for result in found:
        width = result["width"]
        products = torch.einsum("dq,dqk->qk", numbers[:width, :, 0], numbers[:width, :, 1:])
        assert result["variance"] == pytest.approx(float(products.square().mean()), rel=1e-12)
        distances = torch.zeros(queries, dtype=torch.float64)
        rows = {}
        for name, factor in (("plain", 1.0), ("divided", width**-0.5)):
            weights = (products * factor).softmax(-1)
            jacobians = torch.vmap(torch.func.jacrev(lambda row: row.softmax(-1)))(products * factor)
            wanted = {
                "largest": weights.amax(-1).mean(),
                "entropy": torch.special.entr(weights).sum(-1).mean(),
                "gradient": torch.linalg.matrix_norm(jacobians).mean(),
            }
            for measure, value in wanted.items():
                assert result[name][measure] == pytest.approx(float(value), rel=1e-9), (width, name, measure)
            distances += (weights.amax(-1) - weights.amax(-1).mean()).abs()
            rows[name] = weights
        usual = int(distances.argmin())
        assert result["query"] == usual
        for name, weights in rows.items():
            assert result[name]["weights"] == pytest.approx(weights[usual].tolist(), rel=1e-9)


def test_variance_grows_with_the_width_and_the_division_keeps_the_gradient(functions):
    for seed in (1, 2, 3):
        found = call(functions, "experiment", seed, 1024)
        assert [result["width"] for result in found] == [2**power for power in range(11)]
        for result in found:
            assert result["variance"] / result["width"] == pytest.approx(1, abs=0.15)
        for result in found[1:]:
            assert result["divided"]["gradient"] == pytest.approx(0.366, abs=0.02)
            assert result["divided"]["largest"] < 0.4
            for kind in ("plain", "divided"):  # the query whose bars are drawn is no exception
                assert max(result[kind]["weights"]) == pytest.approx(result[kind]["largest"], abs=0.03)
        assert found[-1]["plain"]["gradient"] < 0.07
        assert found[-1]["plain"]["largest"] > 0.95
        assert call(functions, "experiment", seed, 1024) == found


@pytest.mark.parametrize("scores", [[100, 1, 1], [10, 1, 1], [1, 1, 1], [0], [-400, 3], [2, 0.5, -1, 0]], ids=str)
def test_softmax_keeps_what_is_beside_the_1(functions, scores):
    """Decimals of 400 digits have room for 1 − 2e-43 and for a gradient of 3e-43, of which float64 has the 2e-43."""
    script = """scores => {
        const { weights } = lesson.softmaxParts(scores, scores.map(() => 1));
        return { weights, left: lesson.complements(weights), size: lesson.gradientSize(weights),
                 rows: lesson.jacobian(weights) };
    }"""
    found = functions.evaluate(script, scores)
    with localcontext() as context:
        context.prec = 400
        powers = [Decimal(score).exp() for score in scores]
        weights = [power / sum(powers) for power in powers]
        table = [[p * (int(i == j) - q) for j, q in enumerate(weights)] for i, p in enumerate(weights)]
        size = sum(entry * entry for row in table for entry in row).sqrt()
        left = [1 - weight for weight in weights]

    def near(numbers):
        return pytest.approx([float(number) for number in numbers], rel=1e-12, abs=1e-300)

    assert found["weights"] == near(weights)
    assert found["left"] == near(left)
    assert [found["size"]] == near([size])
    for row, wanted in zip(found["rows"], table, strict=True):
        assert row == near(wanted)


def test_softmax_of_100_1_1_is_1_less_2e_43(functions):
    weights = functions.evaluate("() => lesson.softmaxParts([100, 1, 1], [1, 1, 1]).weights")
    assert weights[0] == 1
    assert call(functions, "complements", weights)[0] == pytest.approx(2.0224e-43, rel=1e-4)
    assert call(functions, "gradientSize", weights) == pytest.approx(3.1978e-43, rel=1e-4)
