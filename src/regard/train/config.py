"""The configuration of a run, read from a TOML or YAML file and from `--table.key value`."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import printable, read_text
from regard.train.key_names import FORMAT, OLD_TYPES, RENAMED
from regard.train.model_types import MODEL_TYPES, ModelSettings, TransformerSettings
from regard.train.settings import check_texts, from_table, to_table, unknown_key, yaml_table
from regard.train.tasks import TASKS
from regard.train.tasks.base import Task, TaskSettings
from regard.train.training import Training

__all__ = ["Config", "Training", "read_config", "task_of"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a run.

    Args:
        task: The task and its data.
        training: Its optimizer, length and output folder.
        model: The model.
    """

    task: TaskSettings
    training: Training
    model: ModelSettings = field(default_factory=TransformerSettings)

    def __post_init__(self) -> None:
        if self.training.context_parallel_size > 1:
            self._check_sequence_ranks()

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> "Config":
        """Return the configuration that tables of plain values describe.

        Raises:
            InputError: A key is unknown or missing, or a value does not fit.
        """
        names = [one.name for one in fields(cls)]
        for name in config_dict:
            if name not in names:
                raise InputError(_wrong_table(str(name)) or unknown_key(str(name), names, ""))
        for name in ("task", "training"):
            if name not in config_dict:
                raise InputError(f"the key `{name}` is missing: it must be a table of keys and values")
        check_texts(config_dict)
        model = config_dict.get("model", {})
        if isinstance(model, Mapping):
            model = {"type": TransformerSettings.type, **model}
        return cls(
            task=_of_type([one.settings for one in TASKS], config_dict["task"], "task"),
            model=_of_type(MODEL_TYPES, model, "model"),
            training=from_table(Training, config_dict["training"], "training"),
        )

    def _check_sequence_ranks(self) -> None:
        """Refuse what no rank has: whole rows, or rows of two sequences."""
        key = f"`training.context_parallel_size` is {self.training.context_parallel_size}, and"
        if self.task.type not in ("clm", "mlm"):
            raise InputError(
                f'{key} `task.type` "{self.task.type}" has no single sequence whose tokens are predicted: take clm or '
                "mlm, or context_parallel_size = 1"
            )
        if self.training.torch_compile:
            raise InputError(
                f"{key} attention over several ranks is not compiled: set torch_compile = false, or "
                "context_parallel_size = 1"
            )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return tables of plain values that `from_dict` reads back."""
        return {one.name: to_table(getattr(self, one.name)) for one in fields(self)}


def task_of(config: Config, folder: Path) -> Task:
    """Return the task of a configuration with its data; `folder` is that of the run's tokenizers.

    Raises:
        InputError: The data cannot be read, or the model does not fit the task.
    """
    kind = next(one for one in TASKS if one.settings is type(config.task))
    return kind(config.task, config.training, config.model, folder)


_TRAINING = frozenset(one.name for one in fields(Training))  # options without a table
_WORDS = {"task": "type", "model": "type"} | dict.fromkeys(
    ("tokenizer", "src_tokenizer", "tgt_tokenizer"), "model_type"
)  # tables that a word may stand for, and which key it is


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
    found = _read(Path(path))
    _check_format(found, str(path))
    # Types first: they clear the keys of another type in the file, and none of the command line.
    for key, value in sorted(_pairs(overrides), key=lambda pair: not pair[0].endswith(".type")):
        _put(found, key.split("."), value, key)
    _check_format(found, "the command line")
    return Config.from_dict(found)


def _of_type(kinds: Sequence[type[Any]], found: Any, where: str) -> Any:
    """Return the value of a table that has several types; a text stands for a table of that type alone."""
    found = {"type": found} if isinstance(found, str) else found
    names = {one.type: one for one in kinds}
    every = ", ".join(map(repr, names))
    if not isinstance(found, Mapping):
        raise InputError(f"`{where}` must be a table with `type`, one of {every}, got {found!r}")
    if "type" not in found:
        raise InputError(f"the key `{where}.type` is missing: one of {every}")
    named = str(found["type"])
    if named not in names:
        near = [OLD_TYPES[named]] if OLD_TYPES.get(named) in names else difflib.get_close_matches(named, names, 1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise InputError(f"`{where}.type` must be one of {every}, got {named!r}{hint}")
    for name in found:
        if name not in [one.name for one in fields(names[named])] and (wrong := _wrong_table(name, where)):
            raise InputError(wrong)
    return from_table(names[named], found, where)


def _wrong_table(name: str, where: str = "") -> str | None:
    if name not in _TRAINING:
        return None
    return f"the key `{where + '.' if where else ''}{name}` is in the wrong table: it is `training.{name}`"


def _check_format(found: Mapping[str, Any], where: str) -> None:
    """Refuse keys of format 1, each with its new name."""
    keys: list[str] = []

    def walk(table: Mapping[str, Any], outer: str) -> None:
        for name, value in table.items():
            key = f"{outer}.{name}" if outer else str(name)
            inside = isinstance(value, Mapping) and any(one.startswith(key + ".") for one in RENAMED)
            if key in RENAMED and not (inside and key == "optimizer.schedule"):  # whose keys have names of their own
                keys.append(key)
            if inside:
                walk(value, key)

    walk(found, "")
    if keys:
        names = ", ".join(f"`{key}` is now `{RENAMED[key]}`" for key in keys)
        formats = f"configuration format 1, and this release reads format {FORMAT}"
        raise InputError(f"{where} has keys of {formats}: {names}")


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(
            f"cannot read the configuration {printable(path)}: {getattr(problem, 'strerror', problem)}"
        ) from problem
    try:
        found = yaml_table(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except Exception as problem:
        known = isinstance(problem, ValueError | RecursionError)  # tomllib's error is a ValueError
        if not known and type(problem).__module__.partition(".")[0] != "yaml":
            raise
        raise InputError(f"cannot read the configuration {path}: {' '.join(str(problem).split())}") from problem
    if not isinstance(found, dict):
        raise InputError(f"the configuration {path} must be a table of keys and values, got {type(found).__name__}")
    return found


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
        if isinstance(table.get(part), str) and part in _WORDS:
            table[part] = {_WORDS[part]: table[part]}
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"`--{key}` names a key of `{part}`, which is no table in the configuration")
    if parts[-1] == "type" and table.get("type") not in (None, value):
        table.clear()  # this type does not have the keys of another one
    if value == "none" and parts[-1] not in ("attention", "positions"):
        table.pop(parts[-1], None)  # the default, which is None where None is possible
    else:
        table[parts[-1]] = value
