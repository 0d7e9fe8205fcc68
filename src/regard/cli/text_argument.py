"""The text a command reads: what was typed, a file's, or standard input's."""

import re
import sys
from pathlib import Path

from regard.errors import InputError

__all__ = ["read_prompt", "read_text", "title_of"]

_LARGEST = 50_000_000  # bytes of a text file
_LIKE_A_FILE = re.compile(r"\S+\.(txt|text|md|rst|tex|csv|tsv|json|html?|xml|py|js|c|h|log|ya?ml|toml)", re.IGNORECASE)


def read_text(text: str) -> str:
    """The text itself, of a file, or of standard input."""
    if text == "-":
        return _decode(sys.stdin.buffer.read(_LARGEST + 1), "standard input")
    try:
        path = Path(text)
        is_file = path.is_file()
    except (OSError, ValueError):  # longer than a path may be, or with a NUL
        return text
    if text and path.is_dir():
        raise InputError(f"{text} is a folder: name a text file in it; echo {text} | regard … - takes the word itself")
    if not is_file:
        if _LIKE_A_FILE.fullmatch(text):
            print(f"warning: there is no file {text}, so these letters are read as the text", file=sys.stderr)
        return text
    try:
        with path.open("rb") as file:
            return _decode(file.read(_LARGEST + 1), str(path))
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from problem


def read_prompt(text: str) -> str:
    """Return the text to continue: as `read_text`, without the newline that ends a file, which would end the sentence.

    Raises:
        InputError: It is empty.
    """
    read = read_text(text)
    if read != text or text == "-":
        read = read.removesuffix("\n").removesuffix("\r")
    if not read.strip():
        raise InputError("the text is empty: give the words to continue")
    return read


def _decode(data: bytes, name: str) -> str:
    if len(data) > _LARGEST:
        raise InputError(f"{name} is larger than {_LARGEST:,} bytes: no model here reads so much, cut a part out")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError(f"{name} is no UTF-8 text (byte {problem.start:,}): convert it, or is it binary?") from problem
    if "\0" in text:
        raise InputError(f"{name} holds NUL bytes, so it is no text: is it a binary file?")
    return text


def title_of(text: str) -> str:
    """A text as the title of a page: in one line of at most 80 characters."""
    title = " ".join(text.split())
    return title if len(title) <= 80 else title[:79] + "…"
