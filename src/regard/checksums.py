"""CRC-32 of arrays, texts, JSON and files, by which a changed bit is noticed. It does not protect against forgery."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["checksum_of_array", "checksum_of_file", "checksum_of_json", "checksum_of_text", "numbers_of"]

_AT_ONCE = 2**24  # bytes


def checksum_of_array(array: npt.NDArray[Any]) -> int:
    """Compute the checksum of an array's type, shape and numbers."""
    return zlib.crc32(numbers_of(array), checksum_of_text(f"{array.dtype.str} {array.shape}"))


def checksum_of_file(path: Path) -> int:
    """Compute the checksum of all bytes of a file.

    Raises:
        OSError: It cannot be read.
    """
    found = 0
    with path.open("rb") as file:
        while data := file.read(_AT_ONCE):
            found = zlib.crc32(data, found)
    return found


def checksum_of_json(value: Any) -> int:
    """Compute the checksum of a value of JSON, whatever the order and the white space in which it is written."""
    return checksum_of_text(json.dumps(value, sort_keys=True))


def checksum_of_text(text: str) -> int:
    """Compute the checksum of a text in UTF-8.

    >>> checksum_of_text("123456789") == 0xCBF43926  # the check value of CRC-32
    True
    """
    return zlib.crc32(text.encode())


def numbers_of(array: npt.NDArray[Any]) -> memoryview:
    """View the bytes of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
