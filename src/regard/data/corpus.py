"""Corpus: columns of text from a table, plain text or JSON Lines, each also packed by gzip.

A line that cannot be used is counted with its reason, never silently dropped, and a file of another format is refused.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

from regard.data.columns import columns_of_keys, find_columns
from regard.data.file_formats import lines_of, other_format, unpack
from regard.errors import InputError
from regard.files import printable, read_bytes
from regard.strict_json import DuplicateKeyError, parse_json

__all__ = ["Corpus", "read_corpus"]


@dataclass(frozen=True)
class Corpus:
    """Equally long columns of text, and what is known of the file they come from.

    `name` is the name of the file. `sha256` is the SHA-256 of its bytes on disk (compressed, for a .gz). `skipped`
    gives, for each reason, the number of lines left out, and `notes` what else a person should know of the reading.
    `is_running_text` is whether the rows are the lines of one text, with their ends; `is_by_place` whether columns were
    taken by their place, with the fields as they are, and not by a header or by the rules of CSV. `corpus["source"]` is
    a column.

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
    notes: tuple[str, ...] = ()
    is_running_text: bool = False
    is_by_place: bool = True

    def __post_init__(self) -> None:
        columns = {name: tuple(values) for name, values in self.columns.items()}
        lengths = {name: len(values) for name, values in columns.items()}
        if not columns or len(set(lengths.values())) != 1:
            raise InputError(f"`columns` must be one or more columns of equal length, got {lengths or 'none'}")
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "skipped", MappingProxyType(dict(self.skipped)))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dictionary cannot be pickled, and worker processes are handed corpora.
        return Corpus, (
            dict(self.columns),
            self.name,
            self.sha256,
            dict(self.skipped),
            self.notes,
            self.is_running_text,
            self.is_by_place,
        )

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


_LINE_OF_JSON, _JSON = (".jsonl", ".ndjson"), ".json"
_FASTTEXT = "__label__"
_DELIMITERS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
_SEPARATOR = re.compile(r'"?sep=([,;\t])"?[,;\t]*')  # Excel's own first line
_NUM_SAMPLED = 1000  # rows by which the columns of a table are recognized

Row = tuple[str, ...]
Reader = Iterator[tuple[int, "Row | _UnusableError"]]


class _UnusableError(Exception):
    """Why a line is left out."""


@dataclass
class _Reading:
    """What is known of a file while it is read."""

    notes: list[str] = field(default_factory=list)
    kind: str = "text"  # of its lines, for people
    is_running_text: bool = False
    is_by_place: bool = True


