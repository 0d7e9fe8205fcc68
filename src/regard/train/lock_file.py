"""One process trains in a folder at a time: two would write each other's checkpoints and log."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from regard.errors import InputError

__all__ = ["hold_folder"]


@contextlib.contextmanager
def hold_folder(path: Path) -> Iterator[None]:
    """Hold the folder of a run; whoever is killed lets go of it. On Windows nothing is held.

    Raises:
        InputError: Another process trains in it, or it cannot be made or written in.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / ".lock").open("w")
    except OSError as problem:
        raise InputError(f"cannot make the folder of the run, {path}: {problem.strerror}") from problem
    with file:
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):  # a file system that knows no locks
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as problem:
                    raise InputError(
                        f"another process trains in {path}: wait until it has ended, or name another "
                        "folder as `output_dir`"
                    ) from problem
        yield
