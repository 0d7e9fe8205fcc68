"""What a file of text is: packed, in another encoding, or of a format that is no table of texts.

A file that is read as something else costs hours of training. So what is not UTF-8 text is refused by its own name,
with the way out, and so is text whose lines are markup or records of another format.
"""

import gzip
import re
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path

from regard.errors import InputError
from regard.languages import find_language

__all__ = ["lines_of", "other_format", "unpack"]

_TABLE = "save it as text, one row a line, with tabs between columns"
# First bytes, what they are, and the way out.
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\xfd7zXZ\x00", "packed by xz", "unpack it with `xz -d`"),
    (b"BZh", "packed by bzip2", "unpack it with `bzip2 -d`"),
    (b"\x28\xb5\x2f\xfd", "packed by Zstandard", "unpack it with `zstd -d`"),
    (b"\x04\x22\x4d\x18", "packed by LZ4", "unpack it with `lz4 -d`"),
    (b"7z\xbc\xaf\x27\x1c", "an archive of 7-Zip", "unpack it with `7z x`"),
    (b"Rar!\x1a\x07", "an archive of RAR", "unpack it with `unrar x`"),
    (b"PAR1", "Parquet", f"{_TABLE}: `pandas.read_parquet(FILE).to_csv(NEW, sep='\\t', index=False)`"),
    (b"ARROW1", "Arrow", f"{_TABLE}: `datasets.Dataset.from_file(FILE).to_json(NEW)`"),
    (b"SQLite format 3\x00", "a database of SQLite", f"{_TABLE}: `sqlite3 -tabs FILE 'SELECT …'`"),
    (b"%PDF-", "a PDF", "extract its text, for instance with `pdftotext`"),
    (b"\xd0\xcf\x11\xe0", "a document of Microsoft Office", _TABLE),
    (b"{\\rtf", "a document in RTF", _TABLE),
    (b"\x93NUMPY", "an array of NumPy", _TABLE),
    (b"\x89HDF", "HDF5", _TABLE),
    (b"\x89PNG", "a picture", "name a file of text"),
    (b"\xff\xd8\xff", "a picture", "name a file of text"),
)
_LFS = b"version https://git-lfs.github.com/spec/"
_UTF8 = b"\xef\xbb\xbf"
_WIDE = (  # the longer marks first: UTF-32's begins as UTF-16's does
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_SWITCHED = (  # sequences that switch to two bytes a character
    (b"\x1b$B", "ISO-2022-JP"),
    (b"\x1b$@", "ISO-2022-JP"),
    (b"\x1b$)C", "ISO-2022-KR"),
)


def unpack(content: bytes, path: Path) -> bytes:
    """Return the bytes of text in a file: unpacked if gzip has packed them.

    Raises:
        InputError: They are not text in UTF-8 but something that their first bytes name.
    """
    while content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"cannot unpack {path}: {error}; is it whole? Copy or fetch it again") from error
    for mark, encoding in _WIDE:
        if content.startswith(mark):
            raise _encoded(path, encoding)
    if content.startswith(_LFS):
        raise InputError(f"{path} is a pointer of Git LFS instead of the file: run `git lfs pull`")
    if kind := _binary(content):
        raise InputError(f"{path} must be text, got {kind[0]}: {kind[1]}")
    if wide := _wide(content):
        raise _encoded(path, wide)
    for mark, encoding in _SWITCHED:
        if mark in content and content.isascii() and _decodes(content, encoding):
            raise _encoded(path, encoding)
    return content.removeprefix(_UTF8)


def lines_of(content: bytes, path: Path, languages: Sequence[str] = ()) -> list[str | None]:
    r"""Return the lines of a text; None for each that is not UTF-8.

    Lines end with \n or \r\n, or with \r if the text contains no \n. A byte order mark at the start of a line, as where
    files were joined, is removed.

    Args:
        content: The bytes.
        path: The file, for errors.
        languages: The codes of the languages of the text, whose encodings are named first in an error.

    Raises:
        InputError: Most of the lines that are not ASCII are not UTF-8: the file has another encoding.
    """
    parts = content.split(b"\n" if b"\n" in content else b"\r")  # \r: as Mac OS up to 9 and some spreadsheets write
    lines: list[str | None] = []
    wrong: list[bytes] = []
    num_encoded = 0
    for part in parts if parts[-1] else parts[:-1]:
        try:
            text = part.decode("utf-8")
            num_encoded += not part.isascii()
            lines.append(text.lstrip("\ufeff"))
        except UnicodeDecodeError:
            wrong.append(part)
            lines.append(None)
    if len(wrong) > num_encoded:
        fitting = [f"{name} ({example!r})" for name, example in _as_encoded(wrong, languages)]
        raise InputError(
            f"{path} must be UTF-8, got another encoding"
            + (
                f", perhaps {' or '.join(fitting)}: `iconv -f ENCODING -t UTF-8` converts it from the one in which "
                "the line reads rightly"
                if fitting
                else ""
            )
        )
    return lines


