"""Corpus: columns of text from a file of tab-separated pairs, plain text or JSON Lines, each also packed by gzip.

A line that cannot be used is counted with its reason, never silently dropped.
"""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from regard.errors import InputError
from regard.files import printable, read_bytes
from regard.strict_json import DuplicateKeyError, parse_json

__all__ = ["Corpus", "read_corpus"]


@dataclass(frozen=True)
class Corpus:
    """Equally long columns of text, and what is known of the file they come from.

    `name` is the name of the file. `sha256` is the SHA-256 of its bytes on disk (compressed, for a .gz). `skipped`
    gives, for each reason, the number of lines left out. `corpus["source"]` is a column.

    >>> corpus = Corpus({"source": ("Hi.", "Run!"), "target": ("嗨。", "跑！")}, name="tiny.tsv", skipped={"empty": 1})
    >>> print(corpus)
    tiny.tsv: 2 lines, 1 skipped (1 empty)
    >>> corpus.select([1]).map("source", str.upper)["source"]
    ('RUN!',)
    """

    columns: Mapping[str, tuple[str, ...]]
    name: str = "corpus"
    sha256: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = {name: tuple(values) for name, values in self.columns.items()}
        lengths = {name: len(values) for name, values in columns.items()}
        if not columns or len(set(lengths.values())) != 1:
            raise InputError(f"`columns` must be one or more columns of equal length, got {lengths or 'none'}")
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "skipped", MappingProxyType(dict(self.skipped)))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dictionary cannot be pickled, and worker processes are handed corpora.
        return Corpus, (dict(self.columns), self.name, self.sha256, dict(self.skipped))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> tuple[str, ...]:
        if column not in self.columns:
            raise InputError(f"`column` must be one of {', '.join(self.columns)} in {self.name}, got {column!r}")
        return self.columns[column]

    def __str__(self) -> str:
        lines = f"{self.name}: {len(self):,} line{'' if len(self) == 1 else 's'}"
        if not self.skipped:
            return lines
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.items())
        return f"{lines}, {sum(self.skipped.values()):,} skipped ({reasons})"

    def select(self, indices: Iterable[int]) -> "Corpus":
        """Take these lines, in this order; what is known of the file stays.

        Raises:
            InputError: An index is below 0 or not below the number of lines.
        """
        chosen = list(indices)
        if wrong := [index for index in chosen if not 0 <= index < len(self)]:
            raise InputError(f"`indices` must be from 0 to {len(self) - 1}, the lines of {self.name}, got {wrong[0]}")
        columns = {name: tuple(values[index] for index in chosen) for name, values in self.columns.items()}
        return replace(self, columns=columns)

    def map(self, column: str, function: Callable[[str], str]) -> "Corpus":
        """Put each text of a column through a function.

        Raises:
            InputError: There is no such column.
        """
        return replace(self, columns={**self.columns, column: tuple(function(text) for text in self[column])})


_GZIP, _UTF8, _UTF16 = b"\x1f\x8b", b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
_LINE_OF_JSON = (".jsonl", ".ndjson")


class _UnusableError(Exception):
    """Why a line is left out."""


def read_corpus(path: str | Path, *, columns: Sequence[str] = ("source", "target")) -> Corpus:
    r"""Read a file of text, a line each.

    - `.jsonl`: an object a line, with these columns as keys; a whole number (a label) is read as its digits.
    - `.tsv`, and any other file when there are several columns: fields between tabs, the first of them for these
      columns, further ones (Tatoeba's and ManyThings' attribution) ignored.
    - Any other file when there is one column: plain text; empty lines are counted as skipped.

    A file compressed with gzip is decompressed, whatever its name is. Text is UTF-8, with or without a byte order mark.
    Spaces around a field are removed. Lines end with \n or \r\n, or with \r if the file contains no \n.

    Args:
        path: The file.
        columns: What to call the columns: ("source", "target"), ("text",), ("text", "label").

    Returns:
        The lines that could be used; `skipped` counts the others by reason, with the number of the first of them.

    Raises:
        InputError: The file cannot be read, or not one of its lines can be used.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "pairs.tsv")
    >>> _ = path.write_text("Hi.\t嗨。\tCC-BY 2.0\nWait!\n", "utf-8")
    >>> print(corpus := read_corpus(path))
    pairs.tsv: 1 line, 1 skipped (1 with fewer than 2 columns, first line 2)
    >>> corpus["target"]
    ('嗨。',)
    """
    names, path = _checked(columns), Path(path)
    try:
        content = read_bytes(path)
    except OSError as error:
        raise InputError(f"cannot read {printable(path)}: {error.strerror or error}") from error
    parse, suffix = _parser(path, names)
    rows, skipped = _parsed(_lines(content, path), parse)
    corpus_skipped = {f"{reason}, first line {first}": count for reason, (first, count) in skipped.items()}
    if not rows:
        why = ", ".join(f"{count:,} {reason}" for reason, count in corpus_skipped.items()) or "it is empty"
        raise InputError(f"{path} must have lines of {suffix} with {' and '.join(names)}, got none: {why}")
    texts = dict(zip(names, zip(*rows, strict=True), strict=True))
    return Corpus(texts, path.name, hashlib.sha256(content).hexdigest(), corpus_skipped)


