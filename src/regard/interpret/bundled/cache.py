"""The cache of converted models: each is converted once, moved into place atomically, and converted again if it is
damaged.

A folder is named after the SHA-256 of its source and the version of the conversion, and holds a manifest of its files.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.files import give_usual_modes
from regard.interpret.bundled.catalogue import BundledModelError

__all__ = ["cache_folder", "converted"]

_MANIFEST = "regard.json"
_SMALL = 32 * 2**20  # bytes; files up to this size are hashed at each load, larger ones if their time stamp has changed


def cache_folder() -> Path:
    """Return the folder of converted models: $REGARD_CACHE, else $XDG_CACHE_HOME/regard, else ~/.cache/regard."""
    if named := os.environ.get("REGARD_CACHE"):
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "regard"


def converted(name: str, source_sha256: str, version: int, build: Callable[[Path], None]) -> Path:
    """Return the folder that holds the converted model for this source and version, and convert it if there is none.

    `build` fills a temporary folder, which is renamed when it is complete, so a folder with the final name is never
    partial.
    """
    target = cache_folder() / f"{name}-{source_sha256[:16]}-v{version}"
    if _is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _unwritable(target.parent, error) from error
    try:
        build(draft)
        give_usual_modes(draft)
        _write_manifest(draft)
        _move_into_place(draft, target)
    except OSError as error:
        raise _unwritable(target.parent, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _unwritable(folder: Path, error: OSError) -> BundledModelError:
    why = error.strerror or str(error)
    return BundledModelError(f"the cache {folder} cannot be written ({why}): name another folder with REGARD_CACHE")


def _move_into_place(draft: Path, target: Path) -> None:
    try:
        draft.replace(target)
        return
    except OSError:
        if _is_whole(target):  # another process has converted it in the meantime
            return
    broken = Path(tempfile.mkdtemp(prefix=f".{target.name}.broken.", dir=target.parent))
    with contextlib.suppress(FileNotFoundError):
        target.replace(broken / "folder")
    shutil.rmtree(broken, ignore_errors=True)
    draft.replace(target)


def _write_manifest(folder: Path) -> None:
    files = {path.name: _describe(path) for path in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")


def _describe(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"bytes": status.st_size, "changed": status.st_mtime_ns, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(folder: Path) -> bool:
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(files) and all(_is_same(folder / name, known) for name, known in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_same(path: Path, known: dict[str, Any]) -> bool:
    status = path.stat()
    if status.st_size != known["bytes"]:
        return False
    untouched: bool = status.st_size > _SMALL and status.st_mtime_ns == known["changed"]
    return untouched or bool(_sha256(path) == known["sha256"])