def read_corpus(
    path: str | Path,
    *,
    columns: Sequence[str] = ("source", "target"),
    languages: Sequence[str] = (),
    keep_linebreaks: bool = False,
) -> Corpus:
    r"""Read a file of texts.

    - `.jsonl`: an object a line (`.json`: or a list of objects), with these columns as keys; a whole number (a label)
      is read as its digits. Texts may be in `translation`, by language, as transformers' examples have them.
    - `.csv`: fields between commas, semicolons or tabs.
    - `.tsv`, and any other file when there are several columns: fields between tabs, the first of them for these
      columns, further ones (Tatoeba's and ManyThings' attribution) ignored. For text and label also fastText's format.
    - Any other file when there is one column: plain text, a row a line.

    A first row with names of columns (`source`, `tgt`, `sentence`, `label`, a language …) is no text: it is counted as
    skipped, and columns are taken by these names, in whatever order. Quotes of CSV are resolved in tables that are
    written by its rules throughout. In tables, empty lines are counted and spaces around a field are removed; lines of
    plain text, and a text alone in JSON, stay as they are.

    A file compressed with gzip is decompressed, whatever its name is. Text is UTF-8, with or without a byte order mark.
    Lines end with \n or \r\n, or with \r if the file contains no \n.

    Args:
        path: The file.
        columns: What to call the columns: ("source", "target"), ("text",), ("text", "label").
        languages: The codes of the languages of source and target, by which columns may be called in the file.
        keep_linebreaks: Whether plain text is running text, such as code and verse: each line is a row, empty ones too,
            that ends with "\n", so that the joined rows are the text. It may be markup.

    Returns:
        The lines that could be used; `skipped` counts the others by reason, with the number of the first of them.

    Raises:
        InputError: The file cannot be read, is of another format or encoding, or not one of its lines can be used.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "pairs.tsv")
    >>> _ = path.write_text("Hi.\t嗨。\tCC-BY 2.0\nWait!\n", "utf-8")
    >>> print(corpus := read_corpus(path))
    pairs.tsv: 1 line, 1 skipped (1 with fewer than 2 columns, first line 2)
    >>> corpus["target"]
    ('嗨。',)
    """
    names, path = _checked(columns), Path(path).expanduser()
    content = _content(path)
    lines = lines_of(unpack(content, path), path, languages)
    reading = _Reading()
    rows: list[Row] = []
    skipped: dict[str, tuple[int, int]] = {}
    for number, row in _reader(lines, path, names, languages, keep_linebreaks, reading):
        if isinstance(row, _UnusableError):
            first, count = skipped.get(str(row), (number, 0))
            skipped[str(row)] = first, count + 1
        else:
            rows.append(row)
    ordered = sorted(skipped.items(), key=lambda item: item[1])
    corpus_skipped = {f"{reason}, first line {first}": count for reason, (first, count) in ordered}
    if not rows:
        why = ", ".join(f"{count:,} {reason}" for reason, count in corpus_skipped.items()) or "it is empty"
        raise InputError(
            f"{path} must have lines of {reading.kind} with {' and '.join(names)}, got none: {why}"
            f"{_hint(lines, reading.kind)}"
        )
    texts = dict(zip(names, zip(*rows, strict=True), strict=True))
    return Corpus(
        texts,
        path.name,
        hashlib.sha256(content).hexdigest(),
        corpus_skipped,
        tuple(reading.notes),
        reading.is_running_text,
        reading.is_by_place,
    )


def _checked(columns: Sequence[str]) -> tuple[str, ...]:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names or len(set(names)) != len(names):
        raise InputError(f'`columns` must be one or more different names, such as ("source", "target"), got {columns}')
    return names


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        reason, way = error.strerror or str(error), ""
        if path.is_dir():
            way = ": name one file; `cat` joins several"
        elif re.search(r"[*?\[]", path.name):
            way = ": a name with * or ? stands for no file here; name one file; `cat` joins several"
        raise InputError(f"cannot read {printable(path)}: {reason}{way}") from error