def _checked(columns: Sequence[str]) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names or len(set(names)) != len(names):
        raise InputError(f'`columns` must be one or more different names, such as ("source", "target"), got {columns}')
    return names


def _parser(path: Path, columns: tuple[str, ...]) -> tuple[Callable[[str], tuple[str, ...]], str]:
    """The way this kind of file is read, and what it is called."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    suffix = suffixes[-1] if suffixes else ""
    if suffix in _LINE_OF_JSON:
        return lambda line: _from_json(line, columns), "JSON"
    if len(columns) > 1 or suffix == ".tsv":
        return lambda line: _from_fields(line, len(columns)), "fields between tabs"
    return _from_text, "text"


def _lines(content: bytes, path: Path) -> list[bytes]:
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"cannot unpack {path}: {error}; is it whole? Copy or fetch it again") from error
    if content.startswith(_UTF16):
        raise InputError(f"{path} must be UTF-8, got UTF-16: `iconv -f UTF-16 -t UTF-8` converts it")
    content = content.removeprefix(_UTF8)
    lines = content.split(b"\n" if b"\n" in content else b"\r")  # \r: as Mac OS up to 9 and some spreadsheets write
    return lines[:-1] if not lines[-1] else lines


def _parsed(
    lines: list[bytes], parse: Callable[[str], tuple[str, ...]]
) -> tuple[list[tuple[str, ...]], dict[str, tuple[int, int]]]:
    """Rows; and for each reason of a skipped line the first one's number and their count."""
    rows: list[tuple[str, ...]] = []
    skipped: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(parse(_decoded(line)))
        except _UnusableError as bad:
            first, count = skipped.get(str(bad), (number, 0))
            skipped[str(bad)] = first, count + 1
    return rows, skipped


def _decoded(line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _UnusableError("not UTF-8") from error
    if not text.strip():
        raise _UnusableError("empty")
    return text


def _from_text(line: str) -> tuple[str]:
    _check_one_line(line)
    return (line.strip(),)


def _check_one_line(line: str) -> None:
    if "\r" in line.strip():  # it may be several lines, whose fields would be mixed
        raise _UnusableError("with a carriage return inside")


def _from_fields(line: str, count: int) -> tuple[str, ...]:
    _check_one_line(line)
    fields = tuple(field.strip() for field in line.split("\t")[:count])
    if len(fields) < count:
        raise _UnusableError(f"with fewer than {count} columns")
    return _filled(fields)


def _from_json(line: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    try:
        found = parse_json(line)
    except DuplicateKeyError as error:
        raise _UnusableError(f"with the key `{error.key}` twice") from error
    except (ValueError, RecursionError) as error:
        raise _UnusableError("not JSON") from error
    if not isinstance(found, dict):
        raise _UnusableError("not a JSON object")
    return _filled(tuple(_value(found, name) for name in columns))


def _value(found: dict[str, object], name: str) -> str:
    if name not in found:
        raise _UnusableError(f"without `{name}`")
    value = found[name]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _UnusableError(f"whose `{name}` is neither text nor a whole number")
    text = str(value).strip()
    if any("\ud800" <= character <= "\udfff" for character in text):  # half a character, which no file can hold
        raise _UnusableError(f"whose `{name}` is not Unicode")
    return text


def _filled(fields: tuple[str, ...]) -> tuple[str, ...]:
    if not all(fields):
        raise _UnusableError("with an empty column")
    return fields
