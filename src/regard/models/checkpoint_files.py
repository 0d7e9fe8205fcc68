"""The files of a model read as JSON and safetensors, and models filled with them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.errors import InputError, MissingExtraError
from regard.hub.file_faults import check_model, fault_of, missing_shards
from regard.hub.model_files import ModelFiles
from regard.models.output_heads import OutputHead
from regard.models.standard_names import CONFIG
from regard.nn.value_module import ComputedBuffers
from regard.strict_json import parse_json

__all__ = ["GENERATION", "NUMBERS", "PADDING", "Checkpoint", "change", "fill", "read_tensors"]

_CONFIG, _GENERATION = "config.json", "generation_config.json"
PADDING = "regard.padding"  # config.json's own pad_token_id, from which RoBERTa counts positions
GENERATION = "regard.generation"  # generation_config.json or, as in transformers, an old config.json in its place
# The keys of generation_config.json that are special tokens of a model, whose config.json may have them too.
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_RULES = ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens")  # only from it, if it is there
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
# The types of numbers that modules compute with, by the names in safetensors; others are of quantized weights.
_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
NUMBERS = frozenset(_TYPES.values())
_PLACE = "place.json"  # of a checkpoint of a run: where training was, and the checksums of the files


class Checkpoint(ModelFiles):
    """The configuration and the tensors of a model, by its name.

    Raises:
        InputError: The model does not exist, or a file is missing, truncated or of another format.
        MissingExtraError: safetensors or the hub is needed, and the extra is not installed.
    """

    dtype: torch.dtype | None = None  # of all tensors; by default what config.json says, else that of most numbers

    def config(self) -> dict[str, Any]:
        """Return config.json, with the tokens of generation_config.json and, under GENERATION, all of it."""
        if self.folder is not None and self.step_folder is None:
            check_model(self.folder)
        raw = self._json(_CONFIG)
        if raw is None:
            where = self.name if self.folder is None else str(self.folder)
            raise InputError(f"the checkpoint {where!r} has no {_CONFIG}: name a folder or an id with a model in it")
        said = self._json(_GENERATION)
        written = {}
        if said is not None:
            written = {key: said[key] for key in _TOKENS if said.get(key) is not None}
            written |= {key: said.get(key) for key in _RULES}
        return raw | written | {PADDING: raw.get("pad_token_id"), GENERATION: raw if said is None else said}

    @property
    def is_saved_by_regard(self) -> bool:
        """Whether config.json is of a model that regard saved."""
        return "regard" in (self._json(_CONFIG) or {})

    def settings(self, name: str) -> dict[str, Any]:
        """Return an optional file of settings; nothing where the model has none."""
        return self._json(name) or {}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all tensors, one at a time, from one file or from the shards of an index."""
        names = self._weight_files()
        paths = {name: self.file(name) for name in names}
        if lacking := [name for name, path in paths.items() if path is None]:
            if names != [_WEIGHTS]:
                raise InputError(f"the checkpoint {self.name!r} {missing_shards(lacking, len(names))}")
            raise InputError(
                f"the checkpoint {self.name!r} has no {_WEIGHTS}: regard reads safetensors alone, never pickles; "
                "transformers converts with save_pretrained"
            )
        files = [path for path in paths.values() if path is not None]
        dtype = self.dtype or self._said_dtype() or _most_common(files)
        for path in files:
            for key, one in read_tensors(path):
                yield key, one.to(dtype) if one.dtype in NUMBERS else one

    def _said_dtype(self) -> torch.dtype | None:
        """Return the type of numbers that config.json names, in which transformers loads the model."""
        raw = self._json(_CONFIG) or {}
        said = raw.get("dtype") or raw.get("torch_dtype")  # the name before transformers 5
        found = getattr(torch, said.removeprefix("torch."), None) if isinstance(said, str) else None
        return found if found in NUMBERS else None

    def _weight_files(self) -> list[str]:
        """Return the single weights file or, if there is none, the shards of an index."""
        if self.file(_WEIGHTS) is not None:
            return [_WEIGHTS]
        index = self._json(_INDEX)
        shards = (index or {}).get("weight_map", {})
        if not isinstance(shards, dict) or not all(isinstance(one, str) for one in shards.values()):
            raise InputError(f"the checkpoint {self.name!r} has an {_INDEX} whose weight_map names no files")
        return sorted(set(shards.values())) or [_WEIGHTS]

    def weights_checksum(self) -> int | None:
        """Return the checksum of the weights that training saved with a checkpoint, None of other models."""
        if self.step_folder is None:
            return None
        saved = (self._json(_PLACE) or {}).get("files")
        checksum = saved.get(_WEIGHTS) if isinstance(saved, dict) else None
        return checksum if isinstance(checksum, int) else -1  # which no file has

    def _json(self, name: str) -> dict[str, Any] | None:
        path = self.file(name)
        if path is None:
            return None
        try:
            found = parse_json(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as problem:
            reason = fault_of(path) or " ".join(str(problem).split())
            raise InputError(f"cannot read {path}: {reason}") from problem
        if not isinstance(found, dict):
            raise InputError(f"cannot read {path}: it must be a JSON object, got a {type(found).__name__}")
        return found


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a safetensors file, one at a time.

    Raises:
        InputError: The file is missing, truncated or of another format.
        MissingExtraError: safetensors is not installed.
    """
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - it is no dict
            yield name, file.get_tensor(name)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as missing:
        raise MissingExtraError("safetensors", "models") from missing
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as problem:
        reason = fault_of(path) or " ".join(str(problem).split())
        raise InputError(f"cannot read {path}: {reason}") from problem


def _most_common(paths: list[Path]) -> torch.dtype | None:
    """Return the type of most numbers in safetensors files, None where there are none."""
    counts = dict.fromkeys(NUMBERS, 0)
    for path in paths:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                part = file.get_slice(name)
                if (dtype := _TYPES.get(part.get_dtype())) is not None:
                    counts[dtype] += math.prod(part.get_shape())
    most = max(counts, key=lambda one: counts[one])
    return most if counts[most] else None


class _NothingDrawn(TorchFunctionMode):
    """Leaves out what torch.nn.init would draw: on the meta device that imports PyTorch's compiler, for a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def change(config: Any, changes: dict[str, Any]) -> Any:
    """A configuration with other values; a head of the checkpoint's own kind is the checkpoint's.

    Raises:
        InputError: It has no such value, or the weights that are there are another head's.
    """
    known = {field.name for field in fields(config)}
    if unknown := sorted(set(changes) - known):
        meant = f"{CONFIG[unknown[0]]} is meant" if unknown[0] in CONFIG else f"it has {', '.join(sorted(known))}"
        raise InputError(f"{type(config).__name__} has no {unknown[0]!r}: {meant}")
    head, stored = changes.get("output_head"), getattr(config, "output_head", None)
    kind: type[Any] = type(stored)
    if isinstance(head, OutputHead) and not head.fresh and isinstance(head, kind):
        if head not in (kind(), stored):
            raise InputError(
                f"the checkpoint's output head is {stored}, which has its weights, got {head}: leave `output_head` out"
            )
        changes = changes | {"output_head": stored}
    return replace(config, **changes)


def fill(cls: type[Any], config: Any, stored: Any, state: dict[str, Tensor], name: str) -> Any:
    """Give a model of this configuration the tensors of a checkpoint whose own configuration was `stored`.

    A head that is to be trained takes what fits it, and draws the rest.

    Raises:
        InputError: Tensors are missing, left over, or of another shape.
    """
    layers = [getattr(config, which, 0) for which in ("layers", "encoder_layers", "decoder_layers")]
    if sum(layers) > len(state):  # before so many are made
        raise InputError(f"the checkpoint {name!r} has {len(state)} weights, too few for {sum(layers):,} layers")
    try:
        with torch.device("meta"), _NothingDrawn():
            model = cls(config)
    except InputError:
        raise
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise InputError(f"the configuration of {name!r} makes no model: {reason}") from problem
    wanted: dict[str, Tensor] = dict(model.state_dict())
    head, before = getattr(config, "output_head", None), getattr(stored, "output_head", None)
    if head is None or head != before:
        state = {
            key: one
            for key, one in state.items()
            if not key.startswith("output_head.") or _fits(key, one, wanted, head, before)
        }
    fresh = head != before and getattr(head, "fresh", False)
    _check(wanted, state, fresh, name)
    if any(key not in state for key in wanted):
        like = next(iter(state.values()))
        drawn = cls(config).state_dict()
        state = state | {key: drawn[key].to(like.dtype) for key in wanted if key not in state}
    model.load_state_dict({key: state[key] for key in wanted}, assign=True)
    for module in model.modules():
        if isinstance(module, ComputedBuffers):
            module.make_buffers()
    return model.eval()


def _fits(key: str, one: Tensor, wanted: dict[str, Tensor], head: Any, before: Any) -> bool:
    """Whether a tensor of the checkpoint's head serves another: one of its kind, or BERT's pooler."""
    kin = before is None or type(before) is type(head) or key.startswith("output_head.tanh_layer.")
    return kin and key in wanted and wanted[key].shape == one.shape


def _check(wanted: dict[str, Tensor], state: dict[str, Tensor], fresh: bool, name: str) -> None:
    lacking = sorted(key for key in wanted if key not in state and not (fresh and key.startswith("output_head.")))
    spare = sorted(key for key in state if key not in wanted)
    if lacking:
        what = f"lacks {len(lacking)} weights, {lacking[0]} first"
    elif spare:
        what = f"has weights beyond it, {spare[0]} first"
    else:
        what = ""
    if what:
        raise InputError(f"the checkpoint {name!r} does not fill its configuration: it {what}")
    if wrong := sorted(key for key, one in state.items() if one.shape != wanted[key].shape):
        shapes = tuple(state[wrong[0]].shape), tuple(wanted[wrong[0]].shape)
        raise InputError(
            f"the checkpoint {name!r} has {wrong[0]} of shape {shapes[0]}, its configuration says {shapes[1]}"
        )
    if whole := sorted(key for key, one in state.items() if one.dtype not in NUMBERS):
        raise InputError(
            f"the checkpoint {name!r} has {whole[0]} as {state[whole[0]].dtype}: load one that is not quantized"
        )