def _reader(
    lines: Sequence[str | None],
    path: Path,
    names: Row,
    languages: Sequence[str],
    keep_linebreaks: bool,
    reading: _Reading,
) -> Reader:
    """The rows of this kind of file, each with the number of its line."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    suffix = suffixes[-1] if suffixes else ""
    start = [line for line in lines[:200] if line is not None and line.strip()][:100]
    if suffix in _LINE_OF_JSON or suffix == _JSON:
        reading.kind = "JSON"
        return _objects(lines, names, languages)
    if names == ("text", "label") and sum(line.startswith(_FASTTEXT) for line in start) > 0.8 * len(start):
        reading.kind, reading.is_by_place = "fastText", False
        return map(_of_fasttext, _texts(lines))
    is_table = len(names) > 1 or suffix in (".tsv", ".csv")
    if found := other_format(start, path, is_table=is_table):
        if not keep_linebreaks or is_table or found.startswith("JSON"):
            raise InputError(f"{path} must be lines of {'fields between tabs' if is_table else 'text'}, got {found}")
        reading.notes.append(f"it is read as it is, and it looks like {found}")
    if is_table:
        own = _SEPARATOR.fullmatch(start[0].rstrip("\r")) if start else None
        delimiter = own[1] if own else _delimiter(start) if suffix == ".csv" else "\t"
        reading.kind = f"fields between {_DELIMITERS[delimiter]}"
        return _table(lines, delimiter, path, names, languages, reading)
    if keep_linebreaks:
        reading.is_running_text = True
        return _running(lines)
    return ((number, row if isinstance(row, _UnusableError) else (row,)) for number, row in _texts(lines))


def _texts(lines: Sequence[str | None]) -> Iterator[tuple[int, "str | _UnusableError"]]:
    """Each line without its end, or why it cannot be used."""
    for number, line in enumerate(lines, start=1):
        if line is None:
            yield number, _UnusableError("not UTF-8")
        elif not line.strip():
            yield number, _UnusableError("empty")
        elif "\r" in line.strip():  # it may be several lines, whose fields would be mixed
            yield number, _UnusableError("with a carriage return inside")
        elif "\0" in line:
            yield number, _UnusableError("with a NUL inside")
        else:
            yield number, line.rstrip("\r")


def _running(lines: Sequence[str | None]) -> Reader:
    """The lines of one text, each with its end."""
    for number, line in enumerate(lines, start=1):
        if line is None:
            yield number, _UnusableError("not UTF-8")
        elif "\0" in line:
            yield number, _UnusableError("with a NUL inside")
        else:
            for part in line.removesuffix("\r").split("\r"):
                yield number, (f"{part}\n",)


def _of_fasttext(line: tuple[int, "str | _UnusableError"]) -> tuple[int, "Row | _UnusableError"]:
    number, text = line
    if isinstance(text, _UnusableError):
        return number, text
    label, _, rest = text.strip().partition(" ")
    if not label.startswith(_FASTTEXT) or rest.lstrip().startswith(_FASTTEXT):
        return number, _UnusableError("with no label or several")
    fields = (rest.strip(), label.removeprefix(_FASTTEXT))
    return number, fields if all(fields) else _UnusableError("with an empty column")


def _delimiter(lines: Sequence[str]) -> str:
    """What parts the fields of a .csv: the sign that most lines have, outside of quotes."""
    bare = [re.sub(r'"(?:[^"]|"")*"', "", line) for line in lines]
    return max(",;\t", key=lambda sign: (sum(sign in line for line in bare), sign == ",", sign == ";"))


def _table(
    lines: Sequence[str | None],
    delimiter: str,
    path: Path,
    names: Row,
    languages: Sequence[str],
    reading: _Reading,
) -> Reader:
    usable = _without_separator(list(_texts(lines)))
    texts = [(number, text) for number, text in usable if not isinstance(text, _UnusableError)]
    is_csv = delimiter != "\t" or path.name.lower().removesuffix(".gz").endswith(".csv")
    split: list[tuple[int, Sequence[str]]] = [(number, text.split(delimiter)) for number, text in texts]
    if is_csv or any(text.startswith('"') or '\t"' in text for _, text in texts):
        quoted = _quoted(texts, delimiter)
        if is_csv and quoted is None:
            raise InputError(f"{path} must be CSV, got a quote that is not closed or not doubled: write tabs and .tsv")
        if quoted is not None and (is_csv or _is_quoted(split, quoted, len(names))):
            split, reading.is_by_place = quoted, False
            reading.notes += [] if is_csv else ["quotes around fields are those of CSV, and are resolved"]
    first = [fields for _, fields in split[:_NUM_SAMPLED]]
    found = find_columns(first, names, str(path), languages)
    reading.notes += [found.note] if found.note else []
    reading.is_by_place &= not is_csv and not found.is_header and found.places == tuple(range(len(names)))
    if is_csv and first and not found.is_header:
        _check_fields(first, max(found.places) + 1, delimiter, names, path)
    yield from ((number, text) for number, text in usable if isinstance(text, _UnusableError))
    width, least = len(first[0]) if first else 0, max(found.places) + 1
    for index, (number, fields) in enumerate(split):
        if found.is_header and index == 0:
            yield number, _UnusableError("header")
        elif is_csv and len(fields) != width:
            yield number, _UnusableError(f"with another number of fields than {width}")
        elif len(fields) < least:
            yield number, _UnusableError(f"with fewer than {least} columns")
        else:
            row = tuple(" ".join(fields[place].split("\n")).strip() for place in found.places)
            yield number, row if all(row) else _UnusableError("with an empty column")


def _without_separator(
    usable: Sequence[tuple[int, "str | _UnusableError"]],
) -> Sequence[tuple[int, "str | _UnusableError"]]:
    """The lines, of which Excel's own first one is no row."""
    number, text = next(((number, text) for number, text in usable if isinstance(text, str)), (0, ""))
    if not _SEPARATOR.fullmatch(text):
        return usable
    separator = _UnusableError("that names the separator")
    return [(at, separator if at == number else line) for at, line in usable]


