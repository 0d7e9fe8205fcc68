"""One head over two texts, on weights made by hand: which words are compared, what has moved, which heads flip."""

import dataclasses

import numpy as np
import pytest

from regard.errors import InputError
from regard.record.minimal_pair import HeadFlips, choose_pair
from regard.record.records import Layer, Record
from regard.record.tokens import Token
from sweeps import sweep

TIRED = "[CLS] animal crossed street because it was tired [SEP]".split()
WIDE = "[CLS] animal crossed street because it was wide [SEP]".split()
IT, ANIMAL, CROSSED, STREET, LAST = 5, 1, 2, 3, 7


def record(words, *layers):
    """A record of dense weights (heads, n, n) for each layer."""
    tokens = [Token(word, special=word.startswith("["), word=at, space=True) for at, word in enumerate(words)]
    made = []
    for number, given in enumerate(layers):
        weights = np.asarray(given, np.float32)[None]
        keys = np.argsort(-weights, -1, kind="stable")[..., :8].astype(np.int32)
        top = np.take_along_axis(weights, keys, -1)
        rest = np.zeros(weights.shape[:3], np.float32), weights.sum(2)
        made.append(Layer(f"layer.{number}", "self", "text", "text", 1, 1, weights, weights, keys, top, *rest))
    return Record(tuple(made), {"text": (tuple(tokens),)}, "made")


def heads(count, looks, n=9):
    """Heads that give 0.01 everywhere, and from a row to a key what is asked for."""
    weights = np.full((count, n, n), 0.01)
    for (head, row, key), weight in looks.items():
        weights[head, row, key] = weight
    return weights


def tired_and_wide():
    before = heads(3, {(0, IT, ANIMAL): 0.6, (0, IT, STREET): 0.2, (1, IT, ANIMAL): 0.3, (1, IT, STREET): 0.25,
                       (0, CROSSED, ANIMAL): 0.4, (0, LAST, ANIMAL): 0.2, (2, IT, LAST): 0.7})  # fmt: skip
    after = heads(3, {(0, IT, ANIMAL): 0.5, (0, IT, STREET): 0.3, (1, IT, ANIMAL): 0.1, (1, IT, STREET): 0.4,
                      (2, IT, LAST): 0.7})  # fmt: skip
    return record(TIRED, before), record(WIDE, after)


def test_the_head_that_looks_most_at_a_word_of_both_texts_is_shown_in_both():
    pair = choose_pair(*tired_and_wide())
    assert pair.head == (0, 0)  # head 2 is sharper, at a word that only one of the texts has
    assert pair.words == ("animal", "street")  # both texts have "crossed" too, which weighs less
    assert [focus.queries[focus.word].text for focus in pair.highlights] == ["it", "it"]
    found = [[(look.layer, look.head, look.target) for look in focus.looks] for focus in pair.highlights]
    assert found == [[(0, 0, ANIMAL), (0, 0, STREET)]] * 2
    assert [look.weight for focus in pair.highlights for look in focus.looks] == pytest.approx([0.6, 0.2, 0.5, 0.3])
    assert pair.elsewhere == pytest.approx([(0.4 + 0.2 + 3 * 0.01) / 5, 0.01])


def test_what_has_moved_is_listed_word_by_word():
    moved = choose_pair(*tired_and_wide()).moved
    assert [(one.before_word, one.after_word) for one in moved] == list(zip(TIRED, WIDE, strict=True))
    assert [one.compared for one in moved] == [None, 0, None, 1, *[None] * 5]
    assert [one.change for one in moved] == pytest.approx([0, -0.1, 0, 0.1, *[0] * 5])
    assert moved[1].before == pytest.approx(0.6)


def test_a_head_flips_where_the_other_word_is_the_stronger_one():
    flips = choose_pair(*tired_and_wide()).flips
    assert (flips.heads, flips.counted, flips.prefer(0), flips.prefer(1)) == (3, 2, 1, 0)
    (flip,) = flips.flips
    assert (flip.layer, flip.head, flip.to_second) == (0, 1, True)
    assert (*flip.before, *flip.after) == pytest.approx((0.3, 0.25, 0.1, 0.4))
    assert flip.lead == pytest.approx(0.05)


def test_the_words_and_the_head_can_be_given():
    texts = tired_and_wide()
    pair = choose_pair(*texts, words=("street", "crossed"), token="it")
    assert (pair.words, pair.head) == (("street", "crossed"), (0, 1))  # the head that looks at "street" most
    pair = choose_pair(*texts, words=("street", "crossed"), layer=0, head=2)
    assert pair.head == (0, 2)
    assert choose_pair(*texts, layer=0, head=1).head == (0, 1)
    assert choose_pair(*texts, token="was").highlights[1].word == 6


