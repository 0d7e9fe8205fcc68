"""Small PNG images of numbers in sixteen shades, without a drawing library (PNG, RFC 2083)."""

import struct
import zlib

import numpy as np
import numpy.typing as npt

__all__ = ["SHADES", "shaded_png"]

_STOPS = ((255, 255, 255), (158, 202, 233), (0, 114, 178), (0, 32, 63))  # those of figures
_LEVELS = 16
SHADES = np.rint(
    np.stack([np.interp(np.linspace(0, 3, _LEVELS), range(4), channel) for channel in zip(*_STOPS, strict=True)], -1)
).astype(np.uint8)


def shaded_png(values: npt.NDArray[np.floating]) -> bytes:
    """Return numbers from 0 (white) to 1 (near black) as PNG, one pixel each; NaN is white."""
    height, width = values.shape
    levels = np.rint(np.clip(np.nan_to_num(values), 0, 1) * (_LEVELS - 1)).astype(np.uint8)
    even = np.pad(levels, ((0, 0), (0, width % 2)))
    packed = (even[:, ::2] << 4) | even[:, 1::2]  # two pixels per byte
    lines = np.pad(packed, ((0, 0), (1, 0)))  # each line begins with its filter type, none
    head = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)  # four bits per pixel, with a palette
    body = zlib.compress(lines.tobytes(), 9)
    parts = ((b"IHDR", head), (b"PLTE", SHADES.tobytes()), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
