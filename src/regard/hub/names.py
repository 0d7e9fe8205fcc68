"""What a model's name means: a bundled model, a folder, the loader of an extension, or an id of the Hugging Face hub.

An id that is nowhere is refused at once, and without a network the cache is enough. Left alone, the libraries of
Hugging Face try each file for 40 seconds where the hub cannot be reached, also those that they have in the cache.
"""

import json
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Literal

from regard.errors import InputError
from regard.extensions import extension_names
from regard.files import read_text
from regard.hub.catalogue import BUNDLED

__all__ = ["ModelName", "is_offline", "resolve"]


NameKind = Literal["bundled", "loader", "saved", "folder", "hub"]

_WITH_LOADER = re.compile(r"([A-Za-z][\w-]+):(?!//)")  # loader:name; a letter and a colon is a drive of Windows
_SECONDS = 3.0  # that the hub has for its answer
_ALIKE = 0.6  # similarity from which a name is suggested
_MISTYPED = 0.75  # from which it counts as misspelled; no id of the hub without a / is as similar


@dataclass(frozen=True)
class ModelName:
    """A model's name and what it means.

    Args:
        text: The name.
        kind: "bundled", "loader" (`loader:name` of an extension), "saved" (a folder that regard saved: a model, a run
            of `regard train`, or one of its checkpoints), "folder" (any other), or "hub" (an id).
        folder: The folder, of "saved" and "folder".
        loader: The loader, of "loader".
    """

    text: str
    kind: NameKind
    folder: Path | None = None
    loader: str | None = None


def resolve(name: str) -> ModelName:
    """Return what a name means, without asking the hub.

    >>> resolve("minilm").kind, resolve("google-bert/bert-base-uncased").kind
    ('bundled', 'hub')
    >>> resolve("minlm")
    Traceback (most recent call last):
    regard.errors.InputError: there is no model and no folder 'minlm': did you mean 'minilm'?

    Raises:
        InputError: The name is empty or means two models, or there is no such folder or loader.
    """
    if not name.strip():
        raise InputError(
            f"the name of a model must not be empty: name a folder, an id of the hub, or one of {', '.join(BUNDLED)}"
        )
    folder = Path(name).expanduser()
    is_folder = os.path.isdir(folder)
    if name in BUNDLED:
        if is_folder and (_is_saved(folder) or os.path.isfile(folder / "config.json")):
            raise InputError(
                f"{name!r} is a bundled model, and here also a folder with a model: name the folder ./{name}, or work "
                "in another folder for the bundled one"
            )
        return ModelName(name, "bundled")
    if found := _WITH_LOADER.match(name):
        _check_loader(name, found[1])
        return ModelName(name, "loader", loader=found[1])
    if is_folder:
        return ModelName(name, "saved" if _is_saved(folder) else "folder", folder=folder)
    if name.startswith((".", "/", "~")):
        raise InputError(f"there is no folder {name!r}; bundled models are {', '.join(BUNDLED)}")
    _refuse_mistyped(name)
    return ModelName(name, "hub")


def _refuse_mistyped(name: str) -> None:
    """Refuse a name that is similar to a bundled model's, instead of looking it up on the hub for a minute."""
    if "/" not in name:
        for meant in get_close_matches(name.strip().lower(), BUNDLED, n=1, cutoff=_MISTYPED):
            raise InputError(f"there is no model and no folder {name!r}: did you mean {meant!r}?")


def _is_saved(folder: Path) -> bool:
    """Return whether regard saved the folder: a run of `regard train`, a checkpoint of it, or a model."""
    if any(os.path.isfile(folder / name) for name in ("run.json", "place.json")):
        return True
    try:
        return "regard" in json.loads(read_text(folder / "config.json"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def is_offline(name: str, *, cache_dir: str | Path | None = None, token: str | bool | None = None) -> bool:
    """Return whether a model's files must come from the cache, because the hub cannot be reached.

    Args:
        name: Any name of a model; only an id is looked up on the hub.
        cache_dir, token: As in huggingface_hub.

    Raises:
        InputError: As `resolve`; or the hub has no such model, or cannot be asked and the cache has none.
    """
    if resolve(name).kind != "hub":
        return False
    return _is_offline(name, None if cache_dir is None else str(cache_dir), token)


@lru_cache(maxsize=64)
def _is_offline(name: str, cache_dir: str | None, token: str | bool | None) -> bool:
    try:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    except ImportError:
        return False  # what loads the model says what to install
    cached = _cached(Path(cache_dir or constants.HF_HUB_CACHE))
    try:
        HfApi(token=token).model_info(name, timeout=_SECONDS)
    except (RepositoryNotFoundError, HFValidationError) as problem:
        raise InputError(
            f"there is no folder {name!r}, and no such model on the hub (or it is private){_meant(name, cached)}"
        ) from problem
    except HfHubHTTPError:
        return False  # the hub answers, and says more to who asks for a file
    except Exception as problem:
        # No connection: each version of huggingface_hub has its own library for that, with its own errors.
        if name in cached:
            return True
        raise InputError(
            f"there is no folder {name!r}, it is not in the cache of the hub, and the hub cannot be reached"
            f"{_meant(name, cached)}"
        ) from problem
    return False


def _cached(folder: Path) -> list[str]:
    """Ids of the models that were fetched before."""
    try:
        return [one.name.removeprefix("models--").replace("--", "/") for one in folder.glob("models--*")]
    except OSError:
        return []


def _meant(name: str, cached: list[str]) -> str:
    known = [*BUNDLED, *cached]
    near = get_close_matches(name, known, n=1, cutoff=_ALIKE)
    return f": did you mean {near[0]!r}?" if near else f": bundled models are {', '.join(BUNDLED)}"


def _check_loader(name: str, loader: str) -> None:
    if loader not in (known := extension_names("regard.model_loaders")):
        raise InputError(
            f"`model` {name!r} needs the loader {loader!r}, and no installed package has it: loaders are "
            f"{', '.join(known) or 'none'}; an id of the hub has no colon"
        )
