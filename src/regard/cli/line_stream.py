"""Lines of a file, of a text, or of standard input as they arrive."""

import json
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Self

from regard.cli.arguments import named_file
from regard.errors import InputError

__all__ = ["LineStream", "decode_line", "refuse_table", "refuse_utf16", "table_format"]

_CHUNK = 2**16  # bytes read at once
_LONGEST = 1_000_000  # bytes of a line


class LineStream(Iterator[str]):
    """The lines of what an argument names, each without its line end; no more is read than is asked for.

    A line ends with "\\n" or "\\r\\n", or with "\\r" where the whole text has no other line end. Any other character is
    one of the line, control characters and Unicode's line separators too.

    Args:
        name: What is read, for errors.
        read: Returns the next bytes, none at the end.
        waiting: Returns whether `read` would return at once.

    Raises:
        InputError: A line is no UTF-8 text, or too long; the lines before it have come.
    """

    def __init__(self, name: str, read: Callable[[], bytes], waiting: Callable[[], bool] = lambda: True) -> None:
        self.name, self._read, self._waiting = name, read, waiting
        self._lines: deque[bytes] = deque()
        self._rest, self._count, self._is_first, self._ended = b"", 0, True, False

    @classmethod
    def open(cls, text: str, *, is_file: bool = False) -> Self:
        """Open a file by its name, standard input by "-", or take the text itself.

        If it `is_file`, it is the name of a file, or of a pipe such as the shell's <(…), and never a text.

        Raises:
            InputError: The file cannot be read, or it names a folder, a device or a pipe.
        """
        if text == "-":
            return cls("standard input", *_in_background(sys.stdin.buffer))
        if (path := Path(os.path.expanduser(text)) if is_file else named_file(text)) is None:
            parts = iter([text.encode("utf-8")])
            return cls("the text", lambda: next(parts, b""))
        chunks = _of_file(path)
        return cls(str(path), lambda: next(chunks, b""))

    def ready(self) -> bool:
        """Whether the next line, or the end, is there without waiting."""
        while not self._lines and not self._ended:
            if not self._waiting():
                return False
            self._add(self._read())
        return True

    def __next__(self) -> str:
        while not self._lines and not self._ended:
            self._add(self._read())
        if not self._lines:
            raise StopIteration
        self._count += 1
        return decode_line(self._lines.popleft(), self._count, self.name)

    def _add(self, chunk: bytes) -> None:
        """Cut bytes into lines."""
        data, self._ended = self._rest + chunk, not chunk
        if self._is_first:
            if chunk and len(data) < 4 and b"\n" not in data:  # a mark of its encoding may not be whole
                self._rest = data
                return
            refuse_utf16(data, self.name)
            data, self._is_first = data.removeprefix(b"\xef\xbb\xbf"), False
        *lines, rest = data.split(b"\n")
        self._lines.extend(lines)
        if chunk and len(rest) <= _LONGEST:
            self._rest = rest
            return
        self._rest, self._ended = b"", True  # the end, or a line that `decode_line` refuses when those before have come
        if rest and not self._count and not self._lines:  # no line has ended: the old Macintosh's ends, if any
            self._lines.extend(rest.removesuffix(b"\r").split(b"\r"))
        elif rest:
            self._lines.append(rest)


def decode_line(line: bytes, number: int, name: str) -> str:
    """Return a line as text, without the "\\r" of its end.

    Raises:
        InputError: It is no UTF-8 text, or too long.
    """
    if len(line) > _LONGEST:
        raise InputError(f"line {number:,} of {name} has more than {_LONGEST:,} bytes: put a sentence on each line")
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as problem:
        raise InputError(
            f"line {number:,} of {name} is no UTF-8 text (byte {problem.start + 1:,} of the line): convert it, for "
            "example with iconv -f GB18030 -t UTF-8"
        ) from problem


def table_format(line: str) -> str | None:
    """Return "tab-separated" or "JSON Lines" if a line seems to be a row of such a table, None if it is a text."""
    if "\t" in line.strip():
        return "tab-separated"
    if line.lstrip().startswith("{"):
        try:
            return "JSON Lines" if isinstance(json.loads(line), dict) else None
        except (ValueError, RecursionError):
            pass
    return None


def refuse_table(name: str, lines: Iterable[str]) -> None:
    """Refuse a table where each line is one text: by all of its first lines, whose commas count in a .csv alone.

    Raises:
        InputError: It is one.
    """
    is_csv, formats, commas = Path(name).suffix.lower() == ".csv", set[str | None](), set[int]()
    for line in islice(filter(str.strip, lines), 10):
        formats.add(table_format(line))
        commas.add(line.count(",") if is_csv else 0)
        if None in formats and (0 in commas or len(commas) > 1):
            return  # a text, whatever follows
    found = "comma-separated" if is_csv and None in formats else next(iter(formats), None)
    if found is not None:
        way = "jq -r .text {}" if found == "JSON Lines" else "cut -f1 {0} or cut -f2 {0}"
        way = "cut -d, -f1 {}" if found == "comma-separated" else way
        raise InputError(
            f"{name} is a table ({found}), and each line here is one text: give one of its columns without the header, "
            f"such as {way.format('FILE' if name == 'standard input' else name)}"
        )


def refuse_utf16(begin: bytes, name: str) -> None:
    """Refuse a text that begins as UTF-16 or UTF-32 do: by their mark, or with NUL bytes beside Latin letters.

    Raises:
        InputError: It does.
    """
    begin = begin[:1000]
    if begin.startswith((b"\xff\xfe", b"\xfe\xff")) or begin.count(0) * 3 > len(begin) > 2:
        raise InputError(f"{name} is UTF-16 or UTF-32, and must be UTF-8: convert it with iconv -f UTF-16 -t UTF-8")


def _of_file(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from iter(lambda: file.read(_CHUNK), b"")
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from problem


def _in_background(file: IO[bytes]) -> tuple[Callable[[], bytes], Callable[[], bool]]:
    """Read a file in a thread, a few chunks ahead: functions for the next bytes, and whether they are there."""
    chunks: queue.Queue[bytes | OSError] = queue.Queue(4)
    try:
        handle = file.fileno()  # not file.read, whose lock a waiting thread would still hold at the end of the program
    except (OSError, AttributeError):  # bytes in memory
        return lambda: file.read(_CHUNK), lambda: True

    def read() -> None:
        try:
            while chunk := os.read(handle, _CHUNK):
                chunks.put(chunk)
        except OSError as problem:
            chunks.put(problem)
        chunks.put(b"")

    def following() -> bytes:
        chunk = chunks.get()
        if isinstance(chunk, OSError):
            raise InputError(f"cannot read standard input: {chunk.strerror or chunk}") from chunk
        return chunk

    threading.Thread(target=read, daemon=True).start()
    return following, lambda: not chunks.empty()
