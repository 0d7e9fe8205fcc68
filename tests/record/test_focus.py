"""The choice of what a picture shows, on records made by hand so that the right choice is known."""

import itertools

import numpy as np
import pytest

from record_layers import WORDS, heads, layer, record, seen, tokens
from regard.errors import InputError, ObservationError
from regard.record.highlight import choose_focus
from regard.record.records import Layer, Record
from regard.record.tokens import Token, content_words, is_content, is_word, pronoun_in
from sweeps import sweep


@pytest.mark.parametrize("exact", [True, False])
def test_the_two_heads_look_from_one_word_at_two_others(exact):
    weights = heads(3)
    weights[0, 8, 2], weights[1, 8, 6], weights[2, 8, 4] = 0.9, 0.8, 0.7
    focus = choose_focus(record(layer(weights, exact=exact)))
    assert seen(focus) == ("it", [(0, 0, "animal"), (0, 1, "street")])
    assert [look.weight for look in focus.looks] == pytest.approx([0.9, 0.8])
    assert focus.queries == focus.keys
    assert focus.batch_index == 0


@pytest.mark.parametrize("exact", [True, False])
def test_special_tokens_itself_neighbours_and_function_words_do_not_count(exact):
    weights = heads(2)
    weights[0, 8, [0, 11, 8, 7, 9, 5, 1, 3]] = 0.99  # [CLS] [SEP] itself because was the The didn't
    weights[0, 8, 2] = 0.2
    weights[1, 10, [9, 0]] = 0.99  # the neighbour and [CLS]: nothing to show
    weights[1, 0, 2] = weights[1, 11, 2] = 0.99  # special tokens look at a content word: no word to look from
    assert seen(choose_focus(record(layer(weights, exact=exact, top=12)))) == ("it", [(0, 0, "animal")])


def test_a_neighbour_that_carries_content_does_not_count_either():
    weights = heads(1)
    weights[0, 3, 4], weights[0, 3, 2], weights[0, 4, 6] = 0.9, 0.9, 0.1  # didn't → cross, animal; cross → street
    assert seen(choose_focus(record(layer(weights)))) == ("cross", [(0, 0, "street")])


def test_the_same_word_elsewhere_is_itself():
    words = ["cat", "sat", "far", "Cat", "dog"]
    weights = heads(1, 5)
    weights[0, 0, 3], weights[0, 0, 4] = 0.9, 0.2
    assert seen(choose_focus(record(layer(weights), words=words))) == ("cat", [(0, 0, "dog")])


def test_the_second_look_has_another_head_and_another_target():
    weights = heads(3)
    weights[0, 8, 2], weights[0, 8, 6] = 0.9, 0.05
    weights[1, 8, 2] = 0.8  # the same target
    weights[2, 8, 6] = 0.1
    assert seen(choose_focus(record(layer(weights))))[1] == [(0, 0, "animal"), (0, 2, "street")]


def test_two_words_of_the_same_text_are_one_target():
    words = ["it", "saw", "cat", "near", "cat", "then", "dog"]
    weights = heads(3, 7)
    weights[0, 0, 2], weights[1, 0, 4], weights[2, 0, 6] = 0.9, 0.8, 0.1
    assert seen(choose_focus(record(layer(weights), words=words)))[1] == [(0, 0, "cat"), (0, 2, "dog")]


def test_the_sharpest_pair_decides_the_word_across_layers():
    one, other = heads(1), heads(1)
    one[0, 7, 2], one[0, 10, 2] = 0.9, 0.6
    other[0, 7, 6], other[0, 10, 6] = 0.1, 0.6
    assert seen(choose_focus(record(layer(one), layer(other)))) == ("tired", [(0, 0, "animal"), (1, 0, "street")])


@pytest.mark.parametrize("exact", [True, False])
def test_pieces_of_a_word_count_together(exact):
    pieces = (
        Token("cat", word=0),
        Token("was", word=1),
        Token("un", word=2),
        Token("break", word=2),
        Token("able", word=2),
        Token("today", word=3),
    )
    weights = heads(2, 6)
    weights[0, 0, [2, 3, 4]] = 0.3
    weights[1, 0, 5] = 0.8
    focus = choose_focus(Record((layer(weights, exact=exact),), {"text": (pieces,)}))
    assert seen(focus) == ("cat", [(0, 0, "unbreakable"), (0, 1, "today")])
    assert focus.looks[0].weight == pytest.approx(0.9)
    back = heads(1, 6)
    back[0, 2:5, 0] = [0.2, 0.8, 0.2]  # the mean over the pieces that look
    again = choose_focus(Record((layer(back, exact=exact),), {"text": (pieces,)}))
    assert seen(again) == ("unbreakable", [(0, 0, "cat")])
    assert again.looks[0].weight == pytest.approx(0.4)


