"""A text file that is written line by line, and continued by the next call where an interrupted one has ended."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zlib import crc32

from regard.errors import InputError
from regard.files import lock

__all__ = ["ResumableOutput"]


class ResumableOutput:
    """A file of results, and FILE.progress beside it for as long as it is not whole.

    The first line of FILE.progress is the identity as JSON. Each of the others belongs to a line of the source that is
    done: CRC-32 of the line, CRC-32 and number of the bytes that are written for it. It is written before them, so a
    FILE that begins otherwise was written by others. Whatever FILE has behind what FILE.progress knows of is what a
    kill or a power failure has left, and is cut off.

    Args:
        path: The file.
        identity: What the results depend on beside the source: another call resumes only what has the same.

    Raises:
        InputError: There is a file that is whole, or that another identity has begun; it was changed; another process
            writes it; or it cannot be written.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.progress = path, path.with_name(f"{path.name}.progress")
        self._identity = identity
        self.done: list[int] = []  # CRC-32 of each line of the source that is done

    def __enter__(self) -> Self:
        """Open the files, and read what is done."""
        way = f"remove {self.path}, or name another --output"
        if not self.progress.exists() and self.path.exists() and self.path.stat().st_size:
            raise InputError(f"{self.path} exists, and is no unfinished translation: {way}")
        with ExitStack() as stack:
            try:
                self._progress = stack.enter_context(self.progress.open("a+b", buffering=0))
                self._file = stack.enter_context(self.path.open("a+b", buffering=0))
                if (locked := lock(self.progress)) is not None:
                    stack.callback(os.close, locked)
                self._read(f"remove it and {self.progress}, or name another --output")
            except BlockingIOError as problem:
                raise InputError(
                    f"another process is writing {self.path}: wait for it, or name another --output"
                ) from problem
            except OSError as problem:
                raise InputError(f"cannot write {self.path}: {problem.strerror or problem}") from problem
            self._open = stack.pop_all()
        return self

    def _read(self, way: str) -> None:
        self._progress.seek(0)
        header, *entries = self._progress.read().split(b"\n")[:-1] or [b""]  # what follows the last line end is half
        known = json.loads(header) if header else self._identity
        for name in self._identity | known:
            before, now = known.get(name), self._identity.get(name)
            if before != now:
                shown = f" ({before} before, {now} now)" if not isinstance(before, dict) else ""
                raise InputError(f"{self.path} was begun with another {name}{shown}: give the same, or {way}")
        self._file.seek(0)
        size = kept = 0
        for entry in entries:
            source, checksum, length = map(int, entry.split())
            block = self._file.read(length)
            if len(block) < length:
                break
            if crc32(block) != checksum:
                raise InputError(f"{self.path} was changed where line {len(self.done) + 1:,} is translated: {way}")
            self.done.append(source)
            size, kept = size + length, kept + len(entry) + 1
        if not self.done and self._file.seek(0, os.SEEK_END):
            raise InputError(f"{self.path} has a text that no line of {self.progress} is for: {way}")
        self._file.truncate(size)
        self._progress.truncate(len(header) + 1 + kept if header else 0)
        if not header:
            self._write(self._progress, json.dumps(self._identity).encode() + b"\n")

    @property
    def count(self) -> int:
        """How many lines of the source are done."""
        return len(self.done)

    def skip(self, lines: Iterator[str]) -> None:
        """Read the lines that are done.

        Raises:
            InputError: They are others.
        """
        for number, checksum in enumerate(self.done, 1):
            line = next(lines, None)
            if line is None or crc32(line.encode()) != checksum:
                raise InputError(
                    f"line {number:,} of the source is not the one that {self.path} has a translation of: remove "
                    f"{self.path} and {self.progress}, or name another --output"
                )

    def write(self, line: str, result: str) -> None:
        """Write the result of a line of the source.

        Raises:
            InputError: It cannot be written; what was written before is whole.
        """
        block = result.encode()
        try:
            self._write(self._progress, b"%d %d %d\n" % (crc32(line.encode()), crc32(block), len(block)))
            self._write(self._file, block)
        except OSError as problem:
            raise InputError(
                f"cannot write {self.path}: {problem.strerror or problem}; what is translated is kept, and the same "
                "command continues"
            ) from problem
        self.done.append(crc32(line.encode()))

    def finish(self) -> None:
        """Take away FILE.progress: the file is whole."""
        os.fsync(self._file.fileno())
        self.progress.unlink()

    @staticmethod
    def _write(file: Any, data: bytes) -> None:
        """Write all of it or, where the disk is full, nothing."""
        begin = file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            with suppress(OSError):
                file.truncate(begin)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self._open.close()
