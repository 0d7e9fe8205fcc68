"""Texts that several processes share through a folder, each finished once, without a connection between the processes.

A text is claimed by a hard link to a file of the worker, `claims/000007.0`, which one worker alone can make. The worker
has locked its file and renews its time: a claim whose file can be locked, or whose time stays the same, is a lost
worker's, and another one makes the next link, `claims/000007.1`. A result is moved to its name by a hard link too, so
that there is one, whole, also where a worker that was taken for lost goes on.
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import lock, write_atomically

__all__ = ["BEATS", "SILENCE", "Claims", "Silence", "TextFolder"]

SILENCE = 30.0  # seconds without a sign of life, after which a worker counts as lost; to load a library may take some
BEATS = 15  # signs of life in this time
_POLL = 0.2  # seconds between two looks at texts that others have
_RUN = "run.json"
_DIGITS = 6


class TextFolder:
    """A folder with a result, or a reason for having none, for each finished text.

    Args:
        folder: Where the results are; it is created, and so is `claims` in it.
        suffix: What the results' names end in. Reasons end in .txt.
        numbers: The texts' numbers, those of their lines, in the order in which they are begun; 0 is work that is done
            once for all texts.
    """

    def __init__(self, folder: Path, suffix: str, numbers: Collection[int]) -> None:
        self.folder, self.suffix, self.numbers = folder, suffix, tuple(numbers)
        self.claims = folder / "claims"

    def create(self) -> None:
        """Make the folders.

        Raises:
            InputError: They cannot be made, or the folder is not empty and none of a run.
        """
        try:
            self.folder.mkdir(exist_ok=True)
            own = {_RUN, self.claims.name}
            if (there := os.listdir(self.folder)) and not own & set(there):
                raise InputError(
                    f"{self.folder} is not empty, and what it holds belongs to no run over texts: name a new folder"
                )
            self.claims.mkdir(exist_ok=True)
        except OSError as problem:
            raise InputError(f"cannot write {self.folder}: {problem.strerror or problem}") from problem

    def hold(self, name: str, identity: Mapping[str, Any]) -> None:
        """Write what identifies the run into a file of the folder, or compare it with what is there.

        Raises:
            InputError: The folder belongs to another run.
        """
        path, now = self.folder / name, json.loads(json.dumps(identity))
        if not path.exists():
            with _draft(self.claims, name) as draft:
                write_atomically(draft, json.dumps(now).encode())
                if _link(draft, path):
                    return
        try:
            before = json.loads(path.read_text("utf-8"))
            other = [one for one in {**before, **now} if before.get(one) != now.get(one)]
        except (OSError, ValueError, TypeError) as broken:
            raise InputError(f"{path} cannot be read ({broken}): remove {self.folder} to start over") from broken
        if other:
            raise InputError(
                f"{self.folder} belongs to another run, whose {other[0]} was {_short(before.get(other[0]))} and is now "
                f"{_short(now.get(other[0]))}: run it with the same, name another folder, or remove it to start over"
            )

    def result(self, number: int) -> Path:
        """Return the path of a text's result."""
        return self.folder / f"{number:0{_DIGITS}}{self.suffix}"

    def reason(self, number: int) -> Path:
        """Return the path of the reason why a text has no result."""
        return self.folder / f"{number:0{_DIGITS}}.txt"

    def is_finished(self, number: int) -> bool:
        """Return whether a text has a result, or a reason for having none."""
        return self.result(number).exists() or self.reason(number).exists()

    def finished(self) -> set[int]:
        """Return the numbers of the texts that are finished.

        Raises:
            FileNotFoundError: The folder is gone.
        """
        found = re.compile(rf"(\d{{{_DIGITS},}})(?:{re.escape(self.suffix)}|\.txt)")
        matches = map(found.fullmatch, os.listdir(self.folder))
        return {int(match[1]) for match in matches if match} & set(self.numbers)

    def reasons(self) -> dict[int, str]:
        """Return the reasons of the texts that have no result."""
        without = [one for one in self.numbers if self.reason(one).exists() and not self.result(one).exists()]
        return {one: self.reason(one).read_text("utf-8") for one in without}

    def worker(self, name: str) -> Path:
        """Return the file of a worker."""
        return self.claims / f"{name}.worker"

    def workers(self) -> list[Path]:
        """Return the files of all workers that have begun, also of those that are lost."""
        return sorted(self.claims.glob("*.worker"))

    def claimed_by(self, worker: Path) -> list[int]:
        """Return the unfinished texts that a worker has claimed."""
        found = set()
        for path in self.claims.iterdir():
            if re.fullmatch(r"\d+\.\d+", path.name):
                with contextlib.suppress(OSError):  # gone between the two: it was finished
                    if os.path.samefile(path, worker):
                        found.add(int(path.stem))
        return sorted(one for one in found if not self.is_finished(one))

    def remove(self, *, results: bool) -> None:
        """Remove the claims, or the whole folder, at once: no worker finds half of it."""
        whole = self.folder if results else self.claims
        gone = tempfile.mkdtemp(prefix=f".{whole.name}.", dir=whole.parent)
        with contextlib.suppress(FileNotFoundError):  # where another process of the run has done it
            os.rename(whole, Path(gone, whole.name))
        shutil.rmtree(gone, ignore_errors=True)


