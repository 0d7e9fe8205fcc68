"""How a command ends when it is told to."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

__all__ = ["Terminable"]


class Terminable:
    """End by SIGTERM as by Ctrl-C: after what is finished was named, with exit code 143.

    Neither comes between a result and its being counted: what is done in `whole` is done to its end first.
    A signal that whoever started the program ignores stays ignored.
    """

    def __enter__(self) -> Self:
        """Take over the signals."""
        self._is_held, self._received = False, 0
        heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._receive) for number in heard}
        return self

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let a signal wait; the second one does not, as nobody may read the pipe that is written to."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._received:
                self._end(self._received)

    def _receive(self, number: int, _: FrameType | None) -> None:
        waits, self._received = self._is_held and not self._received, number
        if not waits:
            self._end(number)

    @staticmethod
    def _end(number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
