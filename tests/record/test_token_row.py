"""Which token is meant by a word, a number, or nothing."""

import pytest

from regard.errors import InputError
from regard.record.tokens import Token, TokenRow, token_row
from sweeps import sweep

TOKENS = (
    Token("[CLS]", special=True),
    Token("the", word=0),
    Token("token", word=1),
    Token("izer", word=1),
    Token("2", word=2),
    Token("[SEP]", special=True),
)


WANTED = [
    ("tokenizer", TokenRow(2, "tokenizer", 2)),
    ("The", TokenRow(1, "the")),
    ("4", TokenRow(3, "izer")),
    ("2", TokenRow(4, "2")),  # a word before a number
    (None, TokenRow(4, "2")),
]


def test_a_token_is_a_word_or_a_number_from_one():
    for case in sweep(WANTED):
        with case as (wanted, found):
            assert token_row(TOKENS, wanted) == found


@pytest.mark.parametrize("wanted", ["cat", "0", "7", "-1", ""])
def test_no_such_token_names_those_there_are(wanted):
    with pytest.raises(
        InputError, match=r"word of the text \(\[CLS\] the tokenizer 2 \[SEP\]\) or a number from 1 to 6"
    ):
        token_row(TOKENS, wanted)
