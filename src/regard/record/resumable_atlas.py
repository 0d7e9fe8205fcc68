"""Save layers to disk when they are finished, in `book.atlas.part/`, so that a long run can be interrupted and
resumed.

Each layer is a small atlas, written atomically, with the identity of its run; `run.json` describes the run. At the end
all layers are combined in one file, which is written inside the folder and moved into place, and the folder is
removed. If the process is killed at any time, there is the previous atlas or the complete new one, and a folder from
which to resume. Layers of another run whose process has ended are removed when the first layer of this run is
finished.
"""

import contextlib
import hashlib
import json
import os
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import lock, read_text, write_atomically
from regard.record.atlas import VERSION, read_atlas, save_atlas
from regard.record.atlas_layer import StoredLayer
from regard.record.records import Layer, Record

__all__ = ["AtlasParts"]

_RUN = "run.json"


class AtlasParts:
    """The folder next to an unfinished atlas.

    Args:
        out: The path of the atlas.
        run: The identity of the run, by name: text, model, settings; JSON values.
        resume: Whether to reuse the finished layers of an earlier run.

    Raises:
        InputError: There are finished layers of this run and `resume` is False; with `resume`, or while
            their process lives, also those of another run.
    """

    def __init__(self, out: str | os.PathLike[str], run: Mapping[str, Any], *, resume: bool = False) -> None:
        self.out = Path(out)
        self.folder = self.out.with_name(f"{self.out.name}.part")
        self._run = json.loads(json.dumps({"version": VERSION, **run}))
        # Stored in each layer too: two runs that start at the same time could otherwise confuse their layers.
        self._mark = hashlib.sha256(json.dumps(self._run, sort_keys=True).encode()).hexdigest()
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is in the way of the layers that are kept there: move it, or choose --out")
        self._release: weakref.finalize[[int], AtlasParts] | None = None
        self._abandoned = not resume and self.finished > 0 and self._is_abandoned()
        self._begun = self.finished > 0 and not self._abandoned
        if self._begun:
            self._check(resume=resume)
            self._hold()

    @property
    def finished(self) -> int:
        """The number of finished layers."""
        return sum(1 for _ in self.folder.glob("*.layer")) if self.folder.is_dir() else 0

    @property
    def _taken(self) -> str:
        return f"another run writes to {self.folder} too: let it end, or choose another --out"

    def _check(self, *, resume: bool) -> None:
        if not resume:
            raise InputError(
                f"{self.folder} holds {self.finished} finished layers of a run that was interrupted: add --resume to "
                "resume it, or remove the folder to start over"
            )
        self._compare()

    def _compare(self) -> None:
        """Raise if the layers belong to another run."""
        try:
            before = json.loads(read_text(self.folder / _RUN))
            other = [name for name in {**before, **self._run} if before.get(name) != self._run.get(name)]
        except (OSError, ValueError, AttributeError, TypeError) as broken:
            raise InputError(f"{self.folder} cannot be resumed ({broken}): remove it to start over") from broken
        if other:
            name = other[0]
            raise InputError(
                f"{self.folder} belongs to another run, whose {name} was {_short(before.get(name))} and is now "
                f"{_short(self._run.get(name))}: run it with the same, or remove the folder to start over"
            )

    def _is_abandoned(self) -> bool:
        """Return whether the layers belong to another run whose process has ended."""
        try:
            self._compare()
            return False
        except InputError:
            held = lock(self.folder)
        if held is not None:
            os.close(held)
        return held is not None

    def _hold(self) -> None:
        """Lock the folder while this object exists, or until this process ends."""
        if self._release is None and (held := lock(self.folder)) is not None:
            self._release = weakref.finalize(self, os.close, held)

    def known(self, number: int, name: str) -> Layer | None:
        """Return the layer with this number if it was finished; a damaged file counts as missing."""
        try:
            layer = self._read(number)
            if layer is not None:
                layer.verify()
        except ValueError:  # as AtlasError is, too
            return None
        return layer if layer is not None and layer.name == name else None

    def __call__(self, number: int, layer: Layer) -> Layer:
        """Save a finished layer, and return the layer in the file, which takes no memory.

        Raises:
            InputError: The layer cannot be saved, or another run is writing to the folder.
        """
        try:
            if not self._begun:
                self._begin()
            save_atlas((Record((layer,), notes={"run": self._mark}),), self._file(number))
        except InputError:
            if not self.finished:  # nothing to resume from
                shutil.rmtree(self.folder, ignore_errors=True)
            raise
        try:
            written = self._read(number)
        except ValueError:
            written = None
        if written is None:
            raise InputError(self._taken)
        return written

    def finish(self, record: Record) -> None:
        """Combine all layers in one atlas and remove the folder."""
        self._make_folder()
        save_atlas((record,), self.out, by_way_of=self.folder)
        self._remove()
        if self._release is not None:
            self._release()

    def _read(self, number: int) -> StoredLayer | None:
        """Return the layer in the file with this number, if it belongs to this run."""
        (record,) = read_atlas(self._file(number))
        (layer,) = record.layers
        assert isinstance(layer, StoredLayer)
        return layer if record.notes.get("run") == self._mark else None

    def _begin(self) -> None:
        """Reserve the folder, unless another run has started there in the meantime."""
        if self._abandoned and self._is_abandoned():
            self._remove()
        self._make_folder()
        if self.finished:
            raise InputError(self._taken)
        self._begun = True
        write_atomically(self.folder / _RUN, json.dumps(self._run).encode())

    def _remove(self) -> None:
        """Remove the folder, the layers first: a kill leaves no layer without the file that identifies its run."""
        with contextlib.suppress(OSError):
            for layer in self.folder.glob("*.layer"):
                layer.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as problem:
            raise InputError(f"cannot write {self.folder}: {problem.strerror or problem}") from problem
        self._hold()

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:04}.layer"


def _short(value: Any) -> str:
    text = "not given" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
