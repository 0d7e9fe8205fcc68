"""How a command ends when it is told to."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["terminable"]


@contextmanager
def terminable() -> Iterator[None]:
    """End by SIGTERM as by Ctrl-C: after what is finished was named, with exit code 143."""

    def end(number: int, _: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
