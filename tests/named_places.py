"""Names of places in texts and what they mean, by the characters of the text: for Python and for the page."""

from regard.record.tokens import Token

__all__ = ["CAT", "PLACES", "given", "spaced"]

CAT = "the cat sat on the mat and the other Cat slept , it 's with it"


def given(*texts: str) -> list[Token]:
    """Tokens that a caller named, each a word."""
    return [Token(text) for text in texts]


def spaced(text: str) -> list[Token]:
    """Words of a text with spaces, of pieces that "|" parts; apostrophes stay with their word."""
    tokens, word = [], -1
    for one in text.split(" "):
        word += 1
        for number, piece in enumerate(one.split("|")):
            tokens.append(Token(piece, word=word, space=bool(tokens) and not number))
    return tokens


PLACES = [
    # tokens, name, positions, what was found, number, count
    (spaced(CAT), "cat", (1,), "cat", 1, 2),
    (spaced(CAT), "CAT", (1,), "cat", 1, 2),
    (spaced(CAT), "Cat", (1,), "cat", 1, 2),  # case never tells words apart: many tokenizers drop it
    (spaced(CAT), ("cat", 2), (9,), "Cat", 2, 2),
    (spaced(CAT), "cat#-1", (9,), "Cat", 2, 2),
    (spaced(CAT), ("THE", -1), (7,), "the", 3, 3),
    (spaced(CAT), "it", (12,), "it", 1, 2),
    (spaced(CAT), "it#2", (15,), "it", 2, 2),
    (spaced(CAT), "on the  mat", (3, 4, 5), "on the mat", 1, 1),
    (spaced(CAT), "2", (1,), "cat", 1, 1),
    (spaced(CAT), "-1", (15,), "it", 1, 1),
    (spaced(CAT), "2:4", (1, 2, 3), "cat sat on", 1, 1),
    (spaced(CAT), 0, (0,), "the", 1, 1),
    (spaced(CAT), -2, (14,), "with", 1, 1),
    (spaced(CAT), range(1, 3), (1, 2), "cat sat", 1, 1),
    (spaced(CAT), slice(None, 2), (0, 1), "the cat", 1, 1),
    (spaced(CAT), "slep", (10,), "slep", 1, 1),
    (spaced("with bits"), "it", (0,), "it", 1, 2),  # inside a word, where nothing else is named so
    (spaced("it's with him"), "it", (0,), "it", 1, 1),
    (spaced("with it's it"), "it", (2,), "it", 1, 1),
    (spaced("bits izer|s izer"), "izer", (3,), "izer", 1, 1),
    (spaced("token|izer izer|s"), "izer", (1,), "izer", 1, 2),
    (spaced("token|izer izer|s"), "tokenizer", (0, 1), "tokenizer", 1, 1),
    (spaced("13 cats"), "1", (0,), "13", 1, 1),  # a number, not the inside of another
    (spaced("1 of 13"), "13", (2,), "13", 1, 1),
    (spaced("at 3:15 or 4"), "3:15", (1,), "3:15", 1, 1),
    (spaced("v#2 and v"), "v#2", (0,), "v#2", 1, 1),  # the text itself before an occurrence
    (spaced("Mädchen madchen"), "Madchen", (1,), "madchen", 1, 1),
    (spaced("Mädchen naïve"), "NAIVE", (1,), "naïve", 1, 1),  # accents, if nothing else is equal
    (spaced("see O ' Brien (now)"), "O'Brien", (1, 2, 3), "O ' Brien", 1, 1),
    (spaced("Straße STRASSE"), "strasse", (0,), "Straße", 1, 2),
    (spaced("ＦＵＬＬ width"), "full", (0,), "ＦＵＬＬ", 1, 1),
    (spaced("m² of m"), "m", (2,), "m", 1, 1),
    (spaced("cafe\u0301 café"), ("café", 2), (1,), "café", 2, 2),
    (spaced("cafe\u0301 café"), ("cafe\u0301", 1), (0,), "cafe\u0301", 1, 2),
    (spaced("naïve naive"), "naive", (1,), "naive", 1, 1),
    (spaced("한국 \u1112\u1161\u11ab국"), ("한국", 2), (1,), "\u1112\u1161\u11ab국", 2, 2),
    (given("New", "York", "is", "new"), "new york", (0, 1), "New York", 1, 1),
    (given("(3,1)", "cls", "(3,11)"), "(3,1)", (0,), "(3,1)", 1, 1),
    (given("老", "鼠", "因為它"), "老鼠", (0, 1), "老鼠", 1, 1),
    (given("因為它", "它", "其它", "餓"), "它", (1,), "它", 2, 3),  # whole first, and all are counted
    (given("因為它", "它", "其它", "餓"), "它#1", (0,), "它", 1, 3),
    (given("因為它", "它", "其它", "餓"), ("它", -1), (2,), "它", 3, 3),
    (given("因為它", "它", "其它", "餓"), "它＃２", (1,), "它", 2, 3),
    (given("老", "鼠", "因為它"), "它", (2,), "它", 1, 1),
    (given("貓¹", "貓²", "貓³", "m²"), "貓", (0, 1, 2), "貓", 1, 1),
    ([Token("[CLS]", special=True), *spaced("a cls [CLS]")], "[CLS]", (3,), "[CLS]", 1, 1),
    ([Token("[CLS]", special=True), *spaced("a b")], "[cls]", (0,), "[CLS]", 1, 1),
    ([Token("new"), Token("[SEP]", special=True), Token("york")], "new", (0,), "new", 1, 1),
]
