"""Tables of a training file as frozen values: pydantic checks types and limits, and every error is one sentence."""

import difflib
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal, dataclass_transform

from regard.data.tokenizer import LARGEST_VOCABULARY
from regard.errors import InputError, MissingExtraError
from regard.train.key_names import INSTEAD

try:
    from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
    from pydantic.dataclasses import dataclass as checked_dataclass
except ImportError as missing:
    raise MissingExtraError("pydantic", "train") from missing

__all__ = [
    "Count",
    "Fraction",
    "Length",
    "Probability",
    "Rows",
    "TokenizerConfig",
    "Width",
    "changed_keys",
    "check_texts",
    "from_table",
    "nested",
    "settings",
    "to_table",
    "unknown_key",
    "yaml_table",
]

# The largest counts that mean anything; `check_size` in model_types.py checks what fits into this machine.
Count = Annotated[int, Field(ge=1)]
Rows = Annotated[int, Field(ge=1, le=10**9)]
Length = Annotated[int, Field(ge=2, le=2**20)]
Width = Annotated[int, Field(ge=1, le=2**20)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]

_PLAIN = {"a valid integer": "a whole number", "a valid number": "a number", "a valid string": "a text"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(kind: type[Any]) -> Any:
    """Make a class the frozen value of a table; keys and values that do not fit raise InputError.

    A `type: ClassVar[str]` is what the table's key `type` says, where it has one.
    """
    config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
    made = checked_dataclass(kind, frozen=True, kw_only=True, config=config)
    build: Callable[..., None] = made.__init__

    @functools.wraps(build)
    def checked(self: Any, **given: Any) -> None:
        try:
            build(self, **given)
        except ValidationError as problem:
            raise InputError(_sentence(problem, made, given, "")) from problem

    made.__init__ = checked  # type: ignore[method-assign]
    return made


def from_table(kind: type[Any], found: Any, where: str = "") -> Any:
    """Return the value of a table; `where` is its name, for errors."""
    if not isinstance(found, Mapping):
        raise InputError(f"`{where}` must be a table of keys and values, got {found!r}")
    names = [one.name for one in fields(kind)]
    given = {name: value for name, value in found.items() if (name, value) != ("type", getattr(kind, "type", None))}
    for name in given:
        if name not in names:
            raise InputError(unknown_key(str(name), names, where))
    try:
        return kind(**given)
    except InputError as problem:
        if not isinstance(cause := problem.__cause__, ValidationError):
            raise
        raise InputError(_sentence(cause, kind, given, where)) from cause


def to_table(value: Any) -> dict[str, Any]:
    """Return keys and plain values that `from_table` reads back; None is left out, as TOML has none."""

    def without_none(found: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: list(one) if isinstance(one, tuple) else one for name, one in found if one is not None}

    own = {"type": value.type} if hasattr(value, "type") else {}
    return own | asdict(value, dict_factory=without_none)


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
            check_texts(value, f"{where}.{name}" if where else str(name))
    elif isinstance(found, str) and ("\0" in found or any("\ud800" <= one <= "\udfff" for one in found)):
        raise InputError(f"`{where}` must be a text without NUL bytes and halves of characters, got {found!r}")


def unknown_key(name: str, names: list[str], where: str) -> str:
    """Return the sentence about a key that a table does not have."""
    key = _join(where, name)
    if name in INSTEAD:
        return f"the key `{key}` of transformers is not a key here: {INSTEAD[name]}"
    near = difflib.get_close_matches(name, names, 1)
    way = f"did you mean `{_join(where, near[0])}`?" if near else f"there are {', '.join(names)}"
    return f"the key `{key}` is unknown: {way}"


def nested(kind: type[Any], word: str = "type") -> BeforeValidator:
    """Return the reader of a table inside another; a text in its place is its key `word`."""

    def read(found: Any) -> Any:
        found = {word: found} if isinstance(found, str) else found
        return from_table(kind, found) if isinstance(found, Mapping) else found

    return BeforeValidator(read)


def _sentence(problem: ValidationError, kind: type[Any], given: Mapping[str, Any], where: str) -> str:
    """Return what pydantic says of the first error, as one sentence that names the key."""
    error: Any = problem.errors(include_url=False)[0]
    place = [str(one) for one in error["loc"]]
    key, context = ".".join(filter(None, [where, *place])), error.get("ctx", {})
    if isinstance(context.get("error"), InputError):  # of a table inside, or of several keys that do not go together
        return f"[{key}] {context['error']}" if key else str(context["error"])
    if error["type"] == "missing":
        return f"the key `{key}` is missing: it {_rule(kind, given, place[0])}"
    if error["type"] == "unexpected_keyword_argument":
        return unknown_key(place[-1], [one.name for one in fields(kind)], where)
    bound = next(((word, context[name]) for name, word in _BOUNDS.items() if name in context), None)
    if bound is not None:
        return f"`{key}` must be {bound[0]} {bound[1]:,.15g}, got {error['input']:,}"
    rule = error["msg"].replace("Input should be", "must be")
    for theirs, ours in _PLAIN.items():
        rule = rule.replace(theirs, ours)
    return f"`{key}` {rule}, got {error['input']!r}"


def _rule(kind: type[Any], given: Mapping[str, Any], name: str) -> str:
    """Return what the value of a missing key must be: what is said of None."""
    try:
        kind(**given, **{name: None})
    except InputError as problem:
        return str(problem).partition("` ")[2].removesuffix(", got None")
    return "must be given"


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

    model_type: Literal["bpe", "unigram", "char"] = "bpe"
    vocab_size: Annotated[int, Field(ge=8, le=LARGEST_VOCABULARY)] = 8000
    lowercase: bool = False


def yaml_table(text: str) -> Any:
    """Return what a text in YAML holds, in which 1e-3 is a number: of PyYAML's own, YAML 1.1, it is a text."""
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
