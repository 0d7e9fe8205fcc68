"""Which weights are findings, and what is said of others, on records made by hand and against plain loops."""

import numpy as np
import pytest

from record_layers import heads, layer, record, seen
from regard.record.findings import Habits
from regard.record.highlight import choose_focus
from regard.record.records import Record
from regard.record.tokens import Token, words_of
from regard.record.visible import Visible

DOGS = ["Dogs", "barked", "at", "strangers", "because", "they", "were", "hungry"]
THEY = DOGS.index("they")
RESTS = "gives its weight to Dogs, the first token, from every word (0.90 on average): a resting place"


def causal(count):
    """Weights of heads of causal attention that give each row to itself."""
    return heads(count, len(DOGS))


def resting(*, others=()):
    """A head that gives 0.9 of every row to the first word, and heads that give a part of "they" to another word."""
    weights = causal(1 + len(others))
    weights[0, :, 0] = 0.9
    for head, (target, weight) in enumerate(others, 1):
        weights[head, THEY, target] = weight
    return record(layer(weights), words=DOGS)


@pytest.mark.parametrize("token", [None, "they"])
def test_a_head_that_gives_every_row_to_one_word_is_not_shown_if_another_looks(token):
    focus = choose_focus(resting(others=[(3, 0.3), (1, 0.2)]), token=token)
    assert seen(focus) == ("they", [(0, 1, "strangers"), (0, 2, "barked")])
    assert focus.note == ""


def test_a_head_rests_on_any_word_and_in_any_direction():
    weights = heads(9)
    weights[0, :, 6] = 0.9  # every row on "street", which is no sink of the layer: 0.9 / 9 of it
    weights[1, 8, 2] = 0.2
    assert seen(choose_focus(record(layer(weights)))) == ("it", [(0, 1, "animal")])


def test_the_word_before_is_no_finding_and_the_one_after_it_may_be():
    weights = heads(2, 3)
    weights[0, 1, 0], weights[1, 1, 2] = 0.9, 0.3
    assert seen(choose_focus(record(layer(weights), words=["cat", "dog", "bird"]))) == ("dog", [(0, 1, "bird")])


@pytest.mark.parametrize("exact", [True, False])
def test_the_first_word_is_shown_if_a_head_gives_it_weight_from_one_word_alone(exact):
    weights = causal(3)
    weights[0, :, 0] = 0.9
    weights[1, THEY, 0], weights[2, THEY, 3] = 0.8, 0.5
    focus = choose_focus(record(layer(weights, exact=exact), words=DOGS))
    assert seen(focus) == ("they", [(0, 1, "Dogs"), (0, 2, "strangers")])


def test_a_word_needs_half_as_much_again_as_the_mean_and_a_place_to_rest_four_times_as_much():
    for times, target, first in [(1.45, 3, 2), (1.55, 3, 1), (3.9, 0, 2), (4.1, 0, 1)]:
        weights = causal(3)
        weights[0, :, 0] = 0.9
        weights[1, :, target] = 0.1
        weights[1, : target + 1, target] = 0  # not seen, and the word itself does not count
        weights[1, THEY, target], weights[2, THEY, 1] = 0.1 * times, 0.11
        found = choose_focus(record(layer(weights), words=DOGS), token="they")
        assert found.looks[0].head == first, (times, target)


def test_where_every_head_rests_this_is_said():
    for token, first in [("they", "“they” has no finding; l"), (None, "There is no finding; l")]:
        focus = choose_focus(resting(), token=token)
        assert seen(focus)[1] == [(0, 0, "Dogs")]
        assert focus.note == f"{first}ayer 0 head 0 {RESTS}."
    assert choose_focus(resting(), layer=0).note == f"There is no finding in this layer; layer 0 head 0 {RESTS}."


REQUESTED = [
    (0, 0.9, f"Layer 0 head 0 {RESTS}, not a finding."),
    (THEY, 0.9, "Layer 0 head 0 looks at the word itself: a habit of many heads, not a finding."),
    (THEY - 1, 0.9, "Layer 0 head 0 looks at the word before it: a neighbour, not a finding."),
    (3, 0.9, ""),
]


@pytest.mark.parametrize(("target", "weight", "note"), REQUESTED)
def test_a_requested_head_is_shown_and_the_note_says_what_it_is(target, weight, note):
    weights = causal(2)
    weights[0, THEY, target] = weight
    if target == 0:
        weights[0, :, 0] = weight
    weights[1, THEY, 3] = 0.5
    focus = choose_focus(record(layer(weights), words=DOGS), token="they", layer=0, head=0)
    assert seen(focus)[1][0] == (0, 0, DOGS[target])
    assert focus.note == note


