"""Standard output of a text that is being generated: its tokens as text, without a character that is not whole."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.status import Status

from regard.cli.console import TextConsole
from regard.errors import InputError

__all__ = ["Detokenizer", "Screen"]

_BROKEN = "\ufffd"  # what stands for bytes that are no character, or not yet
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a piece of one byte, as SentencePiece spells it
_HELD = 32  # tokens that may wait to become text: only bytes that are no text get there
_ECHO = 2000  # characters of a text that are shown again before what is new


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


class Screen:
    """Standard output: in a terminal the text, dim, and behind it what is written; elsewhere that alone."""

    def __init__(self, status: Status, before: str, detokenizer: Detokenizer) -> None:
        self._status, self._before, self._detokenizer = status, before, detokenizer
        self._terminal, self._begun = sys.stdout.isatty(), False

    def show(self, tokens: Iterable[int], stop: Sequence[int]) -> list[int]:
        """Show tokens as they come, end the line, and give them back."""
        written = []
        try:
            for token in tokens:
                written.append(token)
                if token not in stop:
                    self._put(self._detokenizer.add(token))
            self._put(self._detokenizer.end() + "\n")
        except (KeyboardInterrupt, InputError):  # what was written stays, and what follows has its own line
            if self._begun:
                self._put("\n")
            raise
        return written

    def _put(self, text: str) -> None:
        if not text:
            return
        if not self._begun:
            self._begun = True
            self._status.stop()  # before anything else is on the line
            if self._terminal and self._before:
                cut = "…" if len(self._before) > _ECHO else ""
                echo = _harmless(cut + self._before[-_ECHO:])
                TextConsole().print(echo, style="dim", end="", soft_wrap=True)
        sys.stdout.write(_harmless(text) if self._terminal else text)
        sys.stdout.flush()


def _harmless(text: str) -> str:
    """Spell what would steer a terminal."""
    from regard.render.labels import visible

    if text.isprintable():
        return text
    return "".join(one if one in " \n\t" else visible(one) for one in text)
