"""What `auto` takes with the library for which most was measured, whichever this machine's processor runs."""

import pytest

from regard.backends import call_cache
from regard.backends.native import choice, library

__all__ = ["LIBRARIES", "take_rules_of", "use_library"]

OLDER = {  # what a processor runs besides its best library
    "x86_64_v4_bf16": ("x86_64_v4", "x86_64_v3"),
    "x86_64_v4": ("x86_64_v3",),
}
BEST = library.library().name if library.refuses() is None else "none"
LIBRARIES = (BEST, *OLDER.get(BEST, ()))  # those that the processor runs


def take_rules_of(monkeypatch, name="x86_64_v4_bf16"):
    """Let `auto` follow the rules of a library, while kernels are those of the processor; skip where it has none."""
    if (reason := library.refuses()) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(choice, "_loaded", lambda: name)


def use_library(monkeypatch, name):
    """Compute with the kernels of one of the libraries; skip where there are none."""
    if (reason := library.refuses()) is not None:
        pytest.skip(reason)
    loaded = library._Loaded(library.load(name), None)
    monkeypatch.setattr(library, "_loaded", lambda: loaded)
    monkeypatch.setattr(call_cache, "_KEPT", {})  # calls that are prepared for the best one
