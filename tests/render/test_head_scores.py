"""Scores of heads as values: ranks, rules, counts, from arrays made by hand."""

import numpy as np
import pytest

from regard.errors import InputError
from regard.heads.change_loss_and_pairs import HeadChange, PairScores, WordPair
from regard.heads.scores import MEASURES, RULES, HeadScores, ranked

NAN = float("nan")


@pytest.fixture
def scores() -> HeadScores:
    """Two layers of three heads, the last of layer 1 missing; a causal model."""
    found = {
        "previous": [[0.90, 0.10, 0.20], [0.00, 0.55, NAN]],
        "next": [[NAN, NAN, NAN], [NAN, NAN, NAN]],
        "self": [[0.05, 0.10, 0.30], [0.00, 0.10, NAN]],
        "induction": [[0.00, 0.00, 0.00], [0.70, 0.00, NAN]],
        "first": [[0.05, 0.80, 0.31], [0.95, 0.60, NAN]],
        "sink": [[0.05, 0.80, 0.31], [0.95, 0.60, NAN]],
        "entropy": [[0.10, 0.20, 2.50], [0.05, 1.00, NAN]],
    }
    return HeadScores("made", {name: np.array(one) for name, one in found.items()}, 12, "random tokens")


def test_a_head_that_rests_on_the_first_token_is_named_by_what_it_does_else(scores: HeadScores) -> None:
    rules = [[scores.rule(layer, head) for head in range(3)] for layer in range(2)]
    assert rules[0] == ["previous", "first", "none"]
    assert rules[1][:2] == ["induction", "previous"]


def test_the_best_share_is_that_of_the_rule_or_the_largest(scores: HeadScores) -> None:
    np.testing.assert_array_equal(scores.best, [[0.90, 0.80, 0.31], [0.70, 0.55, NAN]])


def test_counts_add_up_to_the_heads_there_are(scores: HeadScores) -> None:
    assert scores.counts() == {"previous": 2, "next": 0, "self": 0, "induction": 1, "first": 1, "none": 1}
    assert sum(scores.counts().values()) == scores.there.sum() == 5


def test_the_sink_rate_is_the_share_of_heads_with_more_than_three_tenths_on_the_first_key(scores: HeadScores) -> None:
    assert scores.sink_rate == 4 / 5


def test_ranks_leave_out_what_has_no_number(scores: HeadScores) -> None:
    assert scores.top("first", 2) == [(1, 0, 0.95), (0, 1, 0.80)]
    assert scores.top("next") == []
    assert len(scores.top("entropy")) == 5
    assert scores.causal


def test_an_unknown_score_is_refused_by_name(scores: HeadScores) -> None:
    with pytest.raises(InputError, match=r"`sort` must be one of best, previous, .* got 'beauty'"):
        scores.top("beauty")


def test_equal_numbers_keep_the_order_of_layers_and_heads() -> None:
    assert [one[:2] for one in ranked(np.full((2, 2), 0.5))] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_every_test_has_a_formula_a_source_and_a_letter_of_its_own() -> None:
    assert all(one.formula and "arXiv" in one.source for one in (*RULES.values(), *MEASURES.values()))
    letters = [one.letter for one in RULES.values()]
    assert len(set(letters)) == len(letters) == 8


def test_a_head_for_all_pairs_is_weighed_by_its_weakest() -> None:
    weights = np.array([[[0.2, 0.8]], [[0.4, 0.6]]])
    pairs = WordPair("it", "animal", weights, 0.1), WordPair("它", "貓", weights[:1] / 2, 0.1)
    scores = PairScores("made", pairs, 3, 0)
    np.testing.assert_allclose(scores.pairs[0].mean, [[0.3, 0.7]])
    np.testing.assert_allclose(scores.pairs[0].spread, [[np.sqrt(0.02), np.sqrt(0.02)]])
    assert np.isnan(scores.pairs[1].spread).all()
    np.testing.assert_allclose(scores.all, [[0.1, 0.4]])


def test_the_sum_of_divergences_is_the_mean_times_the_rows(scores: HeadScores) -> None:
    change = HeadChange(("a", "b"), np.array([[0.5]]), scores, scores, 10, "why")
    assert change.distance[0, 0] == pytest.approx(0.5 * 10 * 0.6931471805599453)
    assert np.isnan(HeadChange(("a", "b"), np.array([[0.5]]), scores, scores, 0, "why").distance).all()


def test_what_has_moved_most_is_the_share_with_the_largest_difference(scores: HeadScores) -> None:
    after = {name: one.copy() for name, one in scores.scores.items()}
    after["self"][0, 0], after["previous"][0, 0], after["entropy"][0, 0] = 0.10, 0.40, 9.0
    change = HeadChange(("a", "b"), np.zeros((2, 3)), scores, HeadScores("b", after, 12), 0, "why")
    assert change.moved(0, 0) == ("previous", 0.9, 0.4)
