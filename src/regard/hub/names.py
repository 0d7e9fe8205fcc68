"""What a model's name means: a bundled model, a folder, the loader of an extension, or an id of the Hugging Face hub.

An id that is nowhere is refused at once, and without a network the cache is enough. Left alone, the libraries of
Hugging Face try each file for 40 seconds where the hub cannot be reached, also those that they have in the cache.
"""

import os
import re
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from regard.errors import InputError
from regard.extensions import extension_names
from regard.hub.catalogue import BUNDLED, refuse_mistyped

__all__ = ["WITH_LOADER", "check_loader", "is_offline"]


WITH_LOADER = re.compile(r"([A-Za-z][\w-]+):(?!//)")  # loader:name; a letter and a colon is a drive of Windows
_SECONDS = 3.0  # that the hub has for its answer
_ALIKE = 0.6


def is_offline(name: str, *, cache_dir: str | Path | None = None, token: str | bool | None = None) -> bool:
    """Return whether a model's files must come from the cache, because the hub cannot be reached.

    Args:
        name: A folder, which needs no hub, one of the bundled models, `loader:name` of an extension, or an id of the
            hub.
        cache_dir, token: As in huggingface_hub.

    Raises:
        InputError: There is no such folder or loader, and the hub has no such model, or cannot be asked and the cache
            has none.
    """
    if found := WITH_LOADER.match(name):
        check_loader(name, found[1])
        return False
    if (
        not name.strip()
        or name in BUNDLED
        or name.startswith((".", "/", "~"))
        or os.path.isdir(Path(name).expanduser())
    ):
        return False
    refuse_mistyped(name)
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


def check_loader(name: str, loader: str) -> None:
    """Raise InputError if no installed package has a loader of this name."""
    if loader not in (known := extension_names("regard.model_loaders")):
        raise InputError(
            f"`model` {name!r} needs the loader {loader!r}, and no installed package has it: loaders are "
            f"{', '.join(known) or 'none'}; an id of the hub has no colon"
        )
