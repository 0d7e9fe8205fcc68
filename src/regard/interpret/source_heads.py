"""The heads that `sources` reads by default: those that come with the model, or those found in it once."""

from collections.abc import Callable
from importlib import resources

from regard.errors import InputError
from regard.files import cache_folder
from regard.heads.head_set import HeadSet
from regard.hub import Loaded
from regard.interpret.find_heads import find_heads, fingerprint

__all__ = ["heads_for"]


def heads_for(loaded: Loaded, heads: HeadSet | None, say: Callable[[str], None]) -> HeadSet:
    """Return the given heads, those that come with the model, or those that `find_heads` finds, once per model.

    Raises:
        InputError: The given heads are another model's, or the model is no causal language model.
        ObservationError: No head of the model retrieves.
    """
    own = fingerprint(loaded.model)
    if heads is not None:
        if not isinstance(heads, HeadSet):
            raise InputError(f"`heads` must be a HeadSet (regard.HeadSet.load, regard.find_heads), got {heads!r}")
        heads.check_model(own)
        return heads
    shipped = resources.files("regard.heads") / f"sources-{own}.json"
    if shipped.is_file():
        with resources.as_file(shipped) as path:
            return HeadSet.load(path)
    kept = cache_folder() / "heads" / f"sources-{own}.json"
    if kept.exists():
        return HeadSet.load(kept)
    found = find_heads(loaded, job="sources", progress=say)
    kept.parent.mkdir(parents=True, exist_ok=True)
    found.save(kept)
    return found