def test_words_that_have_changed_places_are_found_by_their_text():
    mouse = "[CLS] street crossed animal because it was tired [SEP]".split()
    before = heads(1, {(0, IT, ANIMAL): 0.6, (0, IT, STREET): 0.2})
    after = heads(1, {(0, IT, 3): 0.5, (0, IT, 1): 0.3})
    pair = choose_pair(record(TIRED, before), record(mouse, after))
    assert [look.weight for look in pair.highlights[1].looks] == pytest.approx([0.5, 0.3])
    assert [look.target for look in pair.highlights[1].looks] == [3, 1]
    assert {one.before_word: one.after_word for one in pair.moved}["street"] == "street"


def test_a_pronoun_that_is_exchanged_is_found_by_its_place():
    she = [word if word != "it" else "she" for word in TIRED]
    looks = {(0, IT, ANIMAL): 0.6}
    pair = choose_pair(record(TIRED, heads(1, looks)), record(she, heads(1, looks)))
    assert [focus.queries[focus.word].text for focus in pair.highlights] == ["it", "she"]


def test_the_second_of_two_equal_words_stays_the_second():
    words = "it saw animal near street and it was far".split()
    looks = {(0, 6, 2): 0.6, (0, 0, 2): 0.2}
    pair = choose_pair(record(words, heads(1, looks)), record([*words[:8], "close"], heads(1, looks)))
    assert [focus.word for focus in pair.highlights] == [6, 6]


def test_a_model_that_has_read_nothing_that_differs_is_said_to_be_untouched():
    looks = {(0, IT, ANIMAL): 0.6}
    assert choose_pair(record(TIRED, heads(1, looks)), record(WIDE, heads(1, looks))).is_untouched
    assert not choose_pair(*tired_and_wide()).is_untouched


NO_PAIRS = [
    ("ein ganz anderer Text ist das hier nun so", {}, "the two texts share no word: a minimal pair is one text"),
    (" ".join(WIDE), {"words": ("animal", "dog")}, "`words` must be two words of both texts, and 'dog' is not in"),
    (" ".join(WIDE), {"token": "giraffe"}, "`token` must be a word of the text"),
    ("[CLS] cars because it was tired [SEP]", {"token": "crossed"}, "'crossed' has no place in the second text"),
]


def test_texts_without_words_to_compare_are_refused_with_the_way_out():
    for case in sweep(NO_PAIRS):
        with case as (other, asked, words):
            before, after = (
                record(TIRED, heads(1, {(0, IT, ANIMAL): 0.6})),
                record(other.split(), heads(1, {}, len(other.split()))),
            )
            with pytest.raises(InputError, match=words):
                choose_pair(before, after, **asked)


def test_one_shared_content_word_is_too_few():
    words = "[CLS] animal ate because it was hungry there [SEP]".split()
    other = "[CLS] animal hid because it was afraid here [SEP]".split()
    looks = heads(1, {(0, 4, 1): 0.6})
    with pytest.raises(
        InputError, match="share no second content word to compare 'animal' with: name two with `words`"
    ):
        choose_pair(record(words, looks), record(other, looks))


# --- flips


def weights(before, after):
    """Of one head: (first, second) in each text."""
    return np.array([before, after], float)[..., None, None]


COUNTED = [
    ((0.3, 0.1), (0.1, 0.3), 1, 1),
    ((0.1, 0.3), (0.3, 0.1), 1, 1),
    ((0.3, 0.1), (0.2, 0.1), 1, 0),
    ((0.3, 0.1), (0.04, 0.05), 0, 0),  # together less than a tenth in the second text
    ((0.04, 0.05), (0.3, 0.1), 0, 0),
    ((0.06, 0.04), (0.04, 0.06), 1, 1),  # a tenth
    ((0.3, 0.1), (0.2, 0.2), 1, 0),  # even is neither
]


def test_only_heads_that_look_at_the_two_words_are_counted():
    for case in sweep(COUNTED):
        with case as (before, after, counted, flips):
            found = HeadFlips(weights(before, after))
            assert (found.counted, len(found.flips)) == (counted, flips)


def test_the_flip_with_the_largest_lead_comes_first():
    each = [weights((0.3, 0.29), (0.1, 0.4)), weights((0.1, 0.3), (0.35, 0.1)), weights((0.3, 0.1), (0.1, 0.3))]
    found = HeadFlips(np.concatenate([*each, np.full((2, 2, 1, 1), np.nan)], -1))
    assert [flip.head for flip in found.flips] == [1, 2, 0]
    assert [flip.to_second for flip in found.flips] == [False, True, True]
    assert found.heads == 3


def test_heads_that_were_not_recorded_are_in_no_mean_and_cannot_be_compared():
    both = tired_and_wide()
    chosen = [
        dataclasses.replace(one, layers=(dataclasses.replace(one.layers[0], head_numbers=(1, 2)),)) for one in both
    ]
    pair = choose_pair(*chosen)
    assert pair.head == (0, 1)
    unrecorded = pair.flips.weights[..., 0, 0]
    assert np.isnan(unrecorded).all()
    with pytest.raises(InputError, match="the two records hold other heads: record both with the same `layers=`"):
        choose_pair(both[0], chosen[1])
