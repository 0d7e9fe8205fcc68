"""Checkpoints: folders that are whole or not there, in safetensors and JSON.

Besides the weights they hold the optimizer's state and where the run is; the model's configuration and its tokenizers
lie once beside all of them, by which `regard.models` opens each. There is no state of generators, of the
schedule or of the data's order to save: each is a pure function of the seed and the step. `place.json` has the
checksum of each file and its own, and nothing is read of a checkpoint of which one does not hold.
"""

import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.files import checksum_of_file, checksum_of_json, read_text, write_folder
from regard.hub.model_files import checkpoint_steps
from regard.models.checkpoint_files import read_tensors
from regard.strict_json import is_version

__all__ = ["Checkpoints", "TrainerState", "mean_of"]

_MODEL, _OPTIMIZER, _PLACE = "model.safetensors", "optimizer.safetensors", "place.json"
_VERSION = 2
# Whatever reading files of the wrong contents may raise.
_BROKEN = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class TrainerState:
    """Where a run is: steps done, epochs done and batches done of the next, and all evaluations so far."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    scores: tuple[dict[str, float], ...] = field(default=())  # each with its step

    @property
    def epoch_of_step(self) -> int:
        """The epoch of the last step, whose last batch leads to the next epoch."""
        return self.epoch - (self.batch == 0)

    def scored(self, scores: dict[str, float]) -> "TrainerState":
        """The place with another evaluation, of this step."""
        return replace(self, scores=(*self.scores, {"step": self.step, **scores}))

    def best(self, metric: str, higher: bool) -> dict[str, float] | None:
        """The best evaluation, the first of equal ones."""
        if not self.scores:
            return None
        worst = -math.inf if higher else math.inf

        def of(one: dict[str, float]) -> float:
            return worst if math.isnan(one[metric]) else one[metric]

        return (max if higher else min)(self.scores, key=of)

    def since_best(self, metric: str, higher: bool) -> int:
        """How many evaluations came after the best one."""
        best = self.best(metric, higher)
        return 0 if best is None else sum(one["step"] > best["step"] for one in self.scores)


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: Where they lie; a folder in it for each step.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """The steps of all, in order."""
        return list(checkpoint_steps(self.folder))

    def at(self, step: int) -> Path:
        """The folder of a step."""
        return self.folder / f"step-{step:08d}"

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, place: TrainerState, *, writes: bool = True
    ) -> Path:
        """Write a checkpoint; of several processes all gather, and one `writes`.

        Raises:
            InputError: It cannot be written, the disk being full, for example; the others are as they were.
        """
        # Its import takes as long as that of all of regard: a wrong key should be answered before.
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
            get_optimizer_state_dict,
        )

        # The same names and shapes, sharded or not; offloaded, only the first process has them.
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights: dict[str, Any] = get_model_state_dict(model, options=whole)
        moments: Any = get_optimizer_state_dict(model, optimizer, options=whole).get("state", {})
        state = _flat(moments)
        target = self.at(place.step)
        if not writes:
            return target

        def write(folder: Path) -> None:
            from safetensors.torch import save_file

            save_file({name: one.contiguous() for name, one in weights.items()}, folder / _MODEL)
            save_file({name: one.contiguous() for name, one in state.items()}, folder / _OPTIMIZER)
            files = {name: checksum_of_file(folder / name) for name in (_MODEL, _OPTIMIZER)}
            about = {"version": _VERSION, "place": asdict(place), "files": files}
            (folder / _PLACE).write_text(json.dumps(about | {"crc": checksum_of_json(about)}), "utf-8")

        last = self.steps()
        way = f"the last good checkpoint is that of step {last[-1]}" if last else "there is no checkpoint yet"
        write_folder(target, write, f"{way}; make room and start the same command again")
        return target

    def load(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainerState:
        """Put a checkpoint into a model and its optimizer; give its place.

        Raises:
            InputError: It cannot be read, or is of another model.
        """
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_optimizer_state_dict,
            set_model_state_dict,
            set_optimizer_state_dict,
        )

        everywhere = StateDictOptions(full_state_dict=True)
        try:
            place = self._verified(step)
            weights: Any = dict(read_tensors(self.at(step) / _MODEL))
            state = _nested(dict(read_tensors(self.at(step) / _OPTIMIZER)))
        except _BROKEN as problem:
            raise self._unreadable(step, problem) from problem
        try:
            set_model_state_dict(model, weights, options=everywhere)
            whole: Any = get_optimizer_state_dict(model, optimizer, options=everywhere)
            _compare(state, whole["state"])
            whole["state"] = state
            set_optimizer_state_dict(model, optimizer, whole, options=everywhere)
        except _BROKEN as problem:
            raise InputError(
                f"the checkpoint {self.at(step)} is whole, and is not of this model and optimizer: {_reason(problem)}; "
                "bring the configuration and the data back that the run was started with, or name another folder as "
                "`output_dir`"
            ) from problem
        return place

    def weights(self, step: int) -> dict[str, Tensor]:
        """Read the weights of a checkpoint.

        Raises:
            InputError: It cannot be read, or a checksum does not hold.
        """
        try:
            self._verified(step)
            return dict(read_tensors(self.at(step) / _MODEL))
        except _BROKEN as problem:
            raise self._unreadable(step, problem) from problem

    def _verified(self, step: int) -> TrainerState:
        """The place of a checkpoint, each of whose files is what was written.

        Raises:
            OSError, ValueError: A file is missing, or another one.
        """
        folder = self.at(step)
        try:
            about = json.loads(read_text(folder / _PLACE))
        except ValueError as problem:
            raise ValueError(f"{_PLACE} is no JSON ({problem})") from problem
        if not isinstance(about, dict) or not is_version(about.get("version"), _VERSION):
            raise ValueError(f"{_PLACE} is not of version {_VERSION}")
        crc, files = about.pop("crc", None), about.get("files")
        if crc != checksum_of_json(about) or not isinstance(files, dict):
            raise ValueError(f"the checksum of {_PLACE} does not hold")
        place = _place_of(about.get("place"), step)
        for name in (_MODEL, _OPTIMIZER):
            if checksum_of_file(folder / name) != files.get(name):
                raise ValueError(f"the checksum of {name} does not hold")
        return place

    def _unreadable(self, step: int, problem: Exception) -> InputError:
        steps = self.steps()
        before = [one for one in steps if one < step]
        which = "that folder and those of later steps" if steps[-1:] > [step] else "that folder"
        way = f"continues from step {before[-1]}" if before else "begins anew, as there is none before"
        return InputError(
            f"cannot read the checkpoint {self.at(step)}: {_reason(problem)}; remove {which}, and the same command "
            f"{way}"
        )

    def prune(self, kept: Sequence[int]) -> None:
        """Remove all but these, and what a killed process has left."""
        for left in self.folder.glob(".*.part"):  # of this run, which nobody else may write to
            shutil.rmtree(left, ignore_errors=True)
        for one in self.steps():
            if one not in kept:
                doomed = self.folder / f".{self.at(one).name}.part"
                os.replace(self.at(one), doomed)  # out of sight first: half a folder is never taken for a whole one
                shutil.rmtree(doomed, ignore_errors=True)


def _reason(problem: Exception) -> str:
    return " ".join(str(problem).split())[:300]


def _place_of(found: Any, step: int) -> TrainerState:
    counts = [found[name] for name in ("step", "epoch", "batch")]
    if not all(type(one) is int and one >= 0 for one in counts) or counts[0] != step:
        raise ValueError(f"{_PLACE} must be of step {step}, got step, epoch and batch {counts}")
    for one in found["scores"]:
        if "step" not in one or not all(type(value) in (int, float) for value in one.values()):
            raise ValueError(f"{_PLACE} must have numbers and a step in each evaluation, got {one}")
    return TrainerState(step, counts[1], counts[2], tuple(found["scores"]))


def _compare(state: dict[str, dict[str, Tensor]], expected: dict[str, dict[str, Tensor]]) -> None:
    """Refuse moments that are not those of the optimizer; a parameter that never had a gradient has none."""
    for name, moments in state.items():
        shapes = {key: tuple(one.shape) for key, one in moments.items()}
        known = {key: tuple(torch.as_tensor(one).shape) for key, one in expected.get(name, {}).items()}
        if shapes != known:
            raise ValueError(f"{_OPTIMIZER} has the moments {shapes} of {name}, and the optimizer {known}")


def mean_of(all_weights: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several checkpoints, number by number (in float64); whole numbers are the last one's."""
    last = all_weights[-1]
    return {
        name: torch.stack([one[name].double() for one in all_weights]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in last.items()
    }


def _flat(state: dict[str, dict[str, Any]]) -> dict[str, Tensor]:
    """`exp_avg` of `a.weight` as `exp_avg:a.weight`."""
    return {f"{key}:{name}": torch.as_tensor(one) for name, values in state.items() for key, one in values.items()}


def _nested(flat: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, one in flat.items():
        key, _, parameter = name.partition(":")
        found.setdefault(parameter, {})[key] = one
    return found
