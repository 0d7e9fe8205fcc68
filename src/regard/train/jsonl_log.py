"""A log in JSON Lines: each event is an object on a line of its own."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import write_atomically
from regard.train.events import Event, Saved, Started
from regard.train.key_names import FORMAT

__all__ = ["JsonlLog", "read_log"]

_WAY = "remove the line, or the file: the checkpoints are enough to resume from"


class JsonlLog:
    """A callback that appends events to a file; when a run resumes, it drops the events that will come again.

    Args:
        path: The file; events are appended.

    `note` names, once a run has resumed, the earlier steps that the log lacks.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.note = path, ""

    def __call__(self, event: Event) -> None:
        """Append one event."""
        if isinstance(event, Started):
            last = self._forget(event.step)
            if last < event.step:
                state = f"ends with step {last:,}" if last else "is gone or empty"
                self.note = f"{self.path} {state}: the curves lack steps {last + 1:,} to {event.step:,}"
        if isinstance(event, Saved):
            return  # the folder lists them
        found = {"event": type(event).__name__.lower(), **asdict(event)}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_plain(found), ensure_ascii=False) + "\n")
        except OSError as problem:
            raise InputError(f"cannot write {self.path}: {problem.strerror}; the checkpoints are whole") from problem

    def _forget(self, step: int) -> int:
        """Drop what was logged after the checkpoint that the run resumes from, and a line that a kill has cut.

        Returns the last step that is left, 0 where there is none.
        """
        if not self.path.exists():
            return 0
        kept = [one for one in read_log(self.path) if one["step"] <= step and one["event"] != "ended"]
        text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept)
        try:
            write_atomically(self.path, text.encode())
        except InputError as problem:
            raise InputError(f"{problem}; the checkpoints are whole") from problem
        return max((one["step"] for one in kept if one["event"] == "stepped"), default=0)


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Return the events of a log as dictionaries, without a last line that was cut.

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
    """Return why a line is not one that `JsonlLog` writes, as far as anything of it is used again."""
    if not isinstance(found, dict):
        return "it is no event, an object of JSON"
    if not isinstance(found.get("event"), str) or type(found.get("step")) is not int:
        return f'"event" must be a text and "step" a whole number, got {found.get("event")!r} and {found.get("step")!r}'
    numbers = {"stepped": ("loss", "learning_rate"), "evaluated": ("scores",)}.get(found["event"], ())
    if found["event"] == "stepped" and "rate" in found:
        return f"it is of log format 1, and this release reads format {FORMAT}: its release reads it"
    for name in numbers:
        values = found.get(name)
        if name == "scores" and not isinstance(values, dict):
            return f'"scores" must be an object, got {values!r}'
        for one in values.values() if isinstance(values, dict) else (values,):
            if type(one) not in (int, float, type(None)):  # None: it was not finite
                return f'"{name}" must hold numbers, got {one!r}'
    return None


def _plain(value: Any) -> Any:
    """Return values that JSON has: NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
