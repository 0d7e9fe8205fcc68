"""A configuration from a TOML or YAML file and from `--section.key value`, every name and type checked."""

import difflib
import json
import re
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from regard.errors import InputError
from regard.train import config as known
from regard.train.config import Config, Training
from regard.train.key_names import FORMAT, OLD_TYPES, instead_of, renamed_keys

__all__ = ["changes", "from_mapping", "read_config", "to_mapping"]

# `type = "…"` of a table that has several types.
_TYPES: dict[type, str] = {
    known.Translation: "translation",
    known.Synthetic: "synthetic",
    known.CausalLM: "clm",
    known.MaskedLM: "mlm",
    known.Classification: "classification",
    known.Transformer: "transformer",
    known.Recurrent: "recurrent",
    known.Checkpoint: "checkpoint",
}


_TRAINING = frozenset(one.name for one in fields(Training))  # options without a table
_NAMED = (
    "task",
    "model",
    "tokenizer",
    "src_tokenizer",
    "tgt_tokenizer",
)  # tables that a word may stand for: their type, a tokenizer's model_type


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration in a file, with the keys that the command line replaces.

    Args:
        path: TOML, or YAML by its suffix.
        overrides: Such as ["--training.max_steps", "128", "--learning_rate=3e-4"]; a key without a table is one of
            [training]; values are written as in TOML, or plain words.

    Raises:
        InputError: The file cannot be read, a key is unknown, missing or of an older format, or a value is of the
            wrong type.
    """
    found = _file(Path(path))
    _check_format(found, str(path))
    # Types first: they clear the keys of another type in the file, and none of the command line.
    for key, value in sorted(_pairs(overrides), key=lambda pair: not pair[0].endswith(".type")):
        _put(found, key.split("."), value, key)
    _check_format(found, "the command line")
    made: Config = from_mapping(Config, found)
    return made


def _check_format(found: dict[str, Any], where: str) -> None:
    """Refuse keys of format 1, each with its new name."""
    if old := renamed_keys(found):
        names = ", ".join(f"`{key}` is now `{new}`" for key, new in old.items())
        formats = f"configuration format 1, and this release reads format {FORMAT}"
        raise InputError(f"{where} has keys of {formats}: {names}")


def from_mapping(kind: Any, found: Any, where: str = "") -> Any:
    """Return the frozen value of a kind that tables, lists and plain values describe."""
    if not isinstance(found, Mapping):
        raise InputError(f"`{where}` must be a table of keys and values, got {found!r}")
    hints, names = get_type_hints(kind), [one.name for one in fields(kind)]
    for name in found:
        if name not in names:
            raise InputError(_unknown(str(name), names, where))
    missing = [
        one.name
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING and one.name not in found
    ]
    if missing:
        raise InputError(f"the key `{_join(where, missing[0])}` is missing: {_wants(hints[missing[0]])}")
    usual = {one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(kind)}
    values = {name: _value(hints[name], value, _join(where, name), usual[name]) for name, value in found.items()}
    try:
        return kind(**values)
    except InputError as problem:
        raise InputError(f"[{where}] {problem}" if where else str(problem)) from problem


def to_mapping(value: Any) -> Any:
    """Return tables, lists and plain values that `from_mapping` reads back; None is left out, as TOML has none."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {"type": _TYPES[type(value)]} if type(value) in _TYPES else {}
        given = {one.name: to_mapping(getattr(value, one.name)) for one in fields(value)}
        return own | {name: one for name, one in given.items() if one is not None}
    return [to_mapping(one) for one in value] if isinstance(value, tuple) else value


