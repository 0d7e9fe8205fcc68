"""The files that a command writes, checked before it works for minutes."""

from pathlib import Path

from regard.errors import InputError
from regard.files import check_writable

__all__ = ["check_output"]


def check_output(option: str, path: Path | None, *suffixes: str) -> None:
    """Refuse a file that cannot be written, or that does not end as it should.

    Raises:
        InputError: Its ending is another, it is a folder, or its folder is not there or not to be written in.
    """
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}" if len(suffixes) > 1 else suffixes[0]
        raise InputError(f"`{option}` must end in {known}, got {str(path)!r}")
    if path.is_dir():
        raise InputError(f"`{option}` must name a file, and {path} is a folder")
    if not path.parent.is_dir():
        raise InputError(f"`{option}` {path} cannot be written: there is no folder {path.parent}")
    check_writable(path)
