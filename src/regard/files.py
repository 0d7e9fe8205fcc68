"""Files and folders written whole or not at all, locks, and CRC-32 checksums, by which a changed bit is noticed."""

import errno
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regard.errors import InputError

__all__ = [
    *("checksum_of_file", "checksum_of_json", "checksum_of_text", "open_file", "printable", "read_bytes", "read_text"),
    *("cache_folder", "check_writable", "expand_user", "give_usual_modes", "lock", "replace_files", "whole_file"),
    *("write_atomically", "write_folder"),
]


def cache_folder() -> Path:
    """Return the folder of what is made once: $REGARD_CACHE, else $XDG_CACHE_HOME/regard, else ~/.cache/regard."""
    if named := os.environ.get("REGARD_CACHE"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "regard"


def expand_user(path: str) -> str:
    """Return a path whose first part `~` or `~name` is a home folder, as the shell does it; any other as it is.

    >>> expand_user("a/~/b")
    'a/~/b'
    """
    return os.path.expanduser(path)


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading. Devices and pipes are refused: some never end, others wait for a writer.

    Raises:
        OSError: There is no such file, it is of another kind, or it cannot be read.
    """
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except ValueError as problem:  # a NUL, or half of a surrogate pair
        raise OSError(errno.EINVAL, "no file can have this name") from problem
    if kind not in (stat.S_IFREG, stat.S_IFDIR):  # of folders the system says what is wrong
        raise OSError(errno.EINVAL, "it is a device or a pipe: save its content to a file, and name that")
    return open(path, "rb")


def read_bytes(path: str | os.PathLike[str], *, largest: int | None = None) -> bytes:
    """Return the content of a file; raise as `open_file` does, or an InputError if it has more than `largest` bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if largest is not None and size > largest:
            raise InputError(f"it must have at most {largest:,} bytes, got {size:,}")
        return file.read()


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8", *, largest: int | None = None) -> str:
    """Return the text of a file, its line ends as they are; raise as `read_bytes` does, or a UnicodeDecodeError."""
    return read_bytes(path, largest=largest).decode(encoding)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file: `path` holds the old content or the new, never half of it.

    Raises:
        InputError: It names a folder, lies in none that exists, or cannot be written.
    """
    if os.path.isdir(path):
        raise InputError(f"`path` must be a file to write, got the folder {path}")
    if not os.path.isdir(path.parent):
        raise InputError(f"`path` must lie in a folder that exists, got {path}: create {path.parent} first")
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path`, or what that leads to, when the block has ended well.

    Raises:
        InputError: It cannot be written; what was there is as it was.
    """
    path = _followed(path)
    _refuse_device(path)
    with _one_sentence(path), _draft(path, path.parent, _new_file) as draft:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(_usual_mode(0o666))
        os.replace(draft, path)


def write_folder(target: Path, write: Callable[[Path], None], way: str = "") -> None:
    """Let `write` fill a folder that replaces `target` when it is whole.

    Raises:
        InputError: It cannot be written; what was there is as it was. `way` is the way out.
    """
    target = _followed(target)
    with _one_sentence(target, way):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _draft(target, target.parent, tempfile.mkdtemp) as draft:
            write(draft)
            give_usual_modes(draft)
            _flush(draft)
            if not target.exists():
                os.replace(draft, target)
                return
            with _draft(target, target.parent, tempfile.mkdtemp) as old:
                os.replace(target, old)
                try:
                    os.replace(draft, target)
                except OSError:
                    os.replace(old, target)
                    raise


def replace_files(target: Path, write: Callable[[Path], None], *, stale: tuple[str, ...] = ()) -> None:
    """Let `write` fill a folder inside `target`, and move its files there only when all are whole.

    Files that are `stale` then go: they describe something else than what is there.

    Raises:
        InputError: The target is a file, or it cannot be written.
    """
    if os.path.isfile(target):
        raise InputError(f"a model is saved to a folder, and {target} is a file")
    with _one_sentence(target):
        target.mkdir(parents=True, exist_ok=True)
        with _draft(target, target, tempfile.mkdtemp) as draft:
            write(draft)
            give_usual_modes(draft)
            _flush(draft)
            for one in sorted(draft.iterdir()):
                os.replace(one, target / one.name)
            for name in stale:
                (target / name).unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before minutes of work.

    Raises:
        InputError: Its folder is not to be written in.
    """
    path = _followed(path)
    if os.path.isdir(path):
        raise InputError(f"`path` must be a file to write, got the folder {path}")
    _refuse_device(path)
    with _one_sentence(path), _draft(path, path.parent, _new_file):
        pass


def lock(path: str | Path, *, wait: bool = False) -> int | None:
    """Lock a file or folder for as long as the handle that is returned is open: a process that dies lets go of it.

    None where the system has no locks.

    Raises:
        BlockingIOError: Another process holds it; with `wait` it is waited for instead.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as problem:
        os.close(handle)
        if isinstance(problem, BlockingIOError):
            raise
        return None
    return handle


def _followed(path: Path) -> Path:
    """What a symbolic link leads to; any other path as it is."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def _refuse_device(path: Path) -> None:
    """Refuse what is neither file nor folder: a rename would put a file in the place of /dev/null, or of a pipe."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise InputError(f"`path` must be a file to write, got the device or pipe {path}: name a file")


def _usual_mode(mode: int) -> int:
    """The mode that `open` or `mkdir` would have given (mkstemp's and mkdtemp's are private)."""
    mask = os.umask(0)  # it can only be read by setting it
    os.umask(mask)
    return mode & ~mask


def printable(path: str | os.PathLike[str]) -> str:
    """Return the path, shortened, and quoted where a terminal could not print it."""
    name = str(path) if len(str(path)) <= 200 else f"{str(path)[:100]}…"
    return name if name.isprintable() else repr(name)


@contextmanager
def _one_sentence(target: Path, way: str = "") -> Iterator[None]:
    """Raise what goes wrong in writing as InputError."""
    try:
        if b"\0" in os.fsencode(target) or len(os.fsencode(target.name)) > 255:
            raise OSError(errno.EINVAL, "no file can have this name")
        yield
    except Exception as problem:
        cause = problem.__cause__ if isinstance(problem, InputError) else problem  # a file of a folder, say
        if not isinstance(cause, OSError | UnicodeEncodeError) and type(cause).__name__ != "SafetensorError":
            raise
        reason = getattr(cause, "strerror", None) or " ".join(str(cause).split())
        raise InputError(f"cannot write {printable(target)}: {reason}" + (f"; {way}" if way else "")) from cause


@contextmanager
def _draft(target: Path, folder: Path, make: Callable[..., str]) -> Iterator[Path]:
    """A new file or folder for the target, gone in the end unless it was moved."""
    name = os.fsencode(target.name)[:100].decode(errors="ignore")  # a name has at most 255 bytes
    _remove_abandoned(folder, name)
    while True:
        path = make(prefix=f".{name}.", suffix=".part", dir=folder)
        held = lock(path, wait=True)
        if os.path.exists(path):  # else another process found it before it was locked, and took it for abandoned
            break
        if held is not None:
            os.close(held)
    try:
        yield Path(path)
    finally:
        _remove(Path(path))
        if held is not None:
            os.close(held)


def _remove_abandoned(folder: Path, name: str) -> None:
    pattern = re.compile(re.escape(f".{name}.") + r"[a-z0-9_]{8}\.part")
    names: list[str] = []
    with suppress(PermissionError):  # a folder may be written in and not be read
        names = os.listdir(folder)
    for name in filter(pattern.fullmatch, names):
        with suppress(BlockingIOError):  # a living process writes it
            if (held := lock(folder / name)) is not None:
                _remove(folder / name)
                os.close(held)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _new_file(**where: Any) -> str:
    handle, path = tempfile.mkstemp(**where)
    os.close(handle)
    return str(path)


def give_usual_modes(folder: Path) -> None:
    """Make a folder and its files as readable as the umask says: safetensors and mkdtemp make private ones."""
    folder.chmod(_usual_mode(0o777))
    for one in folder.iterdir():
        one.chmod(_usual_mode(0o666))


def _flush(folder: Path) -> None:
    """Make sure that its files are on the disk before the folder gets its name."""
    for one in folder.iterdir():
        with one.open("rb") as file:
            os.fsync(file.fileno())


def checksum_of_file(path: Path) -> int:
    """Compute the checksum of all bytes of a file.

    Raises:
        OSError: It cannot be read.
    """
    found = 0
    with open_file(path) as file:
        while data := file.read(2**24):
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
