"""Changes of heads: Jensen–Shannon against SciPy-free arithmetic by hand, and what can and cannot be compared."""

import dataclasses
import math

import numpy as np
import pytest

from regard.errors import InputError, ObservationError
from regard.interpret.compare import compare_records, jensen_shannon
from regard.record.records import Layer, Record
from regard.record.tokens import Token
from sweeps import sweep


def layer(weights: np.ndarray, *, size: int = 1) -> Layer:
    """A layer that holds (heads, n, n); with a bin of more than 1 nothing is exact."""
    p = weights[None].astype(np.float32)
    order = np.argsort(-p, -1, kind="stable")
    keys = np.where(np.take_along_axis(p, order, -1) > 0, order, -1)
    logs = np.log(np.where(p > 0, p, 1))
    entropy = -(p * logs).sum(-1)
    tops = keys.astype(np.int32), np.sort(p, -1)[..., ::-1]
    return Layer("layer", "self", "text", "text", size, size, p, p, *tops, entropy, p.sum(-2))


def record(*layers: np.ndarray, words: str | None = None, size: int = 1) -> Record:
    tokens = {} if words is None else {"text": (tuple(Token(one) for one in words.split()),)}
    return Record(tuple(layer(one, size=size) for one in layers), tokens, "made")


def random_weights(seed: int, n: int, heads: int = 2) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.ones(n), (heads, n))


def slow_jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    total = 0.0
    for a, b in zip(p.tolist(), q.tolist(), strict=True):
        m = (a + b) / 2
        total += (a * math.log(a / m) if a else 0.0) / 2 + (b * math.log(b / m) if b else 0.0) / 2
    return total


def test_the_distance_is_the_sum_over_rows_of_jensen_shannon() -> None:
    one, other = random_weights(1, 5), random_weights(2, 5)
    found = compare_records(record(one, other), record(other, other), names=("a", "b"))
    assert found.rows == 5
    for head in range(2):
        expected = sum(slow_jensen_shannon(one[head, i], other[head, i]) for i in range(5))
        assert found.distance[0, head] == pytest.approx(expected, rel=1e-5)
        assert found.change[0, head] == pytest.approx(expected / 5 / math.log(2), rel=1e-5)
        assert found.change[1, head] == pytest.approx(0, abs=1e-9)


def test_jensen_shannon_is_even_bounded_and_counts_what_a_sink_took() -> None:
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    assert jensen_shannon(p, q) == pytest.approx(slow_jensen_shannon(p, q))
    assert jensen_shannon(p, q) == jensen_shannon(q, p)
    assert jensen_shannon(np.array([1.0, 0]), np.array([0, 1.0])) == pytest.approx(math.log(2))
    few = np.array([1 - 5e-5, 0]), np.array([1.0, 0])  # 5e-5 went to the sink of one
    assert jensen_shannon(*few) == pytest.approx(slow_jensen_shannon(*(np.append(one, 1 - one.sum()) for one in few)))
    # The sink took all of one row and nothing of the other.
    assert jensen_shannon(np.array([0.0, 0.0]), np.array([0.5, 0.5])) == pytest.approx(math.log(2))
    assert jensen_shannon(np.zeros(2), np.zeros(2)) == 0


OTHER_WORDS = [
    ("a b c d", 4, "4 of 4 tokens are equal at equal positions"),
    ("a b x y", 4, "2 of 4 tokens are equal at equal positions"),
    ("a x y z", 0, "only 1 of 4 tokens are equal"),
    ("b c d a", 0, "only 0 of 4 tokens are equal"),
]


def test_rows_are_compared_where_half_of_the_tokens_stand_at_their_places() -> None:
    for case in sweep(OTHER_WORDS):
        with case as (words, rows, why):
            weights = random_weights(1, 4)
            found = compare_records(record(weights, words="a b c d"), record(weights, words=words), names=("a", "b"))
            assert found.rows == rows
            assert why in found.why
            np.testing.assert_allclose(found.change, 0, atol=1e-9)


