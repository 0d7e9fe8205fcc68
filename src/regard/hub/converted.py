"""Folders of the bundled models: verified files, converted where transformers cannot read them.

Each model is converted once, moved into a cache atomically, and converted again if it is damaged. A folder is named
after the SHA-256 of its source and the version of the conversion, and holds a manifest of its files.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from regard.files import cache_folder, give_usual_modes
from regard.hub.catalogue import BundledModelError, bundled
from regard.hub.install import verified

__all__ = ["converted", "folder", "tokenizer_folder"]


_MANIFEST = "regard.json"
_SMALL = 32 * 2**20  # bytes; files up to this size are hashed at each load, larger ones if their time stamp has changed


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


_CONVERTED = ("me5", "smollm2")  # converted by the module of that name, which needs NumPy


def folder(name: str) -> Path:
    """Return the checkpoint folder of a bundled model, verified and, at first use, converted."""
    source = verified(name)
    if name not in _CONVERTED:
        return source.parent
    from regard.hub import me5, smollm2  # which need NumPy, and are read where something is converted

    conversion = {"me5": me5, "smollm2": smollm2}[name]
    return converted(name, bundled(name).file_sha256, conversion.VERSION, partial(conversion.convert, source))


def tokenizer_folder(name: str) -> Path:
    """Return the folder with a bundled model's tokenizer, verified; where weights are beside it they are not read."""
    return folder(name) if name in _CONVERTED else verified(name, "tokenizer.json", "tokenizer_config.json").parent
