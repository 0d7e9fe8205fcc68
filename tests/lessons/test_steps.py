"""One head worked out: against arithmetic by hand, and the published worked examples."""

import math
from fractions import Fraction

import numpy as np
import pytest

from regard.errors import InputError
from regard.lessons.steps import CapturedHead, work, work_captured, work_from
from regard.record.tokens import Token
from sweeps import sweep

X = [[1, 0, 1, 0], [0, 2, 0, 1], [1, 1, 1, 1]]
W = [[1, 0], [0, 1], [1, 0], [0, 1]]


def by_hand(x, w):
    """Attention in Python fractions up to the softmax, then math.exp: no numpy, nothing of regard."""

    def dot(left, right):
        return sum(a * b for a, b in zip(left, right, strict=True))

    def columns(matrix):
        return list(zip(*matrix, strict=True))

    projected = [[dot(map(Fraction, row), column) for column in columns(w)] for row in x]
    scores = [[dot(query, key) for key in projected] for query in projected]
    powers = [[math.exp(score / math.sqrt(len(w[0]))) for score in row] for row in scores]
    weights = [[power / sum(row) for power in row] for row in powers]
    output = [[dot(row, map(float, column)) for column in columns(projected)] for row in weights]
    return projected, scores, weights, output


def test_the_three_token_example_is_the_arithmetic_by_hand():
    projected, scores, weights, output = by_hand(X, W)
    assert projected == [[2, 0], [0, 3], [2, 2]]
    assert scores == [[4, 0, 4], [0, 9, 6], [4, 6, 8]]

    worked = work(X, W, W, W, ["我", "爱", "你"])
    for found in (worked.queries, worked.keys, worked.values):
        assert found.tolist() == projected
    assert worked.scores.tolist() == scores
    np.testing.assert_allclose(worked.scaled, np.array(scores, dtype=float) / 2**0.5, rtol=1e-15)
    np.testing.assert_allclose(worked.weights, weights, rtol=1e-14)
    np.testing.assert_allclose(worked.output, output, rtol=1e-14)
    # e^2.828 = 16.92, e^6.364 = 580.4, e^4.243 = 69.59, e^5.657 = 286.2
    first, second, third = worked.weights
    np.testing.assert_allclose(first, np.array([16.92, 1, 16.92]) / 34.84, atol=1e-4)
    np.testing.assert_allclose(second, np.array([1, 580.4, 69.59]) / 650.99, atol=1e-4)
    np.testing.assert_allclose(third, np.array([16.92, 69.59, 286.2]) / 372.71, atol=1e-4)


def test_the_weights_that_pages_print_for_this_example_are_not_its_softmax():
    """Widely copied pages print these rows for it; no scale whatever yields the first one, in which 4, 0, 4 scaled by s
    would need e^(4s) = .43/.14 and the third, 4, 6, 8, e^(4s) = .69/.05. Only the .05 agrees with the arithmetic."""
    printed = [[0.43, 0.14, 0.43], [0.01, 0.71, 0.28], [0.05, 0.26, 0.69]]
    weights = np.array(by_hand(X, W)[2])
    agrees = np.abs(weights - printed) <= 0.005
    assert np.argwhere(agrees).tolist() == [[2, 0]]
    assert math.log(0.43 / 0.14) / 4 == pytest.approx(0.28, abs=0.005)
    assert math.log(0.69 / 0.05) / 4 == pytest.approx(0.66, abs=0.005)


def thinking_machines():
    """Alammar's illustrated transformer: q₁·k₁ = 112, q₁·k₂ = 96, d = 64, so 14 and 12, and weights .88 and .12."""
    queries = [[1.0] * 64, [0.5] * 64]
    keys = [[1.75] * 64, [1.5] * 64]
    return work_from(queries, keys, [[10, 0], [0, 100]], ["Thinking", "Machines"])


def test_thinking_machines_has_four_scores_and_one_weighted_sum_a_token():
    worked = thinking_machines()
    assert worked.scores.tolist() == [[112, 96], [56, 48]]
    assert worked.scaled.tolist() == [[14, 12], [7, 6]]
    w11 = 1 / (1 + math.exp(-2))
    assert worked.weights[0].round(2).tolist() == [0.88, 0.12]
    np.testing.assert_allclose(worked.weights[0], [w11, 1 - w11], rtol=1e-14)
    np.testing.assert_allclose(worked.output[0], [w11 * 10 + 0, 0 + (1 - w11) * 100], rtol=1e-13)
    assert worked.output[0].round(2).tolist() == [8.81, 11.92]


