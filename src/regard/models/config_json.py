"""Configurations as JSON: frozen values, each with its kind, and none but those that a model names."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from regard.errors import InputError

__all__ = ["from_json", "to_json"]


def to_json(value: Any) -> Any:
    """A configuration as what json.dumps takes.

    >>> from regard.models import Learned
    >>> to_json(Learned(512))
    {'kind': 'Learned', 'max_position_embeddings': 512}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    return [to_json(one) for one in value] if isinstance(value, tuple) else value


def from_json(found: Any, kinds: Sequence[type[Any]]) -> Any:
    """The configuration that `to_json` gave, of these kinds of values alone.

    Raises:
        InputError: A kind or a field is not known: the file is of another version, or was changed.

    >>> from regard.models import Learned
    >>> from_json({"kind": "Learned", "max_position_embeddings": 512}, [Learned])
    Learned(max_position_embeddings=512)
    """
    if isinstance(found, list):
        return tuple(from_json(one, kinds) for one in found)
    if not isinstance(found, dict):
        return found
    named = found.get("kind")
    kind = next((one for one in kinds if one.__name__ == named), None)
    if kind is None:
        raise InputError(f"the configuration has a value of kind {named!r}, and this model knows none of that name")
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(found) - known - {"kind"}):
        raise InputError(f"the configuration's {kind.__name__} has {unknown[0]!r}, which this version does not know")
    lacking = sorted(known - set(found)) if kind is kinds[0] else []
    if lacking:  # `to_json` gives all; a default would be another model
        raise InputError(f"the configuration's {kind.__name__} has no {lacking[0]!r}, which every saved one has")
    try:
        return kind(**{name: from_json(one, kinds) for name, one in found.items() if name != "kind"})
    except TypeError as problem:
        raise InputError(f"the configuration's {kind.__name__} cannot be read: {problem}") from problem