class Silence:
    """Finds the workers that are lost, by their files, or by claims, which are the same files.

    A sign of life is compared with the last one that was seen here, so clocks of several machines need not agree; and
    time counts only while somebody looks, so that a machine that slept, or a stopped terminal, loses no worker.
    """

    def __init__(self, seconds: float = SILENCE) -> None:
        self.limit = seconds
        self._seen: dict[Path, tuple[int, float, float]] = {}  # the last sign, when it was looked at, the silence

    def seconds(self, path: Path) -> float:
        """Return for how long there was no new sign of life.

        Raises:
            FileNotFoundError: There is no such file any more.
        """
        sign, now = path.stat().st_mtime_ns, time.monotonic()
        before, looked, silence = self._seen.get(path, (sign, now, 0.0))
        silence = silence + min(now - looked, self.limit / 5) if before == sign else 0.0
        self._seen[path] = sign, now, silence
        return silence

    def is_lost(self, path: Path) -> bool:
        """Return whether the worker's process has ended, or is silent for too long."""
        held = lock(path)
        if held is not None:
            os.close(held)
            return True
        try:
            return self.seconds(path) > self.limit
        except FileNotFoundError:
            return False


class Claims:
    """What one worker claims and finishes. A process that ends lets go of all it has claimed.

    Args:
        texts: The folder.
        name: The worker's name, which no other has.
        silence: Seconds after which another worker counts as lost.
    """

    def __init__(self, texts: TextFolder, name: str, *, silence: float = SILENCE) -> None:
        self.texts, self.name, self.file = texts, name, texts.worker(name)
        self.file.touch(exist_ok=False)
        self._held = lock(self.file, wait=True)  # open, and so locked, for as long as the process lives
        self._others = Silence(silence)

    def beat(self) -> None:
        """Give a sign of life."""
        with contextlib.suppress(FileNotFoundError):  # the run is over
            os.utime(self.file)

    def take(self) -> Iterator[int]:
        """Yield the texts that this worker is to do: those that nobody has, and then those of lost workers.

        It ends when all texts are finished, or the folder is gone.
        """
        with contextlib.suppress(FileNotFoundError):
            for number in self.texts.numbers:
                if self._claim(number, 0):
                    yield number
            while len(done := self.texts.finished()) < len(self.texts.numbers):
                for number in [one for one in self.texts.numbers if one not in done]:
                    if self._take_over(number):
                        yield number
                time.sleep(min(_POLL, self._others.limit / BEATS))

    def finish(self, number: int, write: Callable[[Path], None]) -> bool:
        """Let `write` write a result, and give it its name; return False where another worker was faster."""
        with _draft(self.texts.claims, f"{number}.{self.name}", self.texts.suffix) as draft:
            write(draft)
            first = _link(draft, self.texts.result(number))
        self._release(number)
        return first

    def skip(self, number: int, reason: str) -> bool:
        """Write why a text has no result; return False where another worker was faster."""
        with _draft(self.texts.claims, f"{number}.{self.name}", ".txt") as draft:
            write_atomically(draft, reason.encode("utf-8", "backslashreplace"))
            first = not self.texts.result(number).exists() and _link(draft, self.texts.reason(number))
        self._release(number)
        return first

    def _claim(self, number: int, generation: int) -> bool:
        """Claim a text, unless somebody has it or had it."""
        claim = self._path(number, generation)
        if self.texts.is_finished(number) or not _link(self.file, claim):
            return False
        if self.texts.is_finished(number):  # its claims were removed between the two
            claim.unlink()
            return False
        return True

    def _take_over(self, number: int) -> bool:
        """Claim a text whose last claim is a lost worker's, or that nobody has."""
        generation = next(one for one in count() if not self._path(number, one).exists())
        if generation and not self._others.is_lost(self._path(number, generation - 1)):
            return False
        return self._claim(number, generation)

    def _release(self, number: int) -> None:
        for generation in count():
            try:
                self._path(number, generation).unlink()
            except FileNotFoundError:
                return

    def _path(self, number: int, generation: int) -> Path:
        return self.texts.claims / f"{number}.{generation}"


def _link(source: Path, target: Path) -> bool:
    """Give a file another name; return False where that is taken.

    Raises:
        InputError: The file system has no hard links.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise InputError(
            f"cannot write {target}: {problem.strerror or problem}; texts are shared by hard links: name a folder on "
            "another disk"
        ) from problem
    return True


@contextlib.contextmanager
def _draft(folder: Path, name: str, suffix: str = "") -> Iterator[Path]:
    """Name a file that nobody else writes, and remove it in the end."""
    path = folder / f"{name}.{os.urandom(4).hex()}.draft{suffix}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _short(value: Any) -> str:
    text = "not given" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
