"""The loops as machine code: compiled once on a machine, kept in a file, and loaded by later processes without numba.

numba's own cache needs numba, whose import and setup take most of a second; machine code needs a linker alone, that of
llvmlite. A file is named after all on which the code depends, and is replaced as a whole.
"""

import ctypes
import hashlib
import json
import os
import platform
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from regard.backends.kernel_compilers import refuses_numba
from regard.backends.numba_loops.target import CALLED, LOOPS, ObjectCode, Processor, has_pairs, processor
from regard.dropout import SHIFT, TIMES
from regard.errors import InputError
from regard.files import cache_folder, lock, whole_file
from regard.torch_private import assume_constant_result

__all__ = [
    "CALLED",
    "LOOPS",
    "Loops",
    "ObjectCode",
    "Processor",
    "are_ready",
    "compile_and_keep",
    "file_of_loops",
    "has_pairs",
    "is_kept",
    "is_switched_off",
    "loops",
    "processor",
    "refuses",
]

_NOT_COMPILED = frozenset(
    ("__init__", "auto", "backend", "choose_loops", "mask_tables", "object_code", "target", "threads")
)
_SYMBOLS = "symbols.json"


@dataclass(frozen=True, eq=False)
class Loops:
    """The loops in memory, by name; they are there as long as the engine that has loaded them.

    A function takes the address of a record, or its bytes.
    """

    addresses: Mapping[str, int]
    functions: Mapping[str, Callable[[int | bytes], None]]
    engine: Any


def is_kept() -> bool:
    """Return whether a file has the loops for this processor and these versions; import nothing where none has any."""
    try:
        return (
            any(_folder().glob("*.zip"))
            and all(util.find_spec(name) is not None for name in ("llvmlite", "numba"))
            and file_of_loops().is_file()
        )
    except (OSError, RuntimeError):  # a folder that cannot be read, or no home
        return False


_loops: Loops | None = None
_ready: bool | None = None
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a lock that another thread held at the fork would never open in the child
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


@assume_constant_result
def are_ready() -> bool:
    """Return whether "auto" may take the loops in this process: whether a file had them when this was first asked.

    A process stays with the answer, so what it computes does not change in the middle.
    """
    global _ready
    if _ready is None:
        _ready = not is_switched_off() and is_kept() and _load_kept()
    return _ready


def is_switched_off() -> bool:
    """Return whether "auto" leaves the loops to those who name them: REGARD_AUTO_NUMBA is 0."""
    return os.environ.get("REGARD_AUTO_NUMBA") == "0"


@assume_constant_result
def refuses() -> str | None:
    """Say why there are no loops in this environment and none can be compiled, or None."""
    return None if _loops is not None or is_kept() else refuses_numba()


def loops() -> Loops:
    """Return the loops, from the file or compiled now, which takes some seconds."""
    if _loops is None:
        with _lock, _one_process():
            if _loops is None and not (is_kept() and _load_kept()):
                compile_and_keep()
    assert _loops is not None
    return _loops


@contextmanager
def _one_process() -> Iterator[None]:
    """Wait until no other process compiles; where the folder cannot be locked, go on at once."""
    handle = None
    with suppress(OSError, RuntimeError):
        _folder().mkdir(parents=True, exist_ok=True)
        handle = lock(_folder(), wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def compile_and_keep(progress: Callable[[int], object] = int) -> Path | None:
    """Compile the loops and return the file in which they are kept, or None if it cannot be written.

    Args:
        progress: Called with the number of loops that are compiled.
    """
    global _loops
    from regard.backends.numba_loops.compile_loops import compile_loops

    codes: dict[str, ObjectCode] = {}
    for name, code in compile_loops():
        codes[name] = code
        progress(len(codes))
    _loops = _linked(codes)
    try:
        file = file_of_loops()
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as written, zipfile.ZipFile(written, "w") as archive:
            archive.writestr(_SYMBOLS, json.dumps({name: code.symbol for name, code in codes.items()}))
            for name, code in codes.items():
                archive.writestr(f"{name}.o", code.object_file)
    except (OSError, RuntimeError, InputError):
        return None
    return file


def _load_kept() -> bool:
    """Load the loops from the file; no if it is damaged or cannot be linked here."""
    global _loops
    if _loops is not None:
        return True
    try:
        with zipfile.ZipFile(file_of_loops()) as archive:
            symbols = json.loads(archive.read(_SYMBOLS))
            codes = {name: ObjectCode(symbols[name], archive.read(f"{name}.o")) for name in LOOPS}
        _loops = _linked(codes)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, RuntimeError):
        return False
    return True


def _linked(codes: Mapping[str, ObjectCode]) -> Loops:
    """Link machine code into this process.

    Raises:
        RuntimeError: It cannot be, because C's functions are not found.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)  # from here on C's library is searched
    for name in CALLED:
        if binding.address_of_symbol(name) is None:  # LLVM would end the process
            raise RuntimeError(f"the function {name} of C's library is not found")
    for code in codes.values():
        engine.add_object_file(binding.ObjectFileRef.from_data(code.object_file))
    engine.finalize_object()
    addresses = {name: engine.get_function_address(code.symbol) for name, code in codes.items()}
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    return Loops(addresses, {name: call(address) for name, address in addresses.items()}, engine)


def file_of_loops() -> Path:
    """Return where the loops are kept that these sources give with these compilers for this processor."""
    return _folder() / f"{_key()}.zip"


def _folder() -> Path:
    return cache_folder() / "loops"


@cache
def _key() -> str:
    files = sorted(path for path in Path(__file__).parent.glob("*.py") if path.stem not in _NOT_COMPILED)
    sources = b"\0".join(path.read_bytes() for path in files)
    versions = [metadata.version(name) for name in ("numba", "llvmlite")]
    name, features = processor()
    about = [platform.system(), platform.machine(), *versions, name, *sorted(features)]
    about += map(str, (*TIMES, SHIFT))  # all that the code has of other folders
    return hashlib.sha256(sources + json.dumps(about).encode()).hexdigest()[:32]
