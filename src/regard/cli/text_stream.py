"""Standard output of a text that is being written."""

import sys
from collections.abc import Iterable, Sequence

from rich.status import Status

from regard.cli.console import TextConsole
from regard.cli.detokenizer import Detokenizer
from regard.errors import InputError

__all__ = ["Screen"]

_ECHO = 2000  # characters of a text that are shown again before what is new


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
