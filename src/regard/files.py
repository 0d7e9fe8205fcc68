"""Write a file whole or not at all."""

import os
import tempfile
from pathlib import Path

from regard.errors import InputError

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, then rename: `path` holds the old content or the new, never half of it.

    Raises:
        InputError: It names a folder, lies in none that exists, or cannot be written.
    """
    if path.is_dir():
        raise InputError(f"`path` must be a file to write, got the folder {path}")
    if not path.parent.is_dir():
        raise InputError(f"`path` must lie in a folder that exists, got {path}: create {path.parent} first")
    try:
        _write(path, content)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or problem}") from problem


def _write(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _usual_mode())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _usual_mode() -> int:
    """The mode `open` would have given (mkstemp's is private)."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
