"""What several commands take: a text, a file to write, and the option `--model`."""

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from regard.errors import InputError
from regard.files import check_writable

__all__ = [
    "MOST_THREADS",
    "check_output",
    "check_threads",
    "complete_model",
    "model_option",
    "named_file",
    "read_prompt",
    "read_text",
    "title_of",
]

MOST_THREADS = 4096  # as in `training.num_threads`; the system refuses far more in the middle of a computation
_LARGEST = 50_000_000  # bytes of a text file
_SUFFIXES = "txt|text|md|rst|tex|csv|tsv|jsonl?|html?|xml|py|js|c|h|log|ya?ml|toml"
_LIKE_A_FILE = re.compile(rf"\S+\.({_SUFFIXES})|(~|\.{{0,2}})/[!-~]*", re.IGNORECASE)  # not and/or, nor 他/她来了


def read_text(text: str) -> str:
    """The text itself, of a file, or of standard input."""
    if text == "-":
        return _decode(sys.stdin.buffer.read(_LARGEST + 1), "standard input")
    if (path := named_file(text)) is None:
        return text
    try:
        with path.open("rb") as file:
            return _decode(file.read(_LARGEST + 1), str(path))
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from problem


def named_file(text: str) -> Path | None:
    """Return the file that an argument names, None where it is the text itself.

    Raises:
        InputError: It names a folder, a device or a pipe, or a file that is not there: a single word with an ending of
            text files, or one that begins as a path or with the name of a folder.
    """
    try:
        path = Path(os.path.expanduser(text))
        is_file = path.is_file()
    except (OSError, ValueError):  # longer than a path may be, or with a NUL
        return None
    if text and path.is_dir():
        raise InputError(f"{text} is a folder: name a text file in it; {_piped(text)} takes the word itself")
    if is_file:
        return path
    if text and path.exists():
        raise InputError(f"{text} is a device or a pipe: give its content to standard input, as … | regard … -")
    is_in_a_folder = "/" in text and " " not in text and path.parent.is_dir()
    if is_in_a_folder or _LIKE_A_FILE.fullmatch(text):
        raise InputError(f"there is no file {text}; if that is the text itself: {_piped(text)}")
    return None


def _piped(text: str) -> str:
    return f"echo {shlex.quote(text)} | regard … -"


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


def check_output(option: str, path: Path | None, *suffixes: str) -> None:
    """Refuse a file that cannot be written, or that does not end as it should.

    Raises:
        InputError: Its ending is another, it is a folder, or its folder is not there or not to be written in.
    """
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}" if len(suffixes) > 1 else suffixes[0]
        raise InputError(f"`{option}` must end in {known}, got {str(path)!r}")
    if os.path.isdir(path):
        raise InputError(f"`{option}` must name a file, and {path} is a folder")
    if not os.path.isdir(path.parent):
        raise InputError(f"`{option}` {path} cannot be written: there is no folder {path.parent}")
    check_writable(path)


def model_option(description: str) -> Any:
    """Return the option with its help."""
    return typer.Option(help=description, autocompletion=complete_model, callback=_known)


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that is not from 1 to the most.

    Raises:
        InputError: It is not.
    """
    if threads is not None and threads < 1:
        raise InputError(f"`--threads` must be at least 1, got {threads}")
    if threads is not None and threads > MOST_THREADS:
        raise InputError(f"`--threads` must be at most {MOST_THREADS:,}, got {threads:,}")


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of a bundled model."""
    from regard.hub.catalogue import BUNDLED

    return [name for name in BUNDLED if name.startswith(incomplete)]


def _known(context: typer.Context, given: Any) -> Any:
    """Refuse a name that is nowhere before PyTorch is imported."""
    from regard.hub.names import is_offline

    if given is not None and not context.resilient_parsing:
        for name in (given,) if isinstance(given, str) else given:
            is_offline(name)
    return given