def changes(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ between two mappings, with both values.

    >>> changes({"training": {"max_steps": 1, "seed": 0}}, {"training": {"max_steps": 2, "seed": 0}})
    {'training.max_steps': (1, 2)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted(set(before) | set(now)):
        one, other, key = before.get(name), now.get(name), _join(where, name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found |= changes(one, other, key)
        elif one != other:
            found[key] = (one, other)
    return found


def _file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"cannot read the configuration {path}: {getattr(problem, 'strerror', problem)}") from problem
    try:
        found = _yaml(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # tomllib's error is a ValueError
        raise InputError(f"cannot read the configuration {path}: {' '.join(str(problem).split())}") from problem
    except Exception as problem:
        if type(problem).__module__.partition(".")[0] != "yaml":
            raise
        raise InputError(f"cannot read the configuration {path}: {' '.join(str(problem).split())}") from problem
    if not isinstance(found, dict):
        raise InputError(f"the configuration {path} must be a table of keys and values, got {type(found).__name__}")
    return found


def _yaml(text: str) -> Any:
    """YAML, in which 1e-3 is a number: of PyYAML's own, YAML 1.1, it is a text."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """With the floats of YAML 1.2, and no key twice."""

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys: set[str] = set()
            for key, _ in node.value:
                if key.value in keys if isinstance(key, yaml.ScalarNode) else False:
                    raise ValueError(f"it names the key {key.value!r} twice, again in line {key.start_mark.line + 1}")
                keys |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
            return node

    number = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return yaml.load(text, Loader)  # with SafeLoader's constructors: nothing of the text is run


def _pairs(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """Keys and values of `--a.b value` and `--a.b=value`."""
    found, rest = [], list(overrides)
    while rest:
        one = rest.pop(0)
        key, equals, text = one.removeprefix("--").partition("=")
        if not one.startswith("--") or not key:
            raise InputError(f"{one!r} is no key: write --table.key value, such as --training.max_steps 300")
        if not equals:
            if not rest or (rest[0].startswith("--")):
                raise InputError(f"`--{key}` has no value: write --{key} value")
            text = rest.pop(0)
        key = key.replace("-", "_")
        found.append((f"training.{key}" if key in _TRAINING else key, _plain(text)))
    return found


def _plain(text: str) -> Any:
    """A value as TOML writes it; a plain word is itself."""
    try:
        return tomllib.loads(f"it = {text}")["it"]
    except (ValueError, RecursionError):  # tomllib's error is a ValueError
        return {"True": True, "False": False}.get(text, text)


def _put(table: dict[str, Any], parts: list[str], value: Any, key: str) -> None:
    for part in parts[:-1]:
        if isinstance(table.get(part), str) and part in _NAMED:
            table[part] = {_variant(part): table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"`--{key}` names a key of `{part}`, which is no table in the configuration")
    if parts[-1] == "type" and table.get("type") not in (None, value):
        table.clear()  # this type does not have the keys of another one
    if value == "none" and parts[-1] not in ("attention", "positions"):
        table.pop(parts[-1], None)  # the default, which is None where None is possible
    else:
        table[parts[-1]] = value


def _value(hint: Any, found: Any, where: str, usual: Any) -> Any:
    if isinstance(found, str) and ("\0" in found or any("\ud800" <= one <= "\udfff" for one in found)):
        raise InputError(f"`{where}` must be a text without NUL bytes and halves of characters, got {found!r}")
    options = _options(hint)
    tables = [one for one in options if is_dataclass(one)]
    if tables and isinstance(found, Mapping | str):
        return _table(tables, found, where, usual)
    for one in options:
        fits, value = _fit(one, found)
        if fits:
            return value
    raise InputError(f"`{where}` must be {_wants(hint)}, got {found!r}")


def _variant(table: str) -> str:
    """The key that a word stands for which is given instead of a table."""
    return "model_type" if table.endswith("tokenizer") else "type"


def _table(kinds: list[Any], found: Mapping[str, Any] | str, where: str, usual: Any) -> Any:
    """The value of a table; one that names no type is of the usual one, if there is one."""
    found = {_variant(where): found} if isinstance(found, str) else dict(found)
    if type(usual) in kinds and type(usual) in _TYPES:
        found.setdefault("type", _TYPES[type(usual)])
    if len(kinds) == 1:
        if kinds[0] in _TYPES and found.get("type") == _TYPES[kinds[0]]:
            found.pop("type")
        return from_mapping(kinds[0], found, where)
    names = {_TYPES[one]: one for one in kinds}
    if "type" not in found:
        raise InputError(f"the key `{_join(where, 'type')}` is missing: one of {', '.join(map(repr, names))}")
    named = str(found.pop("type"))
    if named not in names:
        near = difflib.get_close_matches(named, names, 1)
        near = [OLD_TYPES[named]] if OLD_TYPES.get(named) in names else near
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise InputError(f"`{_join(where, 'type')}` must be one of {', '.join(map(repr, names))}, got {named!r}{hint}")
    return from_mapping(names[named], found, where)


def _options(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        return [inner for one in get_args(hint) for inner in _options(one)]
    return [hint]


def _fit(kind: Any, found: Any) -> tuple[bool, Any]:
    """Whether a plain value is of a kind, and the value as that kind."""
    origin = get_origin(kind)
    if origin is Literal:
        return found in get_args(kind) and not isinstance(found, bool), found
    if origin is tuple:
        parts = get_args(kind)
        if not isinstance(found, list | tuple) or len(found) != len(parts):
            return False, None
        each = [_fit(one, value) for one, value in zip(parts, found, strict=True)]
        return all(fits for fits, _ in each), tuple(value for _, value in each)
    if kind is float:
        fits = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 2**1023
        return fits, float(found) if fits else None
    if kind is int:
        return isinstance(found, int) and not isinstance(found, bool), found
    if kind is type(None):
        return found is None, None
    return isinstance(kind, type) and isinstance(found, kind), found


def _wants(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "nothing"}
    kinds = []
    for one in _options(hint):
        if get_origin(one) is Literal:
            kinds += [json.dumps(value) for value in get_args(one)]
        elif get_origin(one) is tuple:
            kinds.append(f"a list of {len(get_args(one))} numbers")
        elif is_dataclass(one):
            kinds.append(f'a table with type = "{_TYPES[one]}"' if one in _TYPES else "a table")
        elif one is not type(None):
            kinds.append(words[one])
    return " or ".join(kinds)


def _unknown(name: str, names: Sequence[str], where: str) -> str:
    if (way := instead_of(name)) is not None:
        return f"the key `{_join(where, name)}` of transformers is not a key here: {way}"
    if where != "training" and name in _TRAINING:
        return f"the key `{_join(where, name)}` is in the wrong table: it is `training.{name}`"
    near = difflib.get_close_matches(name, names, 1)
    way = f"did you mean `{_join(where, near[0])}`?" if near else f"there are {', '.join(names)}"
    return f"the key `{_join(where, name)}` is unknown: {way}"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
