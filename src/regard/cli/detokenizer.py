"""Tokens that come one by one as text, without a character that is not whole."""

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["Detokenizer"]

_BROKEN = "\ufffd"  # what stands for bytes that are no character, or not yet
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a piece of one byte, as SentencePiece spells it
_HELD = 32  # tokens that may wait to become text: only bytes that are no text get there


class Detokenizer:
    """Text from tokens that come one by one, each part as soon as no later token can change it.

    Only a tail of the tokens is ever decoded: what was shown last, for the spaces between tokens, and what waits.
    Special tokens are left out.

    Args:
        tokenizer: One of transformers.
        before: The tokens of the text that is continued; none where a new text begins.
    """

    def __init__(self, tokenizer: Any, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._tail = list(before)
        self._read, self._shown = len(self._tail), self._decode(self._tail)

    def add(self, token: int) -> str:
        """Take the next token and give the text that is complete now, which may be none."""
        self._tail.append(token)
        text = self._decode(self._tail)
        waiting = len(self._tail) - self._read
        if text == self._shown:  # a special token, or one that the tokenizer does not know
            if waiting > _HELD:
                self._tail.pop()
            return ""
        if text.endswith(_BROKEN):
            return "" if waiting < _HELD else self._show(text)
        # A wrong byte breaks the characters of all bytes before it; a long row of right ones is shown all the same.
        byte = _BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token)))
        return "" if byte and waiting < _HELD // 2 else self._show(text)

    def end(self) -> str:
        """Give what is left: bytes that have become no character are U+FFFD."""
        return self._show(self._decode(self._tail))

    def _show(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._tail = self._tail[self._read :]
        self._read, self._shown = len(self._tail), self._decode(self._tail)
        return new

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