# --- what was asked for


def pinnable():
    one, other = heads(2), heads(2)
    one[0, 8, 2], one[1, 8, 6], one[0, 10, 6] = 0.9, 0.8, 0.1
    other[0, 8, 4], other[1, 8, 2], other[1, 8, 0] = 0.3, 0.2, 0.5
    return record(layer(one), layer(other))


def test_a_word_that_was_asked_for_is_looked_from():
    for case in sweep(["tired", "TIRED", "11"]):
        with case as token:
            assert seen(choose_focus(pinnable(), token=token)) == ("tired", [(0, 0, "street")])


@pytest.mark.parametrize("which", [1, -1])
def test_the_first_look_comes_from_the_layer_that_was_asked_for(which):
    assert seen(choose_focus(pinnable(), layer=which)) == ("it", [(1, 0, "cross"), (0, 0, "animal")])


def test_the_first_look_comes_from_the_head_that_was_asked_for():
    assert seen(choose_focus(pinnable(), layer=1, head=1)) == ("it", [(1, 1, "animal"), (0, 1, "street")])


def test_a_head_that_was_asked_for_is_shown_even_if_it_looks_at_a_special_token():
    weights = heads(2)
    weights[0, 8, 0], weights[1, 8, 2] = 0.9, 0.4
    focus = choose_focus(record(layer(weights)), token="it", layer=0, head=0)
    assert seen(focus) == ("it", [(0, 0, "[CLS]"), (0, 1, "animal")])


NOT_THERE = [
    ({"head": 1}, "`head` 1 needs a `layer` too"),
    ({"layer": 2}, r"`layer` must be from 0 to 1 \(seen layers: 2\), got 2"),
    ({"layer": -3}, "`layer` must be from 0 to 1"),
    ({"layer": 0, "head": 2}, r"`head` must be from 0 to 1 \(heads: 2\), got 2"),
    ({"layer": 0, "head": -3}, r"`head` must be from 0 to 1 \(heads: 2\), got -3"),
    ({"token": "giraffe"}, r"`token` must be a word of the text .* number from 1 to 12, got 'giraffe'"),
    ({"batch_index": 1}, r"`batch_index` must be from 0 to 0 \(batch: 1\), got 1"),
    ({"batch_index": -2}, r"`batch_index` must be from 0 to 0 \(batch: 1\), got -2"),
]


def test_what_is_not_there_is_refused():
    for case in sweep(NOT_THERE):
        with case as (asked, words), pytest.raises(InputError, match=words):
            choose_focus(pinnable(), **asked)


def test_a_text_of_one_word_is_refused_with_the_way_out():
    for case in sweep(itertools.product([None, "cat"], [["cat"], ["[CLS]", "cat", "!", "[SEP]"]])):
        with case as (token, words):
            weights = np.full((2, len(words), len(words)), 1 / len(words))
            said = "the text is one word, cat, and looks are those of a word at another: write two or more, or name "
            said += "`layer` and `head`, whose weights can be shown"
            with pytest.raises(InputError, match=said):
                choose_focus(record(layer(weights), words=words), token=token)


def test_a_text_without_words_is_refused():
    for case in sweep([["[CLS]", "[SEP]"], ["。", "，", "!"], ["[CLS]", "␣", "。"]]):
        with case as words:
            weights = np.full((2, len(words), len(words)), 1 / len(words))
            with pytest.raises(InputError, match="no word that could look at another one: write two words or more"):
                choose_focus(record(layer(weights), words=words))


def test_a_word_that_sees_itself_alone_is_refused_by_name():
    with pytest.raises(InputError, match=r"'cat' looks at no other word \(in a causal model .*\): name another word"):
        choose_focus(record(layer(np.eye(3)[None]), words=["cat", "and", "dog"]), token="cat")


# --- texts of a few words: neighbours count where there is nothing else, then function words, then signs


NEIGHBOUR = "There is no finding; layer 0 head 0 looks at the word before it: a neighbour."
SHORT = [
    (["Thinking", "Machines"], ("Machines", "Thinking"), NEIGHBOUR),
    (["it", "is"], ("is", "it"), NEIGHBOUR),  # two function words
    (["ha", "ha"], ("ha", "ha"), NEIGHBOUR),
    (["the", "dog", "Dog"], ("Dog", "the"), ""),  # the same word elsewhere is the word itself
    (["🐱", "，", "🐭"], ("🐭", "🐱"), ""),
    (["␣", "x", "="], ("=", "x"), NEIGHBOUR),
]


