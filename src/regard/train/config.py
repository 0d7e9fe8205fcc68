"""The configuration of a run: three tables, read from a TOML file and from `--table.key value`."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError, model_validator

from regard.errors import InputError, MissingExtraError
from regard.files import expand_user, printable, read_text
from regard.train.model_types import MODEL_TYPES, ModelSettings, TransformerSettings
from regard.train.settings import OneOf, check_texts, sentence, tables_of, unknown_option
from regard.train.tasks import TASKS
from regard.train.tasks.base import Task, TaskSettings
from regard.train.training import Training

try:
    from pydantic_settings import BaseSettings, InitSettingsSource, SettingsConfigDict
except ImportError as missing:
    raise MissingExtraError("pydantic-settings", "train") from missing

__all__ = ["Config", "Training", "read_config", "task_of"]

_TRAINING = frozenset(field.name for field in fields(Training))  # options without a table
_SHORT = {"s": "--task.source_lang en", "t": "--task.target_lang zh"}  # of fairseq and OpenNMT
_TYPED = ("task", "model")  # tables that a text may stand for, as their type


class Config(BaseSettings):
    """The configuration of a run.

    Args:
        task: The task and its data.
        training: Its optimizer, length and output folder.
        model: The model.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    task: Annotated[TaskSettings, OneOf(tuple(task.settings for task in TASKS))]
    training: Training
    model: Annotated[ModelSettings, OneOf(MODEL_TYPES)] = TransformerSettings()

    def __init__(self, **tables: Any) -> None:
        try:
            super().__init__(**tables)
        except ValidationError as problem:
            raise InputError(sentence(problem, Config)) from problem

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
        """Return the arguments as the only source: no variable of the environment changes a run."""
        del settings_cls
        return (init_settings,)

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> "Config":
        """Return the configuration that tables of plain values describe.

        Raises:
            InputError: A key is unknown or missing, or a value does not fit.
        """
        return cls(_build_sources=((InitSettingsSource(cls, dict(config_dict)),), {}))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return tables of plain values that `from_dict` reads back; None is left out, as TOML has none."""
        return self.model_dump(mode="json", exclude_none=True)

    def unset_keys(self) -> list[str]:
        """Return the dotted keys that are None, which `to_dict` leaves out."""
        tables = {table: getattr(self, table) for table in type(self).model_fields}
        return [
            f"{table}.{field.name}"
            for table, value in tables.items()
            for field in fields(value)
            if getattr(value, field.name) is None
        ]

    @model_validator(mode="before")
    @classmethod
    def _named_types(cls, tables: dict[str, Any]) -> dict[str, Any]:
        """Read a text in the place of a table as its type; a model without a type is a Transformer."""
        check_texts(tables)
        tables = {name: _as_table(name, value) if name in _TYPED else value for name, value in tables.items()}
        if isinstance(model := tables.get("model"), Mapping):
            tables["model"] = {"type": TransformerSettings.type, **model}
        return tables

    @model_validator(mode="after")
    def _sequence_ranks(self) -> "Config":
        """Refuse what no rank has: whole rows, or rows of two sequences."""
        if self.training.context_parallel_size == 1:
            return self
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
        return self


def task_of(config: Config, folder: Path) -> Task:
    """Return the task of a configuration with its data; `folder` is that of the run's tokenizers.

    Raises:
        InputError: The data cannot be read, or the model does not fit the task.
    """
    kind = next(task for task in TASKS if task.settings is type(config.task))
    return kind(config.task, config.training, config.model, folder)


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Return the configuration in a TOML file, with the keys that the command line replaces.

    Args:
        path: The file.
        overrides: Such as ["--training.max_steps", "128", "--learning-rate=3e-4"]; a key without a table is one of
            [training]; values are written as in TOML, or plain words; "none" is the default.

    Raises:
        InputError: The file cannot be read, a key is unknown or missing, or a value is of the wrong type.
    """
    file, command_line = _read(Path(expand_user(str(path)))), _tables(overrides)
    _make_way(file, command_line)
    return Config(_build_sources=((InitSettingsSource(Config, command_line), InitSettingsSource(Config, file)), {}))


def _read(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        return tomllib.loads(read_text(path, "utf-8-sig"))
    except OSError as problem:
        reason = problem.strerror or str(problem)
    except (ValueError, RecursionError) as problem:  # tomllib's error and UnicodeDecodeError are ValueErrors
        reason = " ".join(str(problem).split())
    yaml = ": YAML is read no more, write its keys as TOML" if path.suffix in (".yaml", ".yml") else ""
    raise InputError(f"cannot read the configuration {printable(path)}: {reason}{yaml}")


def _tables(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the tables that `--a.b value` and `--a.b=value` make."""
    tables: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not key:
            if (short := argument.removeprefix("-")) in _SHORT:
                raise InputError(f"there is no option {argument}: write {_SHORT[short]}")
            raise InputError(f"{argument!r} is no key: write --table.key value, such as --training.max_steps 300")
        if not equals:
            if not rest or rest[0].startswith("--"):
                name = key.replace("-", "_")
                unknown = None if name in _TRAINING else unknown_option(Config, name)
                raise InputError(unknown or f"`--{key}` has no value: write --{key} value")
            text = rest.pop(0)
        key = key.replace("-", "_")
        *outer, name = ["training", key] if key in _TRAINING else key.split(".")
        table = tables
        for part in outer:
            table[part] = inner = _as_table(part, table.get(part, {}))
            if not isinstance(inner, dict):
                raise InputError(f"`--{key}` names a key of `{part}`, which is {inner!r} and no table")
            table = inner
        # "none" is the default, which is None where that is possible; here it is a value.
        table[name] = None if text == "none" and name not in ("attention", "positions") else _plain(text)
    return tables


def _plain(text: str) -> Any:
    """Return a value as TOML writes it; a plain word is itself."""
    try:
        return tomllib.loads(f"it = {text}")["it"]
    except (ValueError, RecursionError):  # tomllib's error is a ValueError
        return {"True": True, "False": False}.get(text, text)


def _make_way(file: dict[str, Any], command_line: dict[str, Any], kinds: Sequence[type[Any]] = (Config,)) -> None:
    """Take out of a file's tables what the command line resets, and the keys of another type than it names.

    A key to reset that no table has stays in the command line, and is refused as any unknown one.
    """
    for name, value in list(command_line.items()):
        here = [kind.__pydantic_fields__[name] for kind in kinds if name in kind.__pydantic_fields__]
        if value is None:
            if here:
                del command_line[name]
            file.pop(name, None)
        elif isinstance(value, dict) and isinstance(table := _as_table(name, file.get(name, {})), dict):
            file[name] = table
            of_file = table.get("type", TransformerSettings.type)
            if "type" in value and of_file != value["type"]:
                table.clear()
            inner = [kind for field in here for kind in tables_of(field)]
            chosen = value.get("type") or (TransformerSettings.type if "type" in value else of_file)
            _make_way(table, value, [kind for kind in inner if getattr(kind, "type", chosen) == chosen] or inner)


def _as_table(name: str, value: Any) -> Any:
    """Return the table that a text stands for: a type, or that of a tokenizer."""
    word = "type" if name in _TYPED else "model_type" if name.endswith("tokenizer") else None
    return {word: value} if word and isinstance(value, str) else value
