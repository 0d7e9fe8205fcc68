"""JSON in which a key stands once: `json` takes the last of two, and what the first one said is lost without a word."""

import gc
import json
from typing import Any

__all__ = ["DuplicateKeyError", "is_version", "parse_json"]


class DuplicateKeyError(ValueError):
    """An object names a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"an object names {key!r} twice")
        self.key = key


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        DuplicateKeyError: An object names a key twice.
        ValueError, RecursionError: It is no JSON.

    >>> parse_json('{"query": 1, "query": 2}')
    Traceback (most recent call last):
    regard.strict_json.DuplicateKeyError: an object names 'query' twice
    """
    # The collector would go through what was parsed again and again: 0.5 s of a vocabulary of 250,000 tokens, not 0.2.
    collects = gc.isenabled()
    gc.disable()
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    finally:
        if collects:
            gc.enable()


def is_version(found: object, version: int) -> bool:
    """Return whether a number from JSON is this version of a format: 2.0 and true are equal to a number and are none.

    >>> [is_version(one, 1) for one in (1, 1.0, True, "1", None)]
    [True, False, False, False, False]
    """
    return type(found) is int and found == version


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise DuplicateKeyError(next(name for name in names if names.count(name) > 1))
    return found