def test_short_texts_are_looked_at_from_their_last_word():
    for case in sweep(SHORT):
        with case as (words, found, note):
            words = ["[CLS]", *words, "[SEP]"]
            weights = heads(1, len(words))
            weights[0, len(words) - 2] = 0.9
            focus = choose_focus(record(layer(weights), words=words))
            assert (focus.queries[focus.word].text, focus.keys[focus.looks[0].target].text) == found
            assert focus.looks[0].target != focus.word
            assert focus.note == note


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["[CLS]", "cat", "saw", "dog", "[SEP]"], "another content word, not beside it,"),
        (["cat", "dog"], "another content word"),
        (["it", "is"], "another word"),
        (["🐱", "🐭"], "another sign"),
    ],
)
def test_where_no_look_is_sharp_the_sharpest_is_shown_and_says_so(words, others):
    n = len(words)
    is_neighbour = n == 2
    neighbour = "ayer 0 head 1 looks at the word before it: a neighbour"
    weights = np.full((2, n, n), 1 / n)
    first, last = words.index(words[-1] if words[-1] != "[SEP]" else "dog"), 1 if n == 5 else 0
    weights[1, first, last] = 1.9 / n  # less than twice what even attention would give
    focus = choose_focus(record(layer(weights), words=words))
    assert (focus.word, focus.looks[0].head, focus.looks[0].target) == (first, 1, last)
    none = f"; l{neighbour}."
    said = f"No finding on {others} is sharp: this is the clearest."
    assert focus.note == (f"There is no finding{none}" if is_neighbour else said)
    named = choose_focus(record(layer(weights), words=words), token=words[first], layer=0)
    assert named.note == (
        f"“{words[first]}” has no finding in this layer{none}"
        if is_neighbour
        else f"No finding of “{words[first]}” on {others} is sharp in this layer: this is the clearest."
    )
    weights[1, first, last] = 2.1 / n
    sharp = choose_focus(record(layer(weights), words=words))
    assert sharp.note == f"There is no finding; l{neighbour}." * is_neighbour
    named = choose_focus(record(layer(weights / 3), words=words), layer=0, head=1)  # it was asked for
    assert named.note == f"L{neighbour}, not a finding." * is_neighbour


def test_of_many_words_a_tenth_is_sharp_and_less_is_not():
    n = 40
    weights = heads(1, n)
    weights[0, 30, 3] = 0.0999
    words = [f"word{i}" for i in range(n)]
    assert choose_focus(record(layer(weights), words=words)).note.startswith("No finding on another content word")
    weights[0, 30, 3] = 0.1001
    assert choose_focus(record(layer(weights), words=words)).note == ""


# --- pronouns


def test_a_pronoun_that_looks_sharply_comes_before_sharper_words():
    weights = heads(2)
    weights[0, 10, 2], weights[0, 8, 6] = 0.9, 0.3  # tired → animal; it → street
    assert seen(choose_focus(record(layer(weights)))) == ("it", [(0, 0, "street")])
    weights[0, 8, 6] = 0.15  # less than twice what even attention would give
    assert seen(choose_focus(record(layer(weights)))) == ("tired", [(0, 0, "animal")])


def test_of_two_pronouns_the_sharper_one_is_chosen():
    words = ["he", "saw", "cat", "near", "it", "then", "dog"]
    weights = heads(1, 7)
    weights[0, 0, 2], weights[0, 4, 2] = 0.5, 0.6
    assert seen(choose_focus(record(layer(weights), words=words))) == ("it", [(0, 0, "cat")])


@pytest.mark.parametrize(
    ("animal", "street", "tired", "looks"),
    [
        (0.5, 0.6, 0.65, ["animal", "tired"]),  # nearly as sharp, and earlier
        (0.4, 0.5, 0.6, ["street", "tired"]),  # 0.4 is less than three quarters of the sharpest
        (0.3, 0.2, 0.6, ["tired", "animal"]),  # nothing before it is nearly as sharp
    ],
)
def test_a_pronoun_looks_first_at_the_earliest_word_before_it_that_is_nearly_as_sharp(animal, street, tired, looks):
    weights = heads(3)
    weights[0, 8, 10], weights[1, 8, 6], weights[2, 8, 2] = tired, street, animal
    assert [name for _, _, name in seen(choose_focus(record(layer(weights))))[1]] == looks
    weights[:, [7, 8]] = weights[:, [8, 7]]  # "because" is no pronoun: the sharpest comes first
    assert seen(choose_focus(record(layer(weights)), token="because"))[1][0][2] == "tired"


