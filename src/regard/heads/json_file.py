"""JSON files of a format and version, with a checksum by which a changed number is noticed."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import checksum_of_json, read_text, write_atomically
from regard.strict_json import DuplicateKeyError, is_version, parse_json

__all__ = ["json_number", "json_text", "json_whole", "read_json_file", "write_json_file"]

_CHECKSUM = "crc"


def write_json_file(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object with its checksum, whole or not at all; texts stay readable.

    Raises:
        InputError: It cannot be written, a number is not finite, or a text has half of a surrogate pair.
    """
    given = {**content, _CHECKSUM: checksum_of_json(content)}
    try:
        text = (json.dumps(given, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()
    except ValueError as problem:
        raise InputError(f"it cannot be saved as JSON: {problem}") from problem
    write_atomically(path, text)


def read_json_file(path: Path, name: str, version: int, *, largest: int, saved_by: str) -> dict[str, Any]:
    """Return the object in a file of the format `name`; one without a checksum was written by hand, or before 0.3.

    Raises:
        InputError: There is no such file, it is too large, no JSON, of another format or version, or changed.
    """
    found = _parsed(path, largest)
    if not isinstance(found, dict) or found.get("format") != name:
        raise InputError(f'it must be a JSON object whose "format" is "{name}": save one with {saved_by}')
    if not is_version(given := found.get("version"), version):
        raise InputError(f"it has version {given!r}, and this regard reads version {version}: update regard")
    content = {key: value for key, value in found.items() if key != _CHECKSUM}
    if _CHECKSUM in found and found[_CHECKSUM] != checksum_of_json(content):
        raise InputError(
            f'it is damaged: its checksum does not hold. Save it again, or remove "{_CHECKSUM}" if you have edited it'
        )
    return content


def _parsed(path: Path, largest: int) -> Any:
    try:
        return parse_json(read_text(path, largest=largest))
    except InputError:  # too large; it is a ValueError too
        raise
    except OSError as problem:
        raise InputError(problem.strerror or str(problem)) from None
    except DuplicateKeyError as problem:
        raise InputError(f"{problem}: keep one of them") from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"it must be JSON, got something else ({' '.join(str(problem).split())[:100]})") from None


def json_text(one: Any) -> str:
    """Return a value of such a file if it is a text, else raise InputError."""
    if not isinstance(one, str):
        raise InputError(f"it must have a text here, got {str(one)[:40]!r}")
    return one


def json_whole(one: Any) -> int:
    """Return a value of such a file if it is a whole number, else raise InputError."""
    if type(one) is not int:
        raise InputError(f"it must have a whole number here, got {str(one)[:40]!r}")
    return one


def json_number(one: Any) -> float | None:
    """Return a value of such a file if it is a finite number or null, else raise InputError."""
    if one is None:
        return None
    if type(one) not in (int, float) or not math.isfinite(one):
        raise InputError(f"it must have a finite number here, got {str(one)[:40]!r}")
    return float(one)