def other_format(lines: Sequence[str], path: Path, *, is_table: bool) -> str | None:
    """Return what the lines are if they are of a format that is not read, with the way out; None if they are text.

    Args:
        lines: The first lines that are not empty.
        path: The file.
        is_table: Whether columns are expected. Tables of tags (CoNLL) are recognized only among tables.
    """
    if not lines:
        return None
    start = "\n".join(lines[:20]).lstrip().lower()
    for pattern, name, way in _MARKUP:
        if re.match(pattern, start):
            return f"{name}: {way}"
    if len(lines) > 1 and re.fullmatch(r"\s*\d+\s*", lines[0]) and re.match(r"\s*[\d:.,]+ --> [\d:.,]+", lines[1]):
        return "subtitles (SubRip): keep the lines of text alone"
    tagged = sum(bool(re.match(r"\s*<[/!?]?[a-zA-Z][^<>]*>", line)) for line in lines)
    if tagged > 0.8 * len(lines) and len(lines) > 2:
        return "markup (XML or SGML): extract its texts"
    objects = sum(line.lstrip().startswith("{") and line.rstrip().rstrip(",").endswith("}") for line in lines)
    if objects > 0.8 * len(lines) and re.match(r'\s*\{\s*"', lines[0]):
        return f"JSON Lines: name the file {path.name.partition('.')[0]}.jsonl"
    if re.match(r"\[\s*\{\s*\"", start):
        return f"JSON: name the file {path.name.partition('.')[0]}.json"
    return _word_tags(lines) if is_table else None


def _word_tags(lines: Sequence[str]) -> str | None:
    """CoNLL: a word a row, with its tags."""
    fields = [line.split("\t") for line in lines]
    most = 0.8 * len(lines)
    marked = re.match(r"(-docstart-|# (sent_id|newdoc|text =))", lines[0].strip().lower())
    numbered = len(fields[0]) in (10, 14) and sum(row[0].isdigit() for row in fields) > most
    tags = [row[-1].strip() for row in fields if len(row) > 1 and " " not in row[0].strip()]
    if marked or numbered or (len(tags) > most and len(lines) > 2 and _are_spans(tags)):
        return "CoNLL, a row for each word: write a row for each text"
    return None


_MARKUP = (
    (r"(<!doctype html|<html)", "a web page (HTML)", "fetch the file itself, or extract the page's text"),
    (r"(<\?xml.*\s)?(<!doctype tmx.*\s)?<tmx", "TMX", "extract its segments as lines of source, tab, target"),
    (r"(<\?xml.*\s)?<xliff", "XLIFF", "extract its segments as lines of source, tab, target"),
    (
        r"(<\?xml.*\s)?(<!doctype.*\s)?<(srcset|refset|tstset|mteval|dataset|doc\b)",
        "SGML or XML of WMT",
        "extract its segments: `sacrebleu -t SET -l PAIR --echo src ref`",
    ),
    (r"<\?xml", "XML", "extract its texts"),
    (r"webvtt", "subtitles (WebVTT)", "keep the lines of text alone"),
)


def _are_spans(tags: Sequence[str]) -> bool:
    """Whether they are those of spans of words: O, B-LOC, I-LOC."""
    return all(re.fullmatch(r"O|[BIESLU]-\S+", tag) for tag in tags) and any("-" in tag for tag in tags)


def _binary(content: bytes) -> tuple[str, str] | None:
    for mark, name, way in _MAGIC:
        if content.startswith(mark):
            return name, way
    if content.startswith(b"PK\x03\x04"):
        for part, name in ((b"word/", "Word"), (b"xl/", "Excel"), (b"ppt/", "PowerPoint")):
            if part in content:
                return f"a document of {name}", _TABLE
        return "an archive of zip", "unpack it with `unzip`"
    if content[257:262] == b"ustar":
        return "an archive of tar", "unpack it with `tar -xf`"
    if content[:1] == b"\x80" and content[1:2] in b"\x02\x03\x04\x05" and content.rstrip().endswith(b"."):
        return "a pickle", _TABLE
    return None