def test_a_pronoun_with_nothing_before_it_looks_at_the_sharpest_word_behind_it():
    words = ["it", "saw", "cat", "near", "dog"]
    weights = heads(2, 5)
    weights[0, 0, 2], weights[1, 0, 4] = 0.5, 0.6
    assert seen(choose_focus(record(layer(weights), words=words))) == ("it", [(0, 1, "dog"), (0, 0, "cat")])


@pytest.mark.parametrize("token", [None, "它"])
def test_a_pronoun_within_a_token_is_found_and_called_by_its_part(token):
    weights = heads(1, 6)
    weights[0, 4, 0] = 0.9
    focus = choose_focus(record(layer(weights), words=["猫", "追", "老鼠", "，", "因为它", "饿"]), token=token)
    assert seen(focus) == ("因为它", [(0, 0, "猫")])
    assert focus.part == "它"
    assert focus.note == "“它” is a part of the token “因为它”: the weights are those of the whole token."


def test_a_whole_pronoun_is_no_part():
    weights = heads(1)
    weights[0, 8, 2] = 0.9
    assert (choose_focus(record(layer(weights)), token="IT").part, choose_focus(record(layer(weights))).part) == (
        "",
        "",
    )


PRONOUNS = [
    ("It", "It"),
    ("they", "they"),
    ("Sie", "Sie"),
    ("ihm", "ihm"),
    ("它", "它"),
    ("因為它", "它"),
    ("但他们", "他们"),
    ("它的", "它"),
    ("他們", "他們"),
    ("その", "その"),
    ("彼女は", "彼女"),
    ("それが", "それ"),
    ("animal", None),
    ("itself", "itself"),
    ("with", None),
    ("其他", None),
    ("その他", None),
    ("吉他", None),
    ("そのため", None),
    ("I", None),
    ("我", None),
    ("", None),
    (",", None),
]


def test_pronouns_are_known_in_four_languages():
    for case in sweep(PRONOUNS):
        with case as (text, pronoun):
            assert pronoun_in(text) == pronoun


CONTENT = [
    ("Der Hund jagte die Katze , weil er hungrig war", "Hund jagte Katze hungrig"),
    ("They die in a war", "die war"),
    ("猫 は 魚 が 好き です", "猫 魚 好き"),
    ("彼女は 学生 でした", "学生"),
]


def test_content_is_known_in_german_and_japanese():
    for case in sweep(CONTENT):
        with case as (text, content):
            words = text.split()
            assert [word for word, flag in zip(words, content_words(words), strict=True) if flag] == content.split()


def test_without_tokens_or_layers_there_is_nothing_to_choose():
    with pytest.raises(ObservationError, match="tokens of this record are not known: pass `tokenizer=`"):
        choose_focus(Record((layer(heads(1)),)))
    with pytest.raises(ObservationError, match="no attention layer"):
        choose_focus(Record((), {"text": (tokens(WORDS),)}))


# --- two texts, and long ones


def test_cross_attention_comes_first_and_knows_no_neighbours():
    source, target = ["black", "little", "cat"], ["schwarze", "kleine", "Katze"]
    self_weights, cross = heads(1, 3), heads(2, 3)
    self_weights[0, 2, 0] = 0.9
    cross[0, 1, 1], cross[1, 1, 2] = 0.9, 0.5  # the same position, and the one beside it
    both = record(
        layer(self_weights, streams=("source", "source")),
        layer(cross, streams=("target", "source")),
        source=(tokens(source),),
        target=(tokens(target),),
    )
    focus = choose_focus(both)
    assert seen(focus) == ("kleine", [(1, 0, "little"), (1, 1, "cat")])
    assert [word.text for word in focus.queries] == target
    assert seen(choose_focus(both, layer=0, stream="source")) == ("cat", [(0, 0, "black")])


def test_a_layer_of_fewer_queries_is_left_out_of_the_choice():
    """Which positions of the text they are is unknown."""
    weights, part = np.zeros((1, 3, 3)), np.full((1, 2, 3), 0.3, np.float32)
    weights[0, 2, 0] = 0.9
    words = ["black", "little", "cat"]
    both = record(layer(weights), layer(part), words=words)
    assert seen(choose_focus(both)) == ("cat", [(0, 0, "black")])
    assert [one.layer for one in both.rank_heads("cat", "black")] == [0]
    with pytest.raises(ObservationError, match="no weight in any head"):  # there is some in the second layer
        both.rank_heads("little", "black")


