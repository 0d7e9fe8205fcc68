"""The files of a model by its name: those of a folder or a run, of a bundled model, or of an id of the hub.

A run of `regard train` has its model in `model/`, and the checkpoints on the way to it in `checkpoints/`: weights in a
folder for each step, and beside these folders the configuration and the tokenizers that all of them share.
"""

import os
import re
from pathlib import Path
from typing import Any

from regard.errors import InputError, MissingExtraError
from regard.hub.converted import folder
from regard.hub.names import is_offline, resolve

__all__ = ["ModelFiles", "checkpoint_steps"]

_CONFIG = "config.json"
_OPTIONAL = ("generation_config.json", "model.safetensors.index.json")  # not every model has them


class ModelFiles:
    """The files of a model, downloaded when they are needed.

    Args:
        name: A folder, an output of `regard train` (a run, its model, or a checkpoint), an id of the Hugging Face hub,
            or one of the bundled models. A run without a model yet stands for its last checkpoint.
        asked: The options revision, token, cache_dir, local_files_only and force_download of huggingface_hub.

    Raises:
        InputError: The model does not exist.
    """

    def __init__(self, name: str | os.PathLike[str], **asked: Any) -> None:
        self.name, self._asked = str(name), asked
        found = resolve(self.name)
        if found.loader is not None:
            raise InputError(
                f"{self.name!r} is opened by the loader {found.loader!r} of an extension, which `regard.load_model` "
                "calls: name a folder or an id of the hub here"
            )
        self.step_folder: Path | None = None  # of a checkpoint of a run
        self._folders: tuple[Path, ...] = ()
        if found.kind == "bundled":
            self._folders = (folder(self.name),)
        elif found.folder is not None:
            opened = _of_run(found.folder) if found.kind == "saved" else found.folder
            self.step_folder = opened if os.path.isfile(opened / "place.json") else None
            self._folders = (opened,) if self.step_folder is None else (opened, _beside(opened))
        elif not self._asked.get("local_files_only"):
            given = {key: self._asked[key] for key in ("cache_dir", "token") if key in self._asked}
            self._asked["local_files_only"] = is_offline(self.name, **given)

    @property
    def chosen(self) -> str:
        """The name of exactly these files: of a run, whose last checkpoint changes while it trains, the folder of its
        model or checkpoint.
        """
        return str(self._folders[0]) if self.step_folder or resolve(self.name).kind == "saved" else self.name

    @property
    def folder(self) -> Path | None:
        """The folder with the configuration and the tokenizers, None of an id of the hub."""
        return self._folders[-1] if self._folders else None

    @property
    def is_local(self) -> bool:
        """Whether nothing is asked of the hub."""
        return bool(self._folders or self._asked.get("local_files_only"))

    def file(self, name: str, *, optional: bool = False) -> Path | None:
        """Return the path of a file, or None if the model has no file with this name.

        For an `optional` file, also return None if the hub cannot be reached.

        Raises:
            InputError: It cannot be downloaded.
            MissingExtraError: The hub is needed, and huggingface_hub is not installed.
        """
        if Path(name).name != name:
            raise InputError(f"the checkpoint {self.name!r} names a file outside its folder: {name!r}")
        if self._folders:
            return next((one / name for one in self._folders if (one / name).is_file()), None)
        try:
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
        except ImportError as missing:
            raise MissingExtraError("huggingface_hub", "models") from missing
        try:
            return Path(hf_hub_download(self.name, name, **self._asked))
        except LocalEntryNotFoundError as problem:
            if optional or name in _OPTIONAL:
                return None
            raise InputError(
                f"cannot reach the hub for {name} of {self.name!r}, and it is not in the cache"
            ) from problem
        except EntryNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            reason = " ".join(str(problem).split())[:300]
            raise InputError(f"cannot load the model {self.name!r}: {reason}") from problem


def checkpoint_steps(checkpoints: Path) -> dict[int, Path]:
    """Return the folder of each step in the folder `checkpoints` of a run, in the order of the steps."""
    found = {one.name.removeprefix("step-"): one for one in checkpoints.glob("step-*") if one.is_dir()}
    # "step-00000100 copy" is none.
    return dict(sorted((int(step), one) for step, one in found.items() if re.fullmatch(r"[0-9]{8,}", step)))


def _of_run(saved: Path) -> Path:
    """Return what a run stands for: its model, or the last checkpoint; any other folder as it is."""
    checkpoints = saved
    if os.path.isfile(saved / "run.json"):
        if os.path.isdir(saved / "model"):
            return saved / "model"
        checkpoints = saved / "checkpoints"
    steps = checkpoint_steps(checkpoints)
    if not steps and checkpoints != saved:
        raise InputError(f"the run in {saved} has no model and no checkpoint yet: train on")
    return steps[max(steps)] if steps else saved


def _beside(checkpoint: Path) -> Path:
    """Return the folder with the configuration of a checkpoint's model."""
    checkpoints = Path(os.path.abspath(checkpoint)).parent
    if os.path.isfile(checkpoints / _CONFIG):
        return checkpoints
    run = checkpoints.parent
    way = "open it in the folder of its run"
    if os.path.isfile(run / "run.json"):
        way = (
            f"regard 0.2 saved none, so resume the run by `regard train FILE --output-dir {run}`, with the "
            "configuration FILE that it was started with"
        )
    raise InputError(f"the checkpoint {checkpoint} has no {_CONFIG} beside it: {way}")
