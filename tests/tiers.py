"""Which members of a parametrized test run in `make test`: some that stand for all, while `make test-all` runs each."""

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["slow_but"]


def slow_but(kept: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return the values for `parametrize`, those that are not kept marked as slow; a tuple is for several arguments.

    Raises:
        ValueError: One that is to be kept is not among them: it was renamed, and `make test` would run none.
    """
    kept, values = list(kept), list(values)
    if missing := [one for one in kept if one not in values]:
        raise ValueError(f"kept in `make test`, but not among the values: {missing}")
    return [
        one if one in kept else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow)
        for one in values
    ]
