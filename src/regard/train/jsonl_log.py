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

_WAY = "remove the line, or the file: the checkpoints are enough to go on from"


class Journal:
    """A listener that writes events to a file, and forgets on a restart what comes again.

    Args:
        path: The file; it is added to.

    `note` says, once the run has started, what is missing of the steps before.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.note = path, ""

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if isinstance(event, Started):
            last = self._forget(event.step)
            if last < event.step:
                behind = f"ends with step {last:,}" if last else "is gone or empty"
                self.note = f"{self.path} {behind}: the curves lack steps {last + 1:,} to {event.step:,}"
        if isinstance(event, Saved):
            return  # where they lie is what the folder says
        found = {"event": type(event).__name__.lower(), **asdict(event)}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_plain(found), ensure_ascii=False) + "\n")
        except OSError as problem:
            raise InputError(f"cannot write {self.path}: {problem.strerror}; the checkpoints are whole") from problem

    def _forget(self, step: int) -> int:
        """Drop what was logged behind the checkpoint that the run goes on from, and a line that a kill has cut.

        The last step that is left, 0 where there is none.
        """
        if not self.path.exists():
            return 0
        kept = [one for one in read_journal(self.path) if one["step"] <= step and one["event"] != "ended"]
        text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept)
        try:
            write_atomically(self.path, text.encode())
        except InputError as problem:
            raise InputError(f"{problem}; the checkpoints are whole") from problem
        return max((one["step"] for one in kept if one["event"] == "stepped"), default=0)


def read_journal(path: str | Path) -> list[dict[str, Any]]:
    """The events of a log, but for a last line that was cut.

    Raises:
        InputError: The file cannot be read, or another line is no JSON, or a line is no event.
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
            event = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as problem:
            if number < len(lines):
                raise InputError(f"cannot read line {number} of {path}: {problem}; {_WAY}") from problem
            break
        if (what := _is_no_event(event)) is not None:
            raise InputError(f"cannot read line {number} of {path}: {what}; {_WAY}")
        found.append(event)
    return found


def _is_no_event(found: Any) -> str | None:
    """What a line says otherwise than `Journal` writes it, as far as anything of it is used again."""
    if not isinstance(found, dict):
        return "it is no event, an object of JSON"
    if not isinstance(found.get("event"), str) or type(found.get("step")) is not int:
        return f'"event" must be a text and "step" a whole number, got {found.get("event")!r} and {found.get("step")!r}'
    numbers = {"stepped": ("loss", "rate"), "evaluated": ("scores",)}.get(found["event"], ())
    for name in numbers:
        values = found.get(name)
        if name == "scores" and not isinstance(values, dict):
            return f'"scores" must be an object, got {values!r}'
        for one in values.values() if isinstance(values, dict) else (values,):
            if type(one) not in (int, float, type(None)):  # None: it was not finite
                return f'"{name}" must hold numbers, got {one!r}'
    return None


def _plain(value: Any) -> Any:
    """What JSON can say: it knows no NaN."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
