"""The configuration of a run, read from a TOML or YAML file and from `--table.key value`."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from regard.errors import InputError
from regard.files import printable, read_text
from regard.train.key_names import FORMAT, OLD_TYPES, RENAMED
from regard.train.loss_and_optimizer import Schedule, SchedulerKwargs, SchedulerType
from regard.train.model_types import MODEL_TYPES, ModelSettings, TransformerSettings
from regard.train.settings import (
    Count,
    Fraction,
    check_texts,
    from_table,
    nested,
    settings,
    to_table,
    unknown_key,
    yaml_table,
)
from regard.train.tasks import TASKS
from regard.train.tasks.base import Task, TaskSettings

__all__ = ["Config", "Training", "read_config", "task_of"]


@settings
class Training:
    """How a model is trained; names and meanings are those of `transformers.TrainingArguments` where it has them.

    Args:
        output_dir: Folder of the run: checkpoints, log, figure, and the final model.
        max_steps: Number of optimizer steps.
        num_train_epochs: Number of epochs, which may end within one; either this or `max_steps`.
        learning_rate: Peak learning rate of AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101).
        lr_scheduler_type: How the learning rate changes over the steps, see `schedules.Schedule`.
        warmup_steps: Steps of a linear rise from 0; below 1 a fraction of all steps.
        lr_scheduler_kwargs: Options of the schedule.
        weight_decay: AdamW's, for matrices only: neither biases nor norms decay.
        adam_beta1, adam_beta2, adam_epsilon: AdamW's.
        max_grad_norm: Norm that the gradient is clipped to; 0 for no clipping.
        label_smoothing: Fraction of the target that is spread over all classes, as in `torch.nn.CrossEntropyLoss`.
        max_tokens_per_batch: Tokens of a batch, padding included, for each process and accumulation step.
        gradient_accumulation_steps: Batches whose gradients are added before an optimizer step.
        mixed_precision: "bf16" or "fp16" for autocast, as in accelerate; weights stay in float32.
        torch_compile: Whether the model is compiled by torch.compile.
        eval_steps: Steps between evaluations, each of which saves a checkpoint; None for one after each epoch.
        save_steps: Steps between further checkpoints; None for no further ones.
        save_total_limit: Number of checkpoints that are kept; the best and the last always are.
        num_averaged_checkpoints: The final model is the mean of this many of the last evaluated checkpoints; 1 for the
            best one.
        early_stopping_patience: Evaluations without improvement after which training ends; None for no such end.
        metric_for_best_model: Name of the score that measures improvement, with or without "eval_"; None for the loss.
        context_parallel_size: Processes that share the tokens of each row (docs/sharded.md).
        num_threads: Threads of the processor; None for PyTorch's choice. Sums depend on it in their last bits.
        seed: Seed of the weights, the order of the data, and dropout.
    """

    output_dir: str
    max_steps: Annotated[int, Field(ge=1, le=10**12)] | None = None
    num_train_epochs: Annotated[float, Field(gt=0, le=10_000)] | None = None
    learning_rate: Annotated[float, Field(gt=0, lt=10)] = 1e-3
    lr_scheduler_type: SchedulerType = "inverse_sqrt"
    warmup_steps: float = 1000
    lr_scheduler_kwargs: Annotated[SchedulerKwargs, nested(SchedulerKwargs)] = field(default_factory=SchedulerKwargs)
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    adam_beta1: Fraction = 0.9
    adam_beta2: Fraction = 0.98
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-9
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    label_smoothing: Fraction = 0.0
    max_tokens_per_batch: Annotated[int, Field(ge=1, le=2**31)] = 4096
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=10_000)] = 1
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    torch_compile: bool = False
    eval_steps: Count | None = None
    save_steps: Count | None = None
    save_total_limit: Count = 3
    num_averaged_checkpoints: Count = 1
    early_stopping_patience: Count | None = None
    metric_for_best_model: str | None = None
    context_parallel_size: Annotated[int, Field(ge=1, le=4096)] = 1
    num_threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    def __post_init__(self) -> None:
        if not self.output_dir.strip():
            raise InputError("`output_dir` must name the folder of the run, got an empty text")
        if (self.max_steps is None) == (self.num_train_epochs is None):
            raise InputError("training ends after `max_steps` or after `num_train_epochs`: give one of them")
        _ = self.schedule  # which checks its arguments
        if self.num_averaged_checkpoints > self.save_total_limit:
            raise InputError(
                f"`num_averaged_checkpoints` is {self.num_averaged_checkpoints}, more than `save_total_limit`, "
                f"{self.save_total_limit}: raise `save_total_limit`"
            )

    @property
    def schedule(self) -> Schedule:
        """The learning-rate schedule."""
        return Schedule(self.lr_scheduler_type, self.warmup_steps, self.lr_scheduler_kwargs)


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
            from regard.train.ranks import check_sequence_ranks  # torch.distributed, which one process never imports

            check_sequence_ranks(self)

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

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return tables of plain values that `from_dict` reads back."""
        return {one.name: to_table(getattr(self, one.name)) for one in fields(self)}


def task_of(config: Config, vocabulary: Path) -> Task:
    """Return the task of a configuration with its data; `vocabulary` is the folder of the tokenizers of the run.

    Raises:
        InputError: The data cannot be read, or the model does not fit the task.
    """
    return next(one for one in TASKS if one.settings is type(config.task))(config, vocabulary)


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
