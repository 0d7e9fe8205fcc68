"""The libraries of kernels in this package: the best that the processor runs, and why there is none.

A wheel carries one for each instruction set of its platform, and a small one that reports the processor's. Nothing
outside of this folder is loaded.
"""

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from regard.backends.native.record import CALL, ROWS
from regard.backends.native.sources import hash_of
from regard.torch_private import assume_constant_result

__all__ = ["FOLDER", "KERNELS", "Kernel", "Library", "failures", "instruction_sets", "library", "load", "refuses"]

FOLDER = Path(__file__).parent / "lib"
KERNELS = "attend", "read", "differentiate", "add_parts", "summarize_rows", "add_products", "add_products_of_pairs"

_NEEDS: Mapping[str, frozenset[str]] = {  # of a processor; the best library first
    "x86_64_v4_bf16": frozenset(("v4", "bf16")),
    "x86_64_v4": frozenset(("v4",)),
    "x86_64_v3": frozenset(("v3",)),
    "aarch64": frozenset(),
    "arm64": frozenset(),
}
_BITS = {"v3": 1, "v4": 2, "bf16": 4, "amx": 8}  # native/processor.cpp
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
_SOURCES = Path(__file__).parents[4] / "native"  # of a checkout
_MAKE = "in a checkout run `make native`, elsewhere install regard again (it needs 100 MB for a compiler, and no more)"


class Kernel(NamedTuple):
    """A function of C that takes the address of a record, or its bytes."""

    address: int
    call: Callable[[int | bytes], None]


@dataclass(frozen=True, eq=False)
class Library:
    """The kernels for one instruction set.

    Args:
        name: Its file's, without the suffix.
        kernels: Its functions by name.
        has_bf16: Whether they multiply pairs of bfloat16.
        accumulators: Vectors of sums of `add_products`.
    """

    name: str
    kernels: Mapping[str, Kernel]
    has_bf16: bool
    accumulators: int


def library() -> Library:
    """Return the best library that this processor runs.

    Raises:
        OSError: There is none; `refuses` says why.
    """
    best = _loaded().best
    if best is None:
        raise OSError(f"regard's kernels are missing: {refuses()}")
    return best


@assume_constant_result
def refuses() -> str | None:
    """Say why there are no kernels here, and the way out, or None."""
    return _loaded().refusal


def failures() -> tuple[str, ...]:
    """Say of each library that this processor should run and that cannot be loaded why."""
    return _loaded().failures


@cache
def instruction_sets() -> frozenset[str]:
    """Return those of the processor that kernels were made for: "v3" and "v4" of x86-64, "bf16", "amx".

    Raises:
        OSError: The library that reports them is missing or cannot be loaded.
    """
    bits = _opened("processor").regard_instruction_sets()
    return frozenset(name for name, bit in _BITS.items() if bits & bit)


def load(name: str) -> Library:
    """Load a library by its name.

    Raises:
        OSError: It is missing, cannot be loaded, or belongs to other sources.
    """
    opened = _opened(name)
    try:
        sizes = opened.regard_call_bytes(), opened.regard_rows_bytes()
        functions = {kernel: getattr(opened, f"regard_{kernel}") for kernel in KERNELS}
    except AttributeError as error:
        raise OSError(f"{name}{_SUFFIX} lacks a kernel") from error
    if sizes != (CALL.itemsize, ROWS.itemsize):
        raise OSError(f"{name}{_SUFFIX} belongs to another version of regard")
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    addresses = {kernel: ctypes.cast(function, ctypes.c_void_p).value or 0 for kernel, function in functions.items()}
    kernels = {kernel: Kernel(address, call(address)) for kernel, address in addresses.items()}
    return Library(name, kernels, bool(opened.regard_has_bf16()), opened.regard_accumulators())


class _Loaded(NamedTuple):
    best: Library | None
    refusal: str | None
    failures: tuple[str, ...] = ()


@cache
def _loaded() -> _Loaded:
    names = [name for name in _NEEDS if _file_of(name).is_file()]
    if not names:
        return _Loaded(None, _why_absent())
    try:
        sets = instruction_sets()
    except OSError as error:
        return _Loaded(None, f"{error}: {_MAKE}")
    failures: list[str] = []
    for name in names:
        if _NEEDS[name] <= sets:
            try:
                return _Loaded(load(name), None, tuple(failures))
            except OSError as error:
                failures.append(str(error))
    if failures:
        return _Loaded(None, f"{failures[0]}: {_MAKE}", tuple(failures))
    return _Loaded(None, "the processor has none of the instruction sets that they were made for (AVX2 or more)")


def _why_absent() -> str:
    """Return what the build has left in place of libraries."""
    try:
        return (FOLDER / "absent.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return f"this installation has no compiled kernels: {_MAKE}"


def _file_of(name: str) -> Path:
    return FOLDER / f"{name}{_SUFFIX}"


def _opened(name: str) -> ctypes.CDLL:
    opened = ctypes.CDLL(str(_file_of(name)))
    try:
        opened.regard_sources.restype = ctypes.c_char_p
        for number in ("instruction_sets", "call_bytes", "rows_bytes", "has_bf16", "accumulators"):
            if (function := getattr(opened, f"regard_{number}", None)) is not None:
                function.restype = ctypes.c_int64
        made_of = opened.regard_sources().decode()
    except AttributeError as error:
        raise OSError(f"{name}{_SUFFIX} is no library of regard's kernels") from error
    if (_SOURCES / "loops.cpp").is_file() and made_of != hash_of(_SOURCES):
        raise OSError(f"{name}{_SUFFIX} was made of other sources than those in native/")
    return opened
