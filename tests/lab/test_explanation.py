"""Claim 12: what permuted weights do to a classifier, against the formula by hand, and tasks whose answer is known."""

import itertools

import numpy as np
import pytest
import torch

from regard_lab import sentence_classifier as lab
from regard_lab.claims import explanation


def verdicts(**changed):
    names = explanation.MIXED, explanation.ALONE, explanation.UNIFORM
    numbers = {
        explanation.ACCURACY: dict(zip(names, ([0.9, 0.8], [0.8], [0.85]), strict=True)),
        explanation.SHARE: dict(zip(names, ([0.5, 0.7], [0.4]), strict=False)),
    }
    for key, value in changed.items():
        numbers[getattr(explanation, key)] = dict(zip(names, value, strict=False))
    return [str(part.verdict) for part in explanation.judge(numbers)]


def test_explanation_is_judged_part_by_part():
    assert verdicts() == ["holds"] * 4
    assert verdicts(SHARE=([0.4], [0.25])) == ["holds", "does not hold", "holds", "holds"]
    assert verdicts(SHARE=([0.6], [0.55])) == ["holds", "holds", "does not hold", "holds"]
    assert verdicts(ACCURACY=([0.9], [0.7], [0.8])) == ["does not hold", "holds", "holds", "does not hold"]


def data(rows, classes=None, vocabulary=10):
    words = tuple(tuple(map(str, row)) for row in rows)
    return lab.Sentences(words, tuple(map(tuple, rows)), tuple(classes or [0] * len(rows)), vocabulary)


def by_hand(model, row):
    """What each permutation of a sentence's weights gives, by numpy."""
    x = model.embedding.weight.detach().numpy()[list(row)].astype(np.float64)
    u, b, v = (
        one.detach().numpy().astype(np.float64)
        for one in (model.pool.key_proj.weight, model.pool.key_proj.bias, model.pool.vector)
    )
    scores = np.tanh(x @ u.T + b) @ v
    weights = np.exp(scores) / np.exp(scores).sum()
    w, bias = model.out.weight.detach().numpy()[0].astype(np.float64), float(model.out.bias.detach())
    logits = [w @ (np.array(one) @ x) + bias for one in itertools.permutations(weights)]
    return weights, 1 / (1 + np.exp(-np.array(logits)))


def test_every_permutation_is_that_of_the_formula_and_none_is_missing():
    torch.manual_seed(0)
    model = lab.Classifier(10, "none").eval()
    with torch.no_grad():
        model.pool.vector.mul_(20)  # so that weights differ
    rows = [[2, 3, 4], [5, 6, 7, 8]]
    seen = lab.permuted(model, data(rows), 400, 0)
    for at, row in enumerate(rows):
        weights, after = by_hand(model, row)
        np.testing.assert_allclose(seen.weights[at], weights, atol=1e-6)
        assert float(seen.before[at]) == pytest.approx(after[0], abs=1e-6)  # the first permutation changes nothing
        found = seen.after[at].double().numpy()
        assert np.abs(found[:, None] - after).min(1).max() < 1e-6
        assert np.abs(found[:, None] - after).min(0).max() < 1e-6
    assert float(seen.moves.max()) > 0.01


def test_a_class_turns_where_p_crosses_a_half():
    seen = lab.Permuted(torch.tensor([0.6, 0.4]), torch.tensor([[0.45, 0.55], [0.1, 0.45]]), ())
    assert seen.turns.tolist() == [[True, False], [False, False]]
    assert seen.moves.flatten().tolist() == pytest.approx([0.15, 0.05, 0.3, 0.05])


@pytest.mark.parametrize("encoder", ["gru", "none"])
def test_equal_weights_cannot_be_permuted_and_padding_changes_nothing(encoder):
    torch.manual_seed(0)
    equal = lab.Classifier(10, encoder, uniform=True).eval()
    rows = [[2, 3, 4, 5, 6], [7, 8]]
    assert float(lab.permuted(equal, data(rows), 20, 0).moves.max()) < 1e-6
    model = lab.Classifier(10, encoder).eval()
    alone = [model(torch.tensor([row]))[0] for row in rows]
    together, weights, _ = model(torch.tensor([rows[0], [*rows[1], 0, 0, 0]]))
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=1e-5)
    assert weights[1, 2:].tolist() == [0, 0, 0]


def test_where_one_word_decides_permuting_moves_nearly_every_prediction():
    draw = np.random.default_rng(0)
    rows, classes = [], []
    for _ in range(400):
        row = draw.integers(4, 30, size=10)
        label = int(draw.integers(2))
        row[draw.integers(10)] = 2 + label  # 2 or 3 tells the class, all else says nothing
        rows.append(row.tolist())
        classes.append(label)
    known = data(rows, classes, 30)
    with torch.random.fork_rng(devices=[]):
        model = lab.trained(known, "none", 12, 0)
    assert lab.accuracy(model, known) > 0.99
    moved = lab.permuted(model, known, 50, 0).moves.median(1).values
    assert float((moved < explanation.STILL).double().mean()) < 0.2


def test_sentences_are_different_of_both_classes_and_words_in_small_letters():
    every = lab.sentences()
    counts = np.bincount([label for _, label in every])
    assert counts.min() > 400
    assert counts.max() < 1.5 * counts.min()
    assert len({words for words, _ in every}) == len(every)
    letters = {sign for words, _ in every for word in words for sign in word}
    assert letters <= set("abcdefghijklmnopqrstuvwxyz'")
    assert {len(words) for words, _ in every} <= set(range(lab.SHORTEST, lab.LONGEST + 1))


def test_held_out_words_are_unknown_unless_two_training_sentences_have_them():
    first, second = lab.numbered([(("a", "b"), 0), (("b", "c", "c"), 1)], [(("b", "c", "d"), 1)])
    assert first.ids == ((1, 2), (2, 1, 1))
    assert second.ids == ((2, 1, 1),)
    assert (first.vocabulary, second.classes) == (3, (1,))
