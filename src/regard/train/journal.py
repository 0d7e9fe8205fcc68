"""A log in JSON Lines: each event an object a line, as any tool reads it."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import write_atomically
from regard.train.events import Event, Saved, Started

__all__ = ["Journal", "read_journal"]


class Journal:
    """A listener that writes events to a file, and forgets on a restart what comes again.

    Args:
        path: The file; it is added to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if isinstance(event, Started):
            self._forget(event.step)
        if isinstance(event, Saved):
            return  # where they lie is what the folder says
        found = {"event": type(event).__name__.lower(), **asdict(event)}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_plain(found), ensure_ascii=False) + "\n")
        except OSError as problem:
            raise InputError(f"cannot write {self.path}: {problem.strerror}; the checkpoints are whole") from problem

    def _forget(self, step: int) -> None:
        """Drop what was logged behind the checkpoint that the run goes on from, and a line that a kill has cut."""
        if not self.path.exists():
            return
        kept = [one for one in read_journal(self.path) if one["step"] <= step and one["event"] != "ended"]
        text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept)
        try:
            write_atomically(self.path, text.encode())
        except InputError as problem:
            raise InputError(f"{problem}; the checkpoints are whole") from problem


def read_journal(path: str | Path) -> list[dict[str, Any]]:
    """The events of a log, but for a last line that was cut.

    Raises:
        InputError: The file cannot be read, or another line is no JSON.
    """
    try:  # not splitlines(): a sample may hold a line separator of Unicode's; and a cut may go through a character
        lines = Path(path).read_bytes().removesuffix(b"\n").split(b"\n")
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem}") from problem
    found: list[dict[str, Any]] = []
    if lines == [b""]:
        return found
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line.decode("utf-8")))
        except ValueError as problem:
            if number < len(lines):
                raise InputError(f"cannot read line {number} of {path}: {problem}") from problem
    return found


def _plain(value: Any) -> Any:
    """What JSON can say: it knows no NaN."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
