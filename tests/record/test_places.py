"""A name for a place of a text, against what the characters of the text say."""

import unicodedata

import pytest

from named_places import CAT, PLACES, given, spaced
from regard.errors import InputError
from regard.record.places import Characters, find_place, find_places, spell
from regard.record.tokens import Token
from sweeps import sweep


def test_a_name_is_resolved_as_the_characters_of_the_text_say() -> None:
    for case in sweep(PLACES):
        with case as (tokens, name, positions, text, number, count):
            place = find_place(tokens, name)
            assert (place.positions, place.text, place.number, place.count) == (positions, text, number, count)
            assert find_place(tokens, place) is place


REFUSED = [
    (spaced(CAT), "dog", r"word of the text \(the cat sat on the mat and the other Cat slept , …\) or a number from 1"),
    (spaced(CAT), "slpet", "did you mean 'slept'?"),
    (spaced(CAT), "", "word of the text"),
    (spaced(CAT), "0", "word of the text"),
    (spaced(CAT), "17", "number from 1 to 16"),
    (spaced(CAT), "-17", "word of the text"),
    (spaced(CAT), "3:99", "word of the text"),
    (spaced(CAT), ("cat", 3), r"“cat” occurs 2 times in the text, counted from 1, or from -1 at the end, got 3"),
    (spaced(CAT), "cat#0", "“cat” occurs 2 times"),
    (spaced(CAT), 16, "index from -16 to 15, got 16"),
    (spaced(CAT), range(3, 3), "span within the 16 tokens"),
    (spaced(CAT), range(0, 6, 2), "without gaps"),
    (spaced(CAT), True, "must be a word of the text, an occurrence"),
    (spaced(CAT), ("cat", "2"), "must be a word of the text, an occurrence"),
    (spaced(CAT), Characters(0, 2), "named without their text"),
    ([Token("new"), Token("[SEP]", special=True), Token("york")], "new york", "word of the text"),
]


def test_what_nothing_is_named_by_is_refused_with_the_names_that_there_are() -> None:
    for case in sweep(REFUSED):
        with case as (tokens, name, said), pytest.raises(InputError, match=said):
            find_place(tokens, name)


def test_a_place_says_what_else_was_named_so() -> None:
    assert find_place(spaced(CAT), "mat").note == ""
    assert find_place(spaced(CAT), "it").note == ("“it” occurs 2 times, and this is number 1: “it#2” names another.")
    assert find_place(spaced(CAT), ("it", 1)).note == ""
    assert find_place(spaced(CAT), "it#2").others == (12,)
    said = find_place(given("因為它", "餓"), "它").note
    assert said == "“它” is a part of the token “因為它”: the weights are those of the whole token."


def test_characters_name_the_tokens_that_have_a_part_of_them() -> None:
    text = "a cat’s  naïve"
    spans = [(0, 1), (2, 5), (5, 7), (9, 11), (11, 14)]
    tokens = [Token(text[start:end], word=at, span=(start, end)) for at, (start, end) in enumerate(spans)]
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            oracle = [at for at, (first, last) in enumerate(spans) if {*range(first, last)} & {*range(start, end)}]
            for name in (Characters(start, end), f"characters {start + 1}:{end}"):
                if oracle:
                    assert find_place(tokens, name).positions == tuple(range(oracle[0], oracle[-1] + 1))
                else:
                    with pytest.raises(InputError, match="white space"):
                        find_place(tokens, name)
    with pytest.raises(InputError, match="within the 14 of the text"):
        find_place(tokens, Characters(3, 15))


def test_every_normal_form_of_a_name_finds_the_same_tokens() -> None:
    for case in sweep(["Ångström", "ﬁne", "Việt", "각", "ｶﾞ", "İstanbul", "ΣΊΣΥΦΟΣ"]):
        with case as word:
            tokens = spaced(f"x {word} y")
            for form in ("NFC", "NFD", "NFKC", "NFKD"):
                for name in (unicodedata.normalize(form, word), unicodedata.normalize(form, word).casefold()):
                    assert find_place(tokens, name).positions == (1,)


def test_a_word_is_found_whole_and_chinese_within_a_piece() -> None:
    words = [Token("[it]", special=True), *given("with", "IT", "因為它")]
    assert [place.positions for place in find_places(words, "it")] == [(2,)]
    assert [place.positions for place in find_places(words, "它")] == [(3,)]
    chinese = given("老", "鼠", "老", "老鼠", "鼠")
    assert [place.positions for place in find_places(chinese, "老鼠")] == [(0, 1), (3,)]
    assert find_places(chinese, "貓") == []


def test_white_space_in_what_is_searched_for_counts() -> None:
    apart = given("Come", "in", "to", "New", "York", "well", "-", "known")
    assert find_places(apart, "into") == find_places(apart, "NewYork") == []
    assert [place.positions for place in find_places(apart, "new  york")] == [(3, 4)]
    assert [place.positions for place in find_places(apart, "well-known")] == [(5, 6, 7)]


def test_tokens_spell_their_text() -> None:
    assert spell([Token("[CLS]", special=True), *spaced("Cats|'s purr ,"), Token("␣", word=9), Token("貓¹")]) == (
        "Cats's purr , 貓¹"
    )
    assert spell(given("貓¹", "貓²", "鼠")) == "貓鼠"