def test_texts_of_other_lengths_are_compared_by_the_largest_difference_of_a_share() -> None:
    before, after = np.stack([np.eye(4)] * 2), np.stack([np.eye(6), np.full((6, 6), 1 / 6)])
    found = compare_records(record(before), record(after), names=("a", "b"))
    assert found.rows == 0
    assert "4 and 6 tokens" in found.why
    assert found.change[0, 0] == pytest.approx(0.25 - 1 / 6)  # the first token is a row's own in 1 of 4, 1 of 6 rows
    assert found.change[0, 1] == pytest.approx(5 / 6)
    assert found.moved(0, 1) == ("self", 1.0, pytest.approx(1 / 6))
    assert np.isnan(found.distance).all()


def test_what_cannot_be_compared_is_refused_with_the_way_out() -> None:
    one = record(random_weights(1, 4))
    with pytest.raises(InputError, match=r"1 layers of 2 heads \(a\) and 1 layers of 3 heads \(b\): score each"):
        compare_records(one, record(random_weights(1, 4, heads=3)), names=("a", "b"))
    with pytest.raises(InputError, match="same layers and heads"):
        compare_records(one, record(*[random_weights(1, 4)] * 2), names=("a", "b"))
    with pytest.raises(ObservationError, match='keep="weights"'):
        compare_records(one, record(random_weights(1, 4), size=2), names=("a", "b"))
    crossing = dataclasses.replace(one.layers[0], kind="cross")
    with pytest.raises(InputError, match="cross-attention"):
        compare_records(one, Record((crossing,)), names=("a", "b"))


def test_layers_have_the_model_s_numbers_and_must_be_the_same() -> None:
    """An atlas of one layer, or a model in which other layers have no attention."""
    one, other = record(random_weights(1, 5)), record(random_weights(2, 5))
    plain = compare_records(one, other, names=("a", "b"))
    third, fourth = (
        dataclasses.replace(of, layers=(dataclasses.replace(of.layers[0], number=number),))
        for of, number in ((one, 3), (other, 4))
    )
    same = dataclasses.replace(other, layers=(dataclasses.replace(other.layers[0], number=3),))
    found = compare_records(third, same, names=("a", "b"))
    assert found.change.shape == (4, 2)
    assert np.isnan(found.change[:3]).all()
    assert np.array_equal(found.change[3], plain.change[0])
    assert found.before.scores["self"][3, 0] == plain.before.scores["self"][0, 0]
    assert found.moved(3, 0) == plain.moved(0, 0)
    with pytest.raises(InputError, match=r"need the same layers, got 3 \(a\) and 4 \(b\)"):
        compare_records(third, fourth, names=("a", "b"))


def test_what_was_not_recorded_is_not_compared() -> None:
    one, other = random_weights(1, 5), random_weights(2, 5)
    rows = np.isin(np.arange(5), [1, 4])[:, None]
    whole, some, other_some = record(one), record(one * rows), record(other * rows)
    with pytest.raises(InputError, match=r"other rows were recorded, 2 \(a\) and 5 \(b\): .* the same `queries=`"):
        compare_records(some, whole, names=("a", "b"))
    found = compare_records(some, other_some, names=("a", "b"))
    for head in range(2):
        expected = sum(slow_jensen_shannon(one[head, i], other[head, i]) for i in (1, 4))
        assert found.distance[0, head] == pytest.approx(expected, rel=1e-5)
        assert found.change[0, head] == pytest.approx(expected / 2 / math.log(2), rel=1e-5)
        assert found.before.scores["self"][0, head] == pytest.approx((one[head, 1, 1] + one[head, 4, 4]) / 2)
    assert found.rows == 2
    chosen = dataclasses.replace(whole, layers=(dataclasses.replace(whole.layers[0], head_numbers=(1,)),))
    with pytest.raises(InputError, match=r"b has some heads only \(head 1 of a layer\).*without `heads=`"):
        compare_records(whole, chosen, names=("a", "b"))


def test_the_weight_on_the_first_token_is_that_of_the_recorded_rows() -> None:
    one, other = random_weights(1, 5), random_weights(2, 5)
    rows = np.isin(np.arange(5), [1, 4])[:, None]
    found = compare_records(record(one * rows), record(other * rows), names=("a", "b"))
    for scores, weights in ((found.before, one), (found.after, other)):
        assert np.abs(scores.scores["first"][0] - weights[:, [1, 4], 0].mean(1)).max() < 1e-6
