"""Saving and loading: our own folders, configurations as JSON, and Hugging Face checkpoints of known families."""

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from regard.errors import InputError, MissingExtraError
from regard.files import checksum_of_file, checksum_of_json, replace_files
from regard.models.checkpoint_files import Checkpoint, change, fill
from regard.models.standard_names import FROM_PRETRAINED, SAVE_PRETRAINED
from regard.nn.checks import refuse_unknown

__all__ = ["PretrainedMixin", "from_json", "to_json", "write_config"]

_OURS = "regard"  # the key of config.json that marks a folder of ours
_FORMAT, _VERSION = "format_version", 2  # 1 had no such key, and the names of before transformers' were taken
_SUMS = "crc"  # the key of its checksums; a folder without them is loaded unchecked
_WEIGHTS = "model.safetensors"
_LATER = {"generation_config"}  # what configurations of regard 0.2 lack
# Files that training saves beside a model, and without which its numbers mean other words.
_BESIDE = ("source.json", "target.json", "tokenizer.json", "translation.json")


class PretrainedMixin(nn.Module):
    """A model that `save_pretrained` writes, `push_to_hub` sends and `from_pretrained` reads."""

    config: Any
    config_kinds: ClassVar[tuple[type[Any], ...]]  # what its configuration is, and what may stand in it

    @refuse_unknown("save_pretrained", SAVE_PRETRAINED)
    def save_pretrained(self, save_directory: str | Path, **asked: Any) -> str | None:
        """Write config.json and model.safetensors to a folder: all files or, if something fails, none.

        Args:
            save_directory: The folder; it is made if it is missing.
            asked: `push_to_hub=True` and `repo_id=`, as in huggingface_hub, whose own calls name a `config` and a card
                too: the configuration is always the model's, and no card is written.

        Raises:
            InputError: The folder cannot be written.
            MissingExtraError: huggingface_hub or safetensors is not installed.
        """
        try:
            from safetensors.torch import save_file
        except ImportError as missing:
            raise MissingExtraError("safetensors", "models") from missing

        def write(folder: Path) -> None:
            save_file({name: one.contiguous() for name, one in self.state_dict().items()}, folder / _WEIGHTS)
            write_config(self.config, folder)

        for unused in ("config", "model_card_kwargs"):
            asked.pop(unused, None)
        replace_files(Path(save_directory), write, stale=(f"{_WEIGHTS}.index.json",))
        if asked.pop("push_to_hub", False):
            return self.push_to_hub(asked.pop("repo_id", Path(save_directory).name), **asked)
        if asked:
            raise InputError(f"`save_pretrained` has no argument {', '.join(map(repr, asked))}")
        return None

    def push_to_hub(self, repo_id: str, **asked: Any) -> str:
        """Send config.json and model.safetensors to a repository of the Hugging Face hub, made if it is missing.

        Args:
            repo_id: Its id, such as someone/model.
            asked: commit_message, private, token, branch, create_pr and the patterns of files, as
                `PyTorchModelHubMixin.push_to_hub` of huggingface_hub takes them.

        Raises:
            MissingExtraError: huggingface_hub or safetensors is not installed.
        """
        try:  # here, because its import takes half a second, and few models are sent
            from huggingface_hub import PyTorchModelHubMixin
        except ImportError as missing:
            raise MissingExtraError("huggingface_hub", "models") from missing
        sent: str = PyTorchModelHubMixin.push_to_hub(self, repo_id, **asked)  # type: ignore[arg-type]
        return sent

    @classmethod
    @refuse_unknown("from_pretrained", FROM_PRETRAINED)
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        **changes: Any,
    ) -> Self:
        """Load a model in eval mode: one that `save_pretrained` wrote, or a checkpoint of a family that is read.

        Nothing that comes with a checkpoint is executed or unpickled.

        Args:
            name: A folder, an output of `regard train` (a run, its model, or a checkpoint), an id of the Hugging Face
                hub, or one of the bundled models.
            dtype: The type of its numbers; by default the `dtype` of a checkpoint's config.json, else that of most of
                its numbers.
            revision, token, cache_dir, local_files_only, force_download: As in huggingface_hub.
            changes: Values of the configuration that replace the checkpoint's, such as
                output_head=output_heads.SequenceClassification(3). A head that is to be trained takes the weights that
                fit it and begins at random for the rest; a language model's is the checkpoint's own.

        Raises:
            InputError: There is no such model, its family or configuration is not read, weights are missing, or a file
                that `save_pretrained` wrote was changed.
            MissingExtraError: safetensors or huggingface_hub is not installed.
        """
        asked = {"revision": revision, "token": token, "cache_dir": cache_dir}
        asked |= {"local_files_only": local_files_only, "force_download": force_download}
        checkpoint = Checkpoint(name, **asked)
        raw = checkpoint.config()
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise InputError(f"`dtype` must be a type of torch, such as torch.bfloat16, got {dtype!r}")
        checkpoint.dtype = dtype
        if _OURS in raw:
            config, state = cls._ours(raw, checkpoint)
        else:
            config, state = cls._theirs(raw, checkpoint, changes.get("output_head"))
        filled: Self = fill(cls, change(config, changes), config, state, checkpoint.name)
        return filled if dtype is None else filled.to(dtype)

    @classmethod
    def pretrained_config(cls, name: str | Path) -> Any:
        """Return the configuration of a model that `from_pretrained` loads, without reading its weights.

        Raises:
            InputError: There is no such model, or its family or configuration is not read.
            MissingExtraError: huggingface_hub is not installed.
        """
        checkpoint = Checkpoint(name)
        raw = checkpoint.config()
        if _OURS not in raw:
            return cls._their_config(raw, checkpoint)
        _check_format(raw, checkpoint)
        return cls._our_config(raw, checkpoint)

    @classmethod
    def _ours(cls, raw: dict[str, Any], checkpoint: Checkpoint) -> tuple[Any, dict[str, Tensor]]:
        _check_format(raw, checkpoint)
        _verify(raw, checkpoint)
        return cls._our_config(raw, checkpoint), dict(checkpoint.tensors())

    @classmethod
    def _our_config(cls, raw: dict[str, Any], checkpoint: Checkpoint) -> Any:
        config = from_json(raw[_OURS], cls.config_kinds)
        if not isinstance(config, cls.config_kinds[0]):
            kind = type(config).__name__
            raise InputError(f"{checkpoint.name!r} holds a {kind}: {cls.__name__} reads {cls.config_kinds[0].__name__}")
        return config

    @classmethod
    def _their_config(cls, raw: dict[str, Any], checkpoint: Checkpoint) -> Any:
        return cls._theirs(raw, checkpoint, None)[0]  # a model with families of checkpoints reads no weights for it

    @classmethod
    def _theirs(
        cls,
        raw: dict[str, Any],  # noqa: ARG003
        checkpoint: Checkpoint,
        head: Any,  # noqa: ARG003
    ) -> tuple[Any, dict[str, Tensor]]:
        raise InputError(f"{checkpoint.name!r} was not written by regard: {cls.__name__} reads its own folders alone")


