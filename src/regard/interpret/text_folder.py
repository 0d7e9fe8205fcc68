"""The folder of a run over many texts: for each finished text a file with its result, or with why it has none."""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import lock, write_atomically

__all__ = ["TextFolder", "open_text_folder"]

_RUN, _MODEL = "run.json", "model.json"


class TextFolder:
    """Results by the numbers of the texts, such as 000007.atlas, and reasons for having none, 000007.txt.

    Args:
        path: Where they are.
        suffix: What the results' names end in.
        numbers: The texts' numbers.
        made: Whether the folder was made for them.
    """

    def __init__(self, path: Path, suffix: str, numbers: Collection[int], *, made: bool = True) -> None:
        self.path, self._suffix, self._numbers, self._made = path, suffix, frozenset(numbers), made

    def check_run(self, identity: Mapping[str, Any]) -> None:
        """Save what identifies the run in a file of the folder, or compare it with what is there.

        Raises:
            InputError: The folder belongs to another run, or the file cannot be read or written.
        """
        self._check(_RUN, identity)

    def check_model(self, identity: Mapping[str, Any]) -> None:
        """Do the same with what identifies the model, which only workers load."""
        self._check(_MODEL, identity)

    def _check(self, name: str, identity: Mapping[str, Any]) -> None:
        file, now = self.path / name, json.loads(json.dumps(identity))
        if not file.exists():
            write_atomically(file, json.dumps(now).encode())
        try:
            before = json.loads(file.read_text("utf-8"))
            key = next((key for key in {**before, **now} if before.get(key) != now.get(key)), None)
        except (OSError, ValueError, TypeError) as broken:
            raise InputError(f"{file} cannot be read ({broken}): remove {self.path} to start over") from broken
        if key is not None:
            raise InputError(
                f"{self.path} belongs to another run, whose {key} was {_short(before.get(key))} and is now "
                f"{_short(now.get(key))}: run it with the same, name another folder, or remove it to start over"
            )

    def result(self, number: int) -> Path:
        """Return the path of a text's result."""
        return self.path / f"{number:06}{self._suffix}"

    def _reason(self, number: int) -> Path:
        return self.path / f"{number:06}.txt"

    def leave_out(self, number: int, reason: str) -> None:
        """Save why a text has no result, and remove the drafts of workers that were killed while they saved it."""
        write_atomically(self._reason(number), reason.encode("utf-8", "backslashreplace"))
        for draft in self.path.glob(f".{number:06}*.part"):
            draft.unlink()

    def finished(self) -> set[int]:
        """Return the numbers of the texts that have a result, or a reason for having none."""
        pattern = re.compile(rf"(\d{{6,}})(?:{re.escape(self._suffix)}|\.txt)")
        return {int(match[1]) for match in map(pattern.fullmatch, os.listdir(self.path)) if match} & self._numbers

    def reasons(self) -> dict[int, str]:
        """Return the reasons of the texts that have no result."""
        numbers = (one for one in sorted(self.finished()) if not self.result(one).exists())
        return {number: self._reason(number).read_text("utf-8") for number in numbers}

    def remove(self) -> None:
        """Remove the files of the run, and the folder if it was made for them; what a kill leaves is a run still."""
        for number in self._numbers:
            self.result(number).unlink(missing_ok=True)
            self._reason(number).unlink(missing_ok=True)
        for file in (*self.path.glob(".[0-9]*.part"), self.path / _MODEL, self.path / _RUN):
            file.unlink(missing_ok=True)
        if self._made:
            with suppress(OSError):  # somebody has put something else there
                self.path.rmdir()


@contextmanager
def open_text_folder(
    path: Path, suffix: str, numbers: Collection[int], identity: Mapping[str, Any]
) -> Iterator[TextFolder]:
    """Make the folder of a run, or open that of an interrupted one, for this process; it goes if nothing is finished.

    Raises:
        InputError: It cannot be made, holds something else, belongs to another run, or is open in another process.
    """
    try:
        was_there = path.is_dir()
        path.mkdir(exist_ok=True)
        content = os.listdir(path)
        held = lock(path)
    except BlockingIOError as problem:
        raise InputError(
            f"another process works on the texts in {path}: wait until it has ended, or name another folder"
        ) from problem
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or problem}") from problem
    try:
        if content and _RUN not in content:
            raise InputError(f"{path} is not empty, and what it holds belongs to no run over texts: name a new folder")
        folder = TextFolder(path, suffix, numbers, made=not was_there or bool(content))
        folder.check_run(identity)
        try:
            yield folder
        finally:
            if path.exists() and not folder.finished():
                folder.remove()
    finally:
        if held is not None:
            os.close(held)


def _short(value: Any) -> str:
    return "not given" if value is None else f"{value!r:.40}"