def _wide(content: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark: bytes of zero, all in the same places of each two or four."""
    if 0 not in content:
        return None
    quarters = [content[place::4].count(0) * 4 > 0.8 * len(content) for place in range(4)]
    if quarters[2:] == [True, True]:
        return "UTF-32LE"
    if quarters[:2] == [True, True]:
        return "UTF-32BE"
    even, odd = content[::2].count(0), content[1::2].count(0)
    if max(even, odd) <= 0.3 * len(content) and _decodes(content, "utf-8"):
        return None  # text with a NUL inside
    names = ("UTF-16LE", "UTF-16BE") if odd > even else ("UTF-16BE", "UTF-16LE")
    found = next((name for name in names if _is_text(content[: len(content) // 2 * 2], name)), None)
    # Zeros on one side alone are those of Latin letters, whatever other characters there are.
    is_latin = max(even, odd) > 0.15 * len(content) and min(even, odd) < 0.1 * max(even, odd)
    return found or (names[0] if is_latin else None)


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_text(content: bytes, encoding: str) -> bool:
    """Whether it is text in UTF-16: with spaces or line ends, and hardly anything but characters of texts."""
    try:
        text = content.decode(encoding)[:10_000]
    except UnicodeDecodeError:
        return False
    # In the other order of bytes a line end is U+0A00, which is no character.
    kinds = [unicodedata.category(sign) for sign in re.sub(r"[\t\n\r\f]", "", text)]
    return (
        bool(re.search(r"[ \t\n]", text))
        and "Cn" not in kinds
        and "Co" not in kinds
        and kinds.count("Cc") <= len(kinds) // 100
    )


def _encoded(path: Path, encoding: str) -> InputError:
    return InputError(f"{path} must be UTF-8, got {encoding}: `iconv -f {encoding} -t UTF-8` converts it")


# Encodings, each with its codec, the letters that a text in it has and its languages; the more frequent of two first.
_LATIN = "[À-ÖØ-öø-ſȘ-ț’‘“”„–—«»¿¡€…]"
_ENCODINGS = (
    ("EUC-KR", "euc_kr", "[\uac00-\ud7a3]", "ko"),
    ("GB18030", "gb2312", "[\u4e00-\u9fff，。？！、：；“”（）《》]", "zh"),
    ("SHIFT_JIS", "cp932", "[\u3041-\u30ff\u4e00-\u9fff。、]", "ja"),
    ("EUC-JP", "euc_jp", "[\u3041-\u30ff\u4e00-\u9fff。、]", "ja"),
    ("BIG5", "big5", "[\u4e00-\u9fff，。？！、：；「」]", "zh yue"),
    (
        "GB18030",
        "gb18030",
        "[\u4e00-\u9fff，。？！、：；“”（）《》]",
        "zh",
    ),  # almost any bytes are some characters in it
    ("CP1252", "cp1252", _LATIN, "de fr es it pt nl sv da nb nn no fi is ca eu gl"),
    ("CP1251", "cp1251", "[а-яёіїєґўљњћџђј]", "ru uk be bg mk sr"),  # small: KOI8-R's are capitals in CP1251
    ("KOI8-R", "koi8_r", "[а-яё]", "ru"),
    ("ISO-8859-2", "iso8859_2", _LATIN, "pl cs sk sl hr hu ro bs sr sq"),
    ("CP1250", "cp1250", _LATIN, "pl cs sk sl hr hu ro bs sr sq"),
    ("CP1254", "cp1254", _LATIN, "tr az"),
    ("ISO-8859-7", "iso8859_7", "[\u0384-\u03ce]", "el"),
    ("CP1253", "cp1253", "[\u0384-\u03ce]", "el"),
    ("CP1255", "cp1255", "[\u05b0-\u05ea]", "he yi"),
    ("CP1256", "cp1256", "[\u060c-\u06d2]", "ar fa ur"),
    ("CP1257", "cp1257", _LATIN, "lt lv et"),
    ("TIS-620", "tis_620", "[\u0e01-\u0e5b]", "th"),
)
_OF_TWO_BYTES = ("euc_kr", "gb2312", "gb18030", "cp932", "euc_jp", "big5")
_MOST = 4  # encodings that are named


def _as_encoded(lines: Sequence[bytes], languages: Sequence[str]) -> list[tuple[str, str]]:
    """The encodings in which these lines look like text, those of the languages first, with the first line in each."""
    codes = {find_language(one).code for one in languages}
    sample = b"\n".join(lines[:200])
    fitting: dict[str, tuple[bool, float, str]] = {}  # by the text: encodings in which it is the same are one
    for name, codec, letters, written in _ENCODINGS:
        try:
            text = sample.decode(codec)
        except UnicodeDecodeError:
            continue
        others = [character for character in text if ord(character) > 127]
        if any(unicodedata.category(character) in ("Cc", "Co") for character in others):
            continue
        share = sum(bool(re.fullmatch(letters, character)) for character in others) / max(1, len(others))
        is_latin = letters == _LATIN
        if name in ("SHIFT_JIS", "EUC-JP") and not re.search("[\u3041-\u30ff]", text):
            share /= 2  # without kana it is hardly Japanese
        if not is_latin and codec not in _OF_TWO_BYTES and re.search(rf"[a-zA-Z]{letters}|{letters}[a-zA-Z]", text):
            share /= 2  # no word has letters of both
        if is_latin and len(re.findall("[a-zA-Z]", text)) < len(others):
            share /= 2  # most letters of a European language are those of ASCII
        if codec == "gb18030":
            share *= 0.9
        if name == "EUC-KR" and share < 0.9:
            share /= 2  # Chinese in GB 2312 is Hangul and rare signs here
        if share > 0.3:
            rank = not (codes & set(written.split()) and share > 0.7), -share, name
            fitting[text] = min(fitting.get(text, rank), rank, key=lambda one: one[:2])
    best = -min((share for _, share, _ in fitting.values()), default=0.0)
    named = sorted((rank, text) for text, rank in fitting.items() if -rank[1] > 0.7 * best or not rank[0])[:_MOST]
    return [(name, text.partition("\n")[0].strip()[:40]) for (_, _, name), text in named]