def _check_fields(rows: Sequence[Sequence[str]], num_read: int, delimiter: str, names: Row, path: Path) -> None:
    """Refuse rows of a .csv without a header that have fields which may be parts of a text with a comma."""
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise InputError(
            f"the rows of {path} have {min(widths)} to {max(widths)} fields: put quotes around a field with a comma, "
            "or write tabs and .tsv"
        )
    has_more = any("".join(row[num_read:]).strip() for row in rows)
    is_quoted = any(delimiter in field for row in rows for field in row)  # its writer quotes what has to be
    if has_more and not is_quoted and delimiter != "\t":
        (width,) = widths
        header = [*names, *(f"column {place}" for place in range(len(names) + 1, width + 1))]
        raise InputError(
            f"the rows of {path} have {width} fields, and {num_read} are read: put quotes around a field with a "
            f"{_DELIMITERS[delimiter][:-1]}, or name the columns in a first line, such as {delimiter.join(header)}"
        )


def _quoted(lines: Sequence[tuple[int, str]], delimiter: str) -> list[tuple[int, Sequence[str]]] | None:
    """Return rows read by the rules of CSV (RFC 4180), in which a quoted field may hold anything; None if broken."""
    text = "\n".join(line for _, line in lines)
    places = accumulate((len(line) + 1 for _, line in lines[:-1]), initial=0)
    numbers = {place: number for place, (number, _) in zip(places, lines, strict=True)}  # of lines, by their places
    pattern = re.compile(rf'(?:"((?:[^"]|"")*)"|([^"{delimiter}\n][^{delimiter}\n]*|))({delimiter}|\n|\Z)')
    rows: list[tuple[int, Sequence[str]]] = []
    row: list[str] = []
    at, begin = 0, 0
    while at <= len(text):
        match = pattern.match(text, at)
        if match is None:
            return None
        row.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        at = match.end()
        if match[3] != delimiter:
            rows.append((numbers[begin], row))
            row, begin = [], at
            if not match[3]:
                break
    return rows


def _is_quoted(
    plain: Sequence[tuple[int, Sequence[str]]], quoted: Sequence[tuple[int, Sequence[str]]], count: int
) -> bool:
    """Whether a table follows the rules of CSV throughout, so that its quotes belong to no text.

    Either quotes are around fields that need them (with doubled quotes, tabs or line ends inside) and no others; or all
    fields of a column have them.
    """
    short = sum(len(fields) < count for _, fields in plain)
    if len(quoted) < len(plain) and (short == 0 or sum(len(fields) < count for _, fields in quoted) > 0):
        return False
    needed = len(quoted) < len(plain)
    for place in range(count):
        column = [fields[place].strip() for _, fields in plain if len(fields) > place]
        around = [field for field in column if len(field) > 1 and field[0] == field[-1] == '"']
        doubled = [field for field in around if '""' in field[1:-1]]
        needed |= bool(doubled)
        if len(around) == len(column) > 1:
            needed = True
        elif len(around) > len(doubled):
            return False
    return needed


