"""The arrays of an atlas, unchanged and memory-mapped or compressed, each with a checksum and loaded at first access.

Arrays are split into byte planes before compression, since neighbouring numbers have similar high bytes. Weights of
long texts are first reduced to 16 bits, as a number times 2^15, with a relative error of at most 2^−11 for weights
above 2e-9 and an absolute error of 1e-12 below.
"""

import operator
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import AtlasError
from regard.files import checksum_of_text

__all__ = ["DTYPES", "Held", "Stored", "checksum_of_array", "deflated", "numbers_of", "plain"]

Array = npt.NDArray[Any]

DTYPES: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_CODES = {np.dtype(kind): code for code, kind in DTYPES.items()}
_HALVED = 2.0**15  # factor before the reduction to 16 bits, which preserves the precision of small weights
_LARGEST = 1.9  # largest number that can be reduced to 16 bits
_LEVEL = 3
_RATIO = 1100  # maximum compression ratio of deflate


@dataclass(frozen=True, eq=False)
class Stored:
    """One array of an atlas: its bytes in the file, and how to decode them.

    `packed` is None for an uncompressed array, else {"dtype": "F32", "shape": [...], "halved": bool} of the original.
    """

    name: str
    raw: Array
    crc: int | None = None  # None in atlases of older formats
    packed: Mapping[str, Any] | None = None
    file: str = "the atlas"
    check_file: Callable[[], None] = lambda: None  # raises AtlasError where the mapped file has become shorter

    @property
    def code(self) -> str:
        """The dtype of the bytes in the file, in safetensors' notation."""
        return _CODES[self.raw.dtype]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the decoded array."""
        return self.raw.dtype if self.packed is None else np.dtype(DTYPES[self.packed["dtype"]])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the decoded array."""
        return self.raw.shape if self.packed is None else tuple(map(operator.index, self.packed["shape"]))

    @property
    def about(self) -> dict[str, Any]:
        """The entry of this array in the header of an atlas."""
        return {"crc": self.crc} | ({} if self.packed is None else {"packed": dict(self.packed)})

    def summed(self) -> "Stored":
        """Return the array with a checksum."""
        return self if self.crc is not None else replace(self, crc=checksum_of_array(self.raw))

    def check(self) -> None:
        """Raise ValueError for an impossible shape, before any data is read.

        Raises:
            ValueError: The sizes do not fit.
        """
        if self.packed is not None and (self.raw.dtype != np.uint8 or self.raw.ndim != 1):
            raise ValueError(f"{self.name} is not deflated")
        if self.packed is not None and not isinstance(self.packed.get("halved", False), bool):
            raise ValueError(f"{self.name} is halved or it is not, got {self.packed['halved']!r}")
        if any(side < 0 for side in self.shape) or self._nbytes > _RATIO * max(self.raw.nbytes, 1):
            raise ValueError(f"{self.name} cannot be of shape {self.shape}")

    @property
    def _nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def verify(self) -> None:
        """Verify the checksum.

        Raises:
            AtlasError: The data are damaged.
        """
        self.check_file()
        if self.crc is not None and checksum_of_array(self.raw) != self.crc:
            raise AtlasError(f"{self.file} is damaged: the checksum of {self.name} does not hold; write it again")

    def read(self) -> Array:
        """Return the array; if it is not compressed, it is memory-mapped.

        Raises:
            AtlasError: The data are damaged.
        """
        self.verify()
        if self.packed is None:
            return self.raw
        try:
            return _inflated(self.raw, self.dtype, self.shape, halved=bool(self.packed.get("halved")))
        except (zlib.error, ValueError) as broken:
            raise AtlasError(f"{self.file} is damaged: {self.name} cannot be read ({broken})") from broken


class Held(Mapping[str, Array]):
    """Arrays by name, each loaded once, at its first access."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self.stored = stored
        self._read: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._read:
            self._read[name] = self.stored[name].read()
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def plain(name: str, array: Array) -> Stored:
    """Return an array to be stored uncompressed.

    Raises:
        KeyError: The dtype is not supported by the format.
    """
    _CODES[array.dtype]
    array = np.ascontiguousarray(array)
    return Stored(name, array, checksum_of_array(array))


def deflated(name: str, array: Array, *, halve: bool = False) -> Stored:
    """Return an array to be stored compressed; `halve` reduces float32 numbers to 16 bits, if none is above 1.9.

    >>> weights = np.linspace(0, 1, 1000, dtype=np.float32)
    >>> exact, half = deflated("a", weights), deflated("a", weights, halve=True)
    >>> bool((exact.read() == weights).all()), bool(abs(half.read() - weights).max() <= 2**-11)
    (True, True)
    >>> half.raw.nbytes < exact.raw.nbytes < weights.nbytes
    True
    """
    about: dict[str, Any] = {"dtype": _CODES[array.dtype], "shape": list(array.shape)}
    if halve and array.dtype == np.float32 and array.size and float(array.max()) <= _LARGEST and array.min() >= 0:
        about, array = about | {"halved": True}, (array * np.float32(_HALVED)).astype(np.float16)
    planes = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T
    raw = np.frombuffer(zlib.compress(numbers_of(planes), _LEVEL), np.uint8)
    return Stored(name, raw, checksum_of_array(raw), about)


def _inflated(raw: Array, dtype: np.dtype[Any], shape: tuple[int, ...], *, halved: bool) -> Array:
    inner = np.dtype(np.float16) if halved else dtype
    count = int(np.prod(shape, dtype=object))
    inflater = zlib.decompressobj()
    data = inflater.decompress(numbers_of(raw), count * inner.itemsize + 1)
    if len(data) != count * inner.itemsize or not inflater.eof:
        raise ValueError(f"it has {len(data)} bytes or more where shape {shape} has {count * inner.itemsize}")
    planes = np.frombuffer(data, np.uint8).reshape(inner.itemsize, -1).T
    array = np.ascontiguousarray(planes).reshape(-1).view(inner).reshape(shape)
    if halved:
        array = array.astype(dtype)
        array /= _HALVED
    array.flags.writeable = False
    return array


def checksum_of_array(array: Array) -> int:
    """Compute the checksum of an array's type, shape and numbers."""
    return zlib.crc32(numbers_of(array), checksum_of_text(f"{array.dtype.str} {array.shape}"))


def numbers_of(array: Array) -> memoryview:
    """View the bytes of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
