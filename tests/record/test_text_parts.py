"""The parts of texts: sentences of several scripts, paragraphs, lines, and spans of the caller's."""

import pytest

from regard.errors import InputError
from regard.record.text_parts import find_parts, sentences
from sweeps import sweep


def found(text, kind, name=""):
    return [text[start:end] for start, end in find_parts(text, kind, name)]


def test_sentences_of_english_chinese_and_both():
    text = "Mr. Smith paid $3.50 in Washington, D.C. on Jan. 5. “Really?” she asked.\n\n"
    text += "他說：「好的。」然後走了！真的嗎？是。"
    assert found(text, "sentence") == [
        "Mr. Smith paid $3.50 in Washington, D.C. on Jan. 5.",
        "“Really?” she asked.",
        "他說：「好的。」",
        "然後走了！",
        "真的嗎？",
        "是。",
    ]


def test_paragraphs_are_between_blank_lines():
    text = "\n\n One.\nStill one.\n \n\tTwo.\n\n\n"
    assert found(text, "paragraph") == ["One.\nStill one.", "Two."]
    assert found(text, "document") == [text.strip()]


LINES = [
    ("def f(x):\n    return x + 1\n\nprint(f(2))\n", "f.py"),
    ("name\tage\nAnna\t3\nBoris\t4\n", ""),
    ("| a | b |\n|---|---|\n| 1 | 2 |", "table.md"),
    ("a,b\n1,2\n", "t.CSV"),
    ("- buy milk\n- call Anna\n- sleep", ""),
]


def test_code_tables_and_lists_have_lines():
    for case in sweep(LINES):
        with case as (text, name):
            assert found(text, "auto", name) == [line.strip() for line in text.splitlines() if line.strip()]


def test_wrapped_prose_has_sentences():
    text = "It rained for\nthree days. Then the\nsun came out and\nwe left."
    assert found(text, "auto", "notes.txt") == ["It rained for\nthree days.", "Then the\nsun came out and\nwe left."]


def test_a_typed_chat_has_sentences():
    text = "<|im_start|>user\nIt rained. We stayed.<|im_end|>\n<|im_start|>assistant\nWhere?<|im_end|>\n"
    parts = found(text, "auto")
    assert parts == found(text, "sentence")
    assert "We stayed." in parts


def test_characters_beyond_the_first_plane_count_as_one():
    text = "😀 first 😀. Second 𝒳 one."
    assert [text[start:end] for start, end in sentences(text)] == ["😀 first 😀.", "Second 𝒳 one."]


NO_SPANS = [[], [(0, 0)], [(2, 1)], [(0, 11)], [(0, 3), (2, 4)], [(0, 1.5)], [(0,)], [(True, 3)], "", {"a": 1}, 7]


def test_spans_that_are_none_are_refused():
    for case in sweep(NO_SPANS):
        with case as spans, pytest.raises(InputError, match="`parts` must be"):
            find_parts("four words", spans)


def test_spans_are_taken_as_they_are():
    assert find_parts("abcdef", [(0, 2), (2, 6)]) == [(0, 2), (2, 6)]
    with pytest.raises(InputError, match=r"auto, document, paragraph, sentence, line.*'words'"):
        find_parts("abc", "words")