def test_a_text_of_many_words_is_chosen_from_its_strongest_keys():
    n = 700
    words = [f"word{i}" for i in range(n)]
    weights = np.zeros((2, n, n), np.float32)
    weights[:, np.arange(n), np.maximum(np.arange(n) - 1, 0)] = 0.9  # all look at their neighbour
    weights[0, 650, 20], weights[1, 650, 300] = 0.7, 0.6
    weights[0, 30, 500] = 0.8  # sharper, but alone
    focus = choose_focus(record(layer(weights, exact=False), words=words))
    assert seen(focus) == ("word650", [(0, 0, "word20"), (0, 1, "word300")])


def test_the_second_sequence_has_its_own_words():
    weights = heads(1, 4)
    weights[0, 3, 1] = 0.9
    one = layer(weights)
    two = Layer(
        **{
            name: np.concatenate([value, value]) if isinstance(value, np.ndarray) else value
            for name, value in vars(one).items()
        }
    )
    texts = tokens(["a", "dog", "sat", "it"]), tokens(["a", "cat", "sat", "it"])
    both = Record((two,), {"text": texts})
    assert seen(choose_focus(both, batch_index=1)) == ("it", [(0, 0, "cat")])
    assert choose_focus(both, batch_index=1).batch_index == 1


def naive_pair(words, row, looks):
    """The sharpest look and the sharpest of another head at another word; "it" prefers what comes early."""
    looks.sort(key=lambda look: -look[0])
    early = [one for one in looks if one[3] < row and one[0] >= 0.75 * looks[0][0]]
    if words[row].text == "it" and early:
        first = min(early, key=lambda one: (one[3], -one[0]))
        looks = [first, *(one for one in looks if one != first)]
    others = [one for one in looks[1:] if words[one[3]].text != words[looks[0][3]].text and one[1:3] != looks[0][1:3]]
    return looks[:1] + others[:1]


def naive(record):
    """The same choice, one pair of words after another: the word, and layer, head and target of its looks."""
    words, pairs = record.words(), []
    for row, word in enumerate(words):
        if word.special or not is_word(word.text):
            continue
        looks = []
        for number, attention in enumerate(record.layers):
            for head in range(attention.heads):
                to = {}
                for target, other in enumerate(words):
                    near = abs(row - target) <= 1 or other.text.casefold() == word.text.casefold()
                    if other.special or not is_content(other.text) or near:
                        continue
                    if attention.exact is not None:
                        block = attention.exact[0, head][list(word.pieces)][:, list(other.pieces)]
                        to[target] = float(block.sum(1).mean())
                    else:
                        pieces = list(word.pieces)
                        hit = np.isin(attention.top_keys[0, head, pieces], list(other.pieces))
                        to[target] = float((attention.top_weights[0, head, pieces] * hit).sum(1).mean())
                if to and max(to.values()) > 0:
                    target = max(to, key=to.get)
                    looks.append((to[target], number, head, target))
        pair = naive_pair(words, row, looks)
        n = record.layers[0].keys
        sharp = any(one[0] >= max(0.1, 2 * len(words[one[3]].pieces) / n) for one in pair)
        if pair:
            pairs.append((sharp, sharp and word.text == "it", sum(one[0] for one in pair), -row, pair))
    assert any(one[0] for one in pairs)
    _, _, _, row, pair = max(pairs)
    return -row, [one[1:] for one in pair]


def test_the_choice_is_that_of_one_pair_of_words_after_another():
    for case in sweep(itertools.product([True, False], range(6))):
        with case as (exact, seed):
            draw = np.random.default_rng(seed)
            pool = ["cat", "dog", "the", "Cat", ",", "tree", "it", "river", "stone", "of"]
            numbers = np.repeat(np.arange(18), draw.integers(1, 4, 18))
            inner = [
                Token(pool[number % 7 if at % 3 else number % 10], word=int(number))
                for at, number in enumerate(numbers)
            ]
            text = (Token("[CLS]", special=True), *inner, Token("[SEP]", special=True))
            shape = (len(text), len(text))
            layers = [layer(draw.dirichlet(np.full(shape[1], 0.1), (3, shape[0])), exact=exact) for _ in range(2)]
            seen_by_hand = Record(tuple(layers), {"text": (text,)})
            focus = choose_focus(seen_by_hand)
            assert (focus.word, [(one.layer, one.head, one.target) for one in focus.looks]) == naive(seen_by_hand)