def test_hidden_keys_have_no_weight_and_a_row_that_sees_nothing_is_zero():
    visible = np.array([[True, False], [False, False]])
    worked = work_from([[1.0], [1.0]], [[5.0], [9.0]], [[2.0], [3.0]], visible=visible)
    assert worked.weights.tolist() == [[1, 0], [0, 0]]
    assert worked.output.tolist() == [[2], [0]]


def test_a_bias_of_minus_infinity_hides():
    worked = work_from(
        [[1.0]], [[0.0], [0.0], [9.0]], [[1.0], [2.0], [3.0]], bias=np.array([0.0, math.log(3), -np.inf])
    )
    assert worked.visible.tolist() == [[True, True, False]]
    np.testing.assert_allclose(worked.weights, [[0.25, 0.75, 0]], rtol=1e-14)


def test_scale_comes_before_cap_and_cap_before_bias():
    worked = work_from([[2.0]], [[3.0], [0.0]], [[1.0], [0.0]], scale=0.5, softcap=2.0, bias=np.array([1.0, 0.0]))
    assert worked.scaled.tolist() == [[3, 0]]
    logit = 2 * math.tanh(3 / 2) + 1
    np.testing.assert_allclose(worked.logits, [[logit, 0]], rtol=1e-15)
    np.testing.assert_allclose(worked.weights[0, 0], math.exp(logit) / (math.exp(logit) + 1), rtol=1e-14)


def test_a_sink_takes_weight_and_gives_nothing():
    worked = work_from([[1.0]], [[0.0], [0.0]], [[6.0], [6.0]], sink=math.log(2))
    np.testing.assert_allclose(worked.weights, [[0.25, 0.25]], rtol=1e-15)
    np.testing.assert_allclose(worked.output, [[3.0]], rtol=1e-15)


def test_scores_in_the_thousands_do_not_overflow():
    worked = work_from([[1000.0]], [[1000.0], [999.999]], [[1.0], [0.0]], scale=1.0)
    np.testing.assert_allclose(worked.weights[0, 1] / worked.weights[0, 0], math.exp(-1), rtol=1e-9)


def captured(rows=4):
    random = np.random.default_rng(3)
    tokens = tuple(Token(text, word=index) for index, text in enumerate("abcd"))
    queries, keys, values = random.normal(size=(rows, 2)), random.normal(size=(4, 2)), random.normal(size=(4, 3))
    visible = np.tril(np.ones((rows, 4), dtype=bool), k=4 - rows)
    return CapturedHead(tokens, queries, keys, values, visible=visible, bias=random.normal(size=(rows, 4)))


@pytest.mark.parametrize("rows", [4, 2])
def test_one_row_of_a_captured_head_is_that_row_of_the_whole(rows):
    head = captured(rows)
    whole, alone = work_captured(head), work_captured(head.row(1))
    np.testing.assert_allclose(alone.weights[0], whole.weights[1], rtol=1e-14)
    np.testing.assert_allclose(alone.output[0], whole.output[1], rtol=1e-14)
    assert alone.query_tokens == (whole.query_tokens[1],)
    assert alone.first_query == whole.first_query + 1


def test_fewer_queries_than_keys_are_the_last_ones():
    worked = work_captured(captured(2))
    assert worked.query_tokens == ("c", "d")
    assert worked.first_query == 2


UNFIT = [
    ([[1, 2]], [[1], [2], [3]], r"`w_query` must have as many rows as `x` has columns \(2\), got .* \(3, 1\)"),
    ([[1, 2], [3]], [[1]], "`x` must be a matrix of numbers with rows of one length"),
    ([[1, float("nan")]], [[1], [2]], "`x` must hold finite numbers, got nan in row 1, column 2"),
    ([[1e308, 1e308]], [[1], [2]], "`x` times `w_query` must be finite, got products too large"),
    ([], [[1]], r"`x` must be a matrix \(rows and columns\), got shape \(0,\)"),
    ([[1e200]], [[1]], "products too large"),
]


def test_numbers_that_do_not_fit_are_refused():
    for case in sweep(UNFIT):
        with case as (x, w, words), pytest.raises(InputError, match=words):
            work(x, w, w, w)


def test_shapes_of_queries_keys_values_masks_and_names_are_checked():
    with pytest.raises(InputError, match="one width"):
        work_from([[1, 2]], [[1]], [[1]])
    with pytest.raises(InputError, match="every key needs its value"):
        work_from([[1]], [[1], [2]], [[1]])
    with pytest.raises(InputError, match=r"`visible` must have the shape \(queries, keys\) = \(1, 2\), got \(3,\)"):
        work_from([[1]], [[1], [2]], [[1], [2]], visible=np.array([True, True, False]))
    with pytest.raises(InputError, match="`tokens` must name each of the 2 rows, got 1"):
        work_from([[1], [2]], [[1], [2]], [[1], [2]], ["a"])
