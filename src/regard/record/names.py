"""How words, layers and heads are written: words with visible characters, and layers with their stream."""

import unicodedata

from regard.record.layers import several_streams, stream_of
from regard.record.records import Record

__all__ = ["BLANK", "head_name", "layer_name", "visible"]

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # used in Persian and in emoji
_NUMBERS = "⁰¹²³⁴⁵⁶⁷⁸⁹"  # of the bytes of a character
BLANK = "␣"  # a piece of white space only
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def visible(text: str) -> str:
    r"""Replace invisible characters, so that no token can control a terminal or reorder a line.

    >>> print(visible("a\x1b[31mb\n"), visible(""), visible(" "))
    a\x1b[31mb\n ␣ ␣
    >>> print(visible("\u200d¹"), visible("\u0301"))  # a joiner, and a mark without its letter
    \u200d¹ ◌́
    """
    if not text.strip(" "):
        return BLANK
    if text[0] in _JOINERS and text[1:] and not text.strip(_JOINERS + _NUMBERS):
        return "".join(map(_escaped, text))
    if unicodedata.category(text[0])[0] == "M":
        text = f"◌{text}"
    if text.isprintable():  # the usual case
        return text
    return "".join(_spell(character) for character in text)


def _spell(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if unicodedata.category(character) not in _HIDDEN or character in _JOINERS:
        return character
    return _escaped(character)


def _escaped(character: str) -> str:
    if character in _NUMBERS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def layer_name(record: Record, index: int) -> str:
    """Return the name of a layer: its number, and its stream if there are several."""
    layer = record.layers[index]
    number = f"layer {record.number(layer)}"
    if not several_streams(record.layers):
        return number
    stream = stream_of(layer)
    return f"{stream if isinstance(stream, str) else ' → '.join(stream)} {number}"


def head_name(record: Record, index: int, head: int) -> str:
    """Return the name of a head, with the values for `record.weights(stream=, layer=, head=)`."""
    return f"{layer_name(record, index)} head {head}"
