"""Tables of a configuration as frozen values: pydantic checks types and limits, and every error is one sentence."""

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Union, dataclass_transform, get_args

from regard.data.tokenizer import LARGEST_VOCABULARY
from regard.errors import InputError, MissingExtraError
from regard.files import expand_user
from regard.train.key_names import INSTEAD, model_key

try:
    from pydantic import AfterValidator, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
    from pydantic.dataclasses import dataclass as checked_dataclass
    from pydantic_core import core_schema
except ImportError as missing:
    raise MissingExtraError("pydantic", "train") from missing

__all__ = [
    "Count",
    "FilePath",
    "Fraction",
    "Length",
    "OneOf",
    "Probability",
    "Rows",
    "TokenizerConfig",
    "Width",
    "changed_keys",
    "check_texts",
    "sentence",
    "settings",
    "tables_of",
    "unknown_option",
]

# The largest counts that mean anything; `check_size` in machine_memory.py checks what fits into this machine.
Count = Annotated[int, Field(ge=1)]
Rows = Annotated[int, Field(ge=1, le=10**9)]
Length = Annotated[int, Field(ge=2, le=2**20)]
Width = Annotated[int, Field(ge=1, le=2**20)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
FilePath = Annotated[str, AfterValidator(expand_user)]  # of a file or folder, where ~ is the home

_PLAIN = {"a valid integer": "a whole number", "a valid number": "a number", "a valid string": "a text"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(kind: type[Any]) -> Any:
    """Make a class the frozen value of a table; keys and values that do not fit raise InputError.

    A `type: ClassVar[str]` is the value of the table's key `type`. A text in the place of the table is its key `word`,
    where the class has one.
    """
    if "type" in vars(kind):
        kind.__annotations__["type"] = Literal[kind.type]  # pydantic chooses the class by it

    def schema(cls: type[Any], source: Any, handler: GetCoreSchemaHandler) -> Any:
        del cls
        made = {**handler(source), "strict": False}  # a table may take the place of a value: its own values are strict
        word = getattr(kind, "word", None)
        read = core_schema.no_info_before_validator_function
        return made if word is None else read(lambda given: {word: given} if isinstance(given, str) else given, made)

    kind.__get_pydantic_core_schema__ = classmethod(schema)
    made = checked_dataclass(kind, frozen=True, kw_only=True, config=_STRICT)
    build: Callable[..., None] = made.__init__

    @functools.wraps(build)
    def checked(self: Any, **given: Any) -> None:
        try:
            build(self, **given)
        except ValidationError as problem:
            raise InputError(sentence(problem, made)) from problem

    made.__init__ = checked  # type: ignore[method-assign]
    return made


@dataclass(frozen=True)
class OneOf:
    """An annotation: the table is one of these classes, by its key `type`."""

    kinds: tuple[type[Any], ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return the schema of a union that pydantic tells apart by `type`."""
        del source
        return handler.generate_schema(Annotated[Union[self.kinds], Field(discriminator="type")])  # noqa: UP007


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ between two tables, with both values.

    >>> changed_keys({"training": {"max_steps": 1, "seed": 0}}, {"training": {"max_steps": 2, "seed": 0}})
    {'training.max_steps': (1, 2)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted(set(before) | set(now)):
        one, other, key = before.get(name), now.get(name), _join(where, name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found |= changed_keys(one, other, key)
        elif one != other:
            found[key] = (one, other)
    return found


def check_texts(found: Any, where: str = "") -> None:
    """Refuse texts that no file name and no JSON can have."""
    if isinstance(found, Mapping):
        for name, value in found.items():
            check_texts(value, _join(where, str(name)))
    elif isinstance(found, str) and ("\0" in found or any("\ud800" <= letter <= "\udfff" for letter in found)):
        raise InputError(f"`{where}` must be a text without NUL bytes and halves of characters, got {found!r}")


def sentence(problem: ValidationError, kind: type[Any]) -> str:
    """Return one error of a table of this class, or of tables in it, as one sentence that names the key.

    A key that does not exist comes before a value that does not fit, of which it is often the reason.
    """
    unknown = ("unexpected_keyword_argument", "extra_forbidden")
    errors: list[Any] = problem.errors(include_url=False)
    error = min(errors, key=lambda error: (error["type"] not in unknown, len(error["loc"])))
    if error["type"] in unknown:
        return _unknown_key(kind, error["loc"], is_table=isinstance(error["input"], Mapping))
    keys, tables = _place(kind, error["loc"])
    key, context = ".".join(keys), error.get("ctx", {})
    types = [table.type for table in tables[:-1] and tables]
    every = ", ".join(map(repr, types))
    if isinstance(cause := context.get("error"), InputError):  # of several keys that do not go together
        return f"[{key}] {cause}" if key else str(cause)
    if error["type"] == "union_tag_not_found":
        return f"the key `{key}.type` is missing: one of {every}"
    if error["type"] == "union_tag_invalid":
        near = difflib.get_close_matches(context["tag"], types, 1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        return f"`{key}.type` must be one of {every}, got {context['tag']!r}{hint}"
    table = "must be a table " + (f"with `type`, one of {every}" if types else "of keys and values")
    if error["type"] in ("model_attributes_type", "dataclass_type"):
        return f"`{key}` {table}, got {error['input']!r}"
    if error["type"] != "missing":
        number = any(name in context for name in _BOUNDS)
        return f"`{key}` {_rule(error)}, got " + (f"{error['input']:,}" if number else repr(error["input"]))
    if not tables:
        (outer,) = _place(kind, error["loc"][:-1])[1]
        try:
            TypeAdapter(outer.__pydantic_fields__[keys[-1]].annotation, config=_STRICT).validate_python(None)
        except ValidationError as absent:
            table = _rule(absent.errors()[0])
    return f"the key `{key}` is missing: it {table}"


def _place(kind: type[Any], location: Iterable[Any]) -> tuple[list[str], tuple[type[Any], ...]]:
    """Return the keys to an error, and the classes that the last one's table may have, none of a value."""
    keys: list[str] = []
    tables: tuple[type[Any], ...] = (kind,)
    for part in location:
        if len(tables) > 1:  # pydantic names the one that it took
            tables = tuple(table for table in tables if table.type == part)
        elif tables and part in tables[0].__pydantic_fields__:
            keys.append(part)
            tables = tables_of(tables[0].__pydantic_fields__[part])
        else:  # an item of a list, or one of several types of a value
            break
    return keys, tables


def tables_of(field: Any) -> tuple[type[Any], ...]:
    """Return the classes of a field that is a table."""
    kinds = next((note.kinds for note in field.metadata if isinstance(note, OneOf)), None)
    annotated = (field.annotation, *get_args(field.annotation))
    return tuple(one for one in annotated if hasattr(one, "__pydantic_fields__")) if kinds is None else kinds


def _rule(error: Any) -> str:
    """Return what a value must be."""
    for name, word in _BOUNDS.items():
        if name in error.get("ctx", {}):
            return f"must be {word} {error['ctx'][name]:,.15g}"
    rule: str = error["msg"].replace("Input should be", "must be")
    for theirs, ours in _PLAIN.items():
        rule = rule.replace(theirs, ours)
    return rule


def unknown_option(kind: type[Any], key: str) -> str | None:
    """Return what to write instead of a dotted key that no table has, None where one has it."""
    parts = key.split(".")
    for end, name in enumerate(parts):
        tables = _place(kind, parts[:end])[1]
        if tables and not any(name in table.__pydantic_fields__ for table in tables):
            return _unknown_key(kind, tuple(parts[: end + 1]), is_table=end + 1 < len(parts))
    return None


def _unknown_key(kind: type[Any], location: tuple[Any, ...], *, is_table: bool) -> str:
    """Return what to write instead of a key that a table does not have."""
    *place, name = map(str, location)
    keys, tables = _place(kind, place)
    key, names = (
        ".".join([*keys, name]),
        list(dict.fromkeys(one for table in tables for one in table.__pydantic_fields__)),
    )
    others: dict[str, list[str]] = {}  # all keys of all tables, each with the types that have it
    for outer, field in kind.__pydantic_fields__.items():
        for inner in tables_of(field):
            for one in inner.__pydantic_fields__:
                others.setdefault(_join(outer, one), []).append(str(getattr(inner, "type", "")))
    of_models = names if keys == ["model"] else [other.removeprefix("model.") for other in others]
    standard = model_key(name, of_models) if keys in ([], ["model"]) else None
    if key in others:
        way = "leave it out" if standard is None else f"set `model.{standard}`"
        (table,) = tables
        return f"the key `{key}` is of `{keys[0]}.type` {' or '.join(others[key])}, and not of {table.type}: {way}"
    if elsewhere := [other for other in others if other.rpartition(".")[2] == name]:
        it = f"`{elsewhere[0]}`"
        if standard is not None and standard != name:  # two types of a model name it differently
            it += f" of `model.type` {' or '.join(others[elsewhere[0]])}, and `model.{standard}` of transformer"
        return f"the key `{key}` is in the wrong table: it is {it}"
    if libraries := [library for library, words in INSTEAD.items() if name in words]:
        way = INSTEAD[libraries[0]][name]
        return f"the key `{key}` of {' and '.join(libraries)} is not a key here: {way}"
    if standard is not None:
        return f"the key `{key}` is not a key here: set `model.{standard}`"
    # A table may be meant by a table only, and a key by a value; no key is one of another type.
    own = [one for one in names if keys or is_table]
    ways = {} if is_table and not keys else {other.rpartition(".")[2]: other for other in others if _of(other) != keys}
    ways |= {one: ".".join([*keys, one]) for one in own}
    near = difflib.get_close_matches(name, ways, 1)
    way = f"did you mean `{ways[near[0]]}`?" if near else f"there are {', '.join(names)}"
    if not near and not keys:
        way = f"there are the tables {', '.join(names)}, whose keys are written --table.key value"
    return f"the key `{key}` is unknown: {way}"


def _of(key: str) -> list[str]:
    """The tables around a dotted key."""
    return key.split(".")[:-1]


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


@settings
class TokenizerConfig:
    """The tokenizer that is trained for a run.

    Args:
        model_type: "bpe", "unigram" or "char" (as in sentencepiece); "char" suits Chinese, Japanese and Korean.
        vocab_size: Largest number of tokens.
        lowercase: Whether texts are lowercased.
    """

    word: ClassVar[str] = "model_type"
    model_type: Literal["bpe", "unigram", "char"] = "bpe"
    vocab_size: Annotated[int, Field(ge=8, le=LARGEST_VOCABULARY)] = 8000
    lowercase: bool = False
