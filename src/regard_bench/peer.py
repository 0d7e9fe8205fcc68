"""Other people's packages: their call where they are installed and run here, else a word why not."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

__all__ = ["prepared"]

Made = TypeVar("Made")


def prepared(package: str, name: str, make: Callable[[], Made]) -> Made | str:
    """What `make` gives, which imports the package and tries it; or why there is nothing to measure.

    >>> prepared("no_such_package", "no-such-package", lambda: print)
    'no-such-package is not installed'
    """
    if find_spec(package) is None:
        return f"{name} is not installed"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()
    except Exception as problem:  # a peer that does not run here is no failure of ours
        reason = " ".join(str(problem).split()) or "no reason given"
        return f"does not run here: {type(problem).__name__}: {reason if len(reason) <= 100 else reason[:99] + '…'}"