def write_config(config: Any, folder: Path) -> None:
    """Write config.json, with the checksums of the weights, the tokenizers and translation.json that the folder has.

    From then on `from_pretrained` refuses the folder where one of these files was changed.
    """
    content = to_json(config)
    sums = {_OURS: checksum_of_json(content)}
    sums |= {name: checksum_of_file(folder / name) for name in (_WEIGHTS, *_BESIDE) if (folder / name).is_file()}
    text = json.dumps({_FORMAT: _VERSION, _OURS: content, _SUMS: sums}, indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", "utf-8")


def _check_format(raw: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse a folder that another version of regard wrote."""
    if type(version := raw.get(_FORMAT, 1)) is not int or version != _VERSION:
        way = "train or save the model again" if version in (1, 2) else "update regard"
        raise InputError(
            f"the config.json of {checkpoint.name!r} is of format version {version!r}, and this regard loads "
            f"version {_VERSION}: {way}"
        )


def _verify(raw: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse files that are not what `save_pretrained` and training saved."""
    sums = raw.get(_SUMS)
    if sums is None:
        return
    if isinstance(sums, dict) and (of_checkpoint := checkpoint.weights_checksum()) is not None:
        sums = sums | {_WEIGHTS: of_checkpoint}
    listed = [name for name in _BESIDE if isinstance(sums, dict) and name in sums]
    paths = {_WEIGHTS: checkpoint.file(_WEIGHTS)} | {name: checkpoint.file(name, optional=True) for name in listed}
    found = {_OURS: checksum_of_json(raw[_OURS])}
    found |= {name: checksum_of_file(path) for name, path in paths.items() if path is not None}
    for name, one in found.items():
        if not isinstance(sums, dict) or sums.get(name) != one:
            path = checkpoint.file("config.json") if name == _OURS else paths[name]
            way = f'save the model again, or remove "{_SUMS}" from config.json if the change is meant'
            if checkpoint.step_folder is not None:
                way = "open another checkpoint"
                if name != _WEIGHTS:
                    way = "remove it, and the same `regard train` command saves it again"
            raise InputError(f"cannot read {path}: its checksum does not hold, so it was damaged or changed; {way}")


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
    lacking = sorted(known - set(found) - _LATER) if kind is kinds[0] else []
    if lacking:  # `to_json` gives all; a default would be another model
        raise InputError(f"the configuration's {kind.__name__} has no {lacking[0]!r}, which every saved one has")
    try:
        return kind(**{name: from_json(one, kinds) for name, one in found.items() if name != "kind"})
    except TypeError as problem:
        raise InputError(f"the configuration's {kind.__name__} cannot be read: {problem}") from problem