def _objects(lines: Sequence[str | None], names: Row, languages: Sequence[str]) -> Reader:
    """The rows of a file of JSON: an object a line, or a list of objects."""
    keys: Mapping[str, str] | None = None
    for number, item in _parsed(lines):
        if isinstance(item, _UnusableError):
            yield number, item
            continue
        if not isinstance(item, dict):
            yield number, _UnusableError("not a JSON object")
            continue
        inner = item.get("translation")
        if is_inner := isinstance(inner, dict) and names == ("source", "target"):
            item = dict(inner)
        if keys is None:
            keys = columns_of_keys(list(item), names, languages) or None
        if keys is None and is_inner:
            yield number, _UnusableError(f"whose `translation` has {_other_languages(list(item), languages)}")
            continue
        keys = keys or dict(zip(names, names, strict=True))
        try:
            row = tuple(_value(item, keys[name]) for name in names)
        except _UnusableError as bad:
            yield number, bad
            continue
        row = row if names == ("text",) else tuple(text.strip() for text in row)
        yield number, row if all(text.strip() for text in row) else _UnusableError("with an empty column")


def _other_languages(keys: Sequence[str], languages: Sequence[str]) -> str:
    """What the keys of a `translation` are, and the language that they lack."""
    missing = [code for code in languages if not columns_of_keys(keys, ("source",), (code,))]
    listed = " and ".join([", ".join(keys[:-1]), *keys[-1:]] if len(keys) > 1 else keys) or "nothing"
    return listed + (f", not {' or '.join(missing)}" if missing else ", and not one each for source and target")


def _parsed(lines: Sequence[str | None]) -> Iterator[tuple[int, Any]]:
    start = next((line.strip() for line in lines if line and line.strip()), "")
    if start == "{" or re.match(r"\[\s*(\{|$)", start):
        try:
            whole = parse_json("\n".join(line or "" for line in lines))
        except (ValueError, RecursionError):
            whole = None
        if isinstance(whole, dict):  # such as {"data": [...]}
            lists = [value for value in whole.values() if isinstance(value, list)]
            whole = lists[0] if len(lists) == 1 else [whole]
        if isinstance(whole, list):
            yield from enumerate(whole, start=1)
            return
    for number, line in enumerate(lines, start=1):
        if line is None or not line.strip():
            yield number, _UnusableError("not UTF-8" if line is None else "empty")
            continue
        try:
            yield number, parse_json(line)
        except DuplicateKeyError as error:
            yield number, _UnusableError(f"with the key `{error.key}` twice")
        except (ValueError, RecursionError):
            yield number, _UnusableError("not JSON")


def _value(found: Mapping[str, object], name: str) -> str:
    if name not in found:
        raise _UnusableError(f"without `{name}`")
    value = found[name]
    if isinstance(value, float) and value.is_integer() and name == "label":  # as pandas writes it
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _UnusableError(f"whose `{name}` is neither text nor a whole number")
    text = str(value)
    if any("\ud800" <= character <= "\udfff" for character in text):  # half a character, which no file can hold
        raise _UnusableError(f"whose `{name}` is not Unicode")
    return text


def _hint(lines: Sequence[str | None], kind: str) -> str:
    """What the lines look like where none could be used."""
    texts = [line for line in lines[:100] if line and line.strip()]
    if kind == "JSON":
        match = re.match(r'\s*\{\s*"([^"]*)"', texts[0]) if texts else None
        return f"; its first key is `{match[1]}`" if match else ""
    if kind in ("fields between commas", "fields between semicolons") and len(texts) > 1:
        return "; put quotes around a field with a " + kind.split()[-1].removesuffix("s")
    for sign in ("|||", ";", ","):
        if kind == "fields between tabs" and len(texts) > 1 and all(sign in text for text in texts):
            return f"; each has {sign!r}: write a tab instead" + (", or name the file .csv" if sign != "|||" else "")
    if kind == "fields between tabs" and texts and not any("\t" in text for text in texts):
        return "; no line has a tab: two files become a table by paste train.en train.zh > train.tsv"
    return ""
