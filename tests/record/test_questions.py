"""Questions in English and Chinese as names of the word that they ask about."""

import re

import pytest

from regard.errors import InputError
from regard.record.places import find_place
from regard.record.questions import asked_of
from regard.record.tokens import Token
from sweeps import sweep

ASKED = [
    ("what does it attend to", ("it", None)),
    ("What does 它 attend to?", ("它", None)),
    ("what does it look at?", ("it", None)),
    ("what is it looking at", ("it", None)),
    ("where does the animal look", ("animal", None)),
    ("which words do “they” attend to most", ("they", None)),
    ("what does the second it look at", ("it", 2)),
    ("what does the 3rd word it look at", ("it", 3)),
    ("what did the last dog look at", ("dog", -1)),
    ("what does the second look at", ("second", None)),  # the word itself
    ("what does 'the' attend to", ("the", None)),
    ("what does New York look at", ("New York", None)),
    ("to what does it attend", ("it", None)),
    ("it looks at what?", ("it", None)),
    ("where is the attention of it", ("it", None)),
    ("它在看什么", ("它", None)),
    ("它关注哪里？", ("它", None)),
    ("它在看哪里呢", ("它", None)),
    ("它注意到了谁", ("它", None)),
    ("它的注意力在哪里", ("它", None)),
    ("第二个它看什么", ("它", 2)),
    ("第3个它关注哪些词", ("它", 3)),
    ("最后一个它在看哪个词", ("它", -1)),
    ("「貓」在看什麼", ("貓", None)),
    ("什么是它关注的", ("它", None)),
]


def test_a_question_names_the_word_that_it_asks_about():
    for case in sweep(ASKED):
        with case as (question, name):
            assert asked_of(question) == name


def test_a_text_that_asks_nothing_is_no_question():
    for case in sweep(["it", "它", "the old cat", "什么", "why", "", "looking at", "animal#2", "因为它", "什"]):
        with case as text:
            assert asked_of(text) is None


REVERSED = ["what attends to it", "who looks at the animal?", "what is looking at it", "谁在看它", "什么关注它"]
REVERSED += ["它被谁关注", "which words look at it", "what is it attended to by"]
OTHERS = [
    "what does it refer to",
    "what is it",
    "why is it tired",
    "它指的是什么",
    "它为什么饿",
    "how many heads",
]


def test_other_questions_are_refused_with_what_can_be_asked():
    for case in sweep(REVERSED + OTHERS):
        with case as question:
            with pytest.raises(InputError, match=r"what does it look at.*第二个它看什么") as refused:
                asked_of(question)
            assert ("which words look at one" in str(refused.value)) == (question in REVERSED)


WORDS = ["It", "slept", "because", "it", "was", "tired", "and", "it", "purred", "它"]
TOKENS = [Token(word, word=at, space=at > 0) for at, word in enumerate(WORDS)]


def test_a_place_is_found_by_a_question():
    for question, at in [
        ("what does the second it look at", 3),
        ("the last it", 7),
        ("the second it", 3),
        ("它在看什么", 9),
        ("what did tired attend to?", 5),
    ]:
        assert find_place(TOKENS, question).positions == (at,)


def test_what_the_text_itself_has_is_no_question():
    text = [Token(word, word=at, space=at > 0) for at, word in enumerate("what does it look at ?".split())]
    assert find_place(text, "what does it look at").positions == (0, 1, 2, 3, 4)


def test_a_word_of_a_question_that_the_text_does_not_have_is_named():
    with pytest.raises(InputError, match=re.escape("got 'giraffe'")):
        find_place(TOKENS, "what does the giraffe look at")
    with pytest.raises(InputError, match="“tired” occurs once"):
        find_place(TOKENS, "what does the second tired look at")