def test_a_requested_head_with_a_finding_says_where_more_of_its_weight_is():
    weights = heads(2)
    weights[0, 8, 0], weights[0, 8, 2] = 0.6, 0.3
    focus = choose_focus(record(layer(weights)), token="it", layer=0, head=0)
    assert seen(focus) == ("it", [(0, 0, "animal")])
    assert focus.note == (
        "The largest weight from “it” in this head is 0.60; layer 0 head 0 gives it to [CLS], a special token: a "
        "resting place."
    )


def test_a_special_token_of_a_requested_head_is_called_one():
    weights = heads(1)
    weights[0, 8, 0] = 0.9
    focus = choose_focus(record(layer(weights)), token="it", layer=0, head=0)
    assert focus.note == "Layer 0 head 0 gives it to [CLS], a special token: a resting place, not a finding."


def test_a_feeble_look_names_the_large_weight_that_is_none():
    weights = resting(others=[(3, 0.05)])
    focus = choose_focus(weights, token="they")
    assert seen(focus)[1] == [(0, 1, "strangers")]
    assert focus.note == (
        "No finding of “they” on another content word, not beside it, is sharp: this is the clearest. The largest "
        f"weight from “they” on such a word is 0.90; layer 0 head 0 {RESTS}."
    )


def test_a_row_with_nothing_to_compare_says_so():
    weights = np.zeros((1, len(DOGS), len(DOGS)))
    weights[0, THEY, [1, 0]] = 0.4, 0.6  # one recorded row
    focus = choose_focus(record(layer(weights), words=DOGS), token="they")
    assert seen(focus)[1] == [(0, 0, "barked")]
    assert focus.note == ("No other word was recorded that can see barked: its weight may be the same from every word.")


PIECES = (
    Token("[CLS]", special=True),
    Token("un", word=0),
    Token("break", word=0),
    Token("able", word=0),
    Token("cats", word=1),
    Token("sl", word=2),
    Token("ept", word=2),
    Token("[SEP]", special=True),
)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("exact", [True, False])
def test_the_mean_from_elsewhere_is_that_of_plain_loops(exact, is_causal):
    generator = np.random.default_rng(0)
    n, words = len(PIECES), words_of(PIECES)
    weights = generator.random((3, n, n)) * (np.tril(np.ones((n, n))) if is_causal else 1)
    weights /= weights.sum(-1, keepdims=True)
    of = layer(weights, exact=exact, top=n)
    made = Record((of,), {"text": (PIECES,)})
    habits = Habits(of, 0, Visible.of(made.tokens, of, 0), words, one_text=True)
    given = np.zeros((3, len(words), len(words)))
    mean = np.full((3, len(words), len(words)), np.nan)
    for head in range(3):
        for a, query in enumerate(words):
            for b, key in enumerate(words):
                given[head, a, b] = np.mean([sum(weights[head, i, j] for j in key.pieces) for i in query.pieces])
                rows = [i for i in range(n) if not PIECES[i].special and i not in query.pieces + key.pieces]
                rows = [i for i in rows if i >= key.pieces[0] or not is_causal]
                if rows:
                    mean[head, a, b] = np.mean([sum(weights[head, i, j] for j in key.pieces) for i in rows])
    of_text = [a for a, word in enumerate(words) if not word.special]
    found = habits.elsewhere(given[:, of_text], [words[a] for a in of_text])
    np.testing.assert_allclose(found[:, :, of_text], mean[:, of_text][:, :, of_text], atol=1e-6)


def test_a_long_text_is_chosen_from_findings_too():
    n = 700
    words = [f"word{i}" for i in range(n)]
    weights = np.zeros((2, n, n), np.float32)
    weights[0, :, 0] = 0.99  # all rest on the first
    weights[1, np.arange(n), np.arange(n)] = 0.5
    weights[1, 650, 20] = 0.4
    focus = choose_focus(record(layer(weights, exact=False), words=words))
    assert seen(focus) == ("word650", [(0, 1, "word20")])


def test_the_note_of_a_long_text_speaks_of_the_words_that_were_compared():
    n = 700
    weights = np.zeros((1, n, n), np.float32)
    weights[0, :, 0] = 0.9
    weights[0, [300, 400, 650], [10, 20, 30]] = 0.03, 0.04, 0.05
    words = [f"word{i}" for i in range(n)]
    focus = choose_focus(record(layer(weights, exact=False), words=words))
    assert seen(focus) == ("word650", [(0, 0, "word30")])
    assert focus.note.startswith(
        "No finding of the 3 words compared on another content word, not beside it, is sharp: this is the clearest. "
        "The largest weight from “word650” on such a word is 0.90; layer 0 head 0 gives its weight to word0"
    )
