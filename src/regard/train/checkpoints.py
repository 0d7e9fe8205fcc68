"""Checkpoints: folders that are whole or not there, in safetensors and JSON.

Besides the weights they hold the optimizer's state and where the run is. There is no state of generators, of the
schedule or of the data's order to save: each is a pure function of the seed and the step.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from regard.errors import InputError
from regard.models.files import read_tensors

__all__ = ["Checkpoints", "Place", "mean_of", "write_folder"]

_MODEL, _OPTIMIZER, _PLACE = "model.safetensors", "optimizer.safetensors", "place.json"
# The same names and shapes, sharded or not; offloaded, they are given to the first process alone.
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_EVERYWHERE = StateDictOptions(full_state_dict=True)


@dataclass(frozen=True)
class Place:
    """Where a run is: steps done, epochs done and batches done of the next, and all evaluations so far."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    scores: tuple[dict[str, float], ...] = field(default=())  # each with its step

    def scored(self, scores: dict[str, float]) -> "Place":
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
        """The steps of those that are whole, in order."""
        names = [one.name.removeprefix("step-") for one in self.folder.glob("step-*") if (one / _PLACE).is_file()]
        return sorted(int(one) for one in names if one.isdecimal())  # someone's "step-00000100 copy" is none

    def at(self, step: int) -> Path:
        """The folder of a step."""
        return self.folder / f"step-{step:08d}"

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, place: Place, *, writes: bool = True) -> Path:
        """Write a checkpoint; of several processes all gather, and one `writes`.

        Raises:
            InputError: It cannot be written, the disk being full, for example; the others are as they were.
        """
        weights: dict[str, Any] = get_model_state_dict(model, options=_WHOLE)
        moments: Any = get_optimizer_state_dict(model, optimizer, options=_WHOLE).get("state", {})  # the first has it
        state = _flat(moments)
        target = self.at(place.step)
        if not writes:
            return target

        def write(folder: Path) -> None:
            from safetensors.torch import save_file

            save_file({name: one.contiguous() for name, one in weights.items()}, folder / _MODEL)
            save_file({name: one.contiguous() for name, one in state.items()}, folder / _OPTIMIZER)
            (folder / _PLACE).write_text(json.dumps(asdict(place)), "utf-8")

        last = self.steps()
        way = f"the last good checkpoint is that of step {last[-1]}" if last else "there is no checkpoint yet"
        write_folder(target, write, f"{way}; make room and start the same command again")
        return target

    def load(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Place:
        """Put a checkpoint into a model and its optimizer; give its place.

        Raises:
            InputError: It cannot be read, or is of another model.
        """
        folder = self.at(step)
        try:
            found = json.loads((folder / _PLACE).read_text("utf-8"))
            place = Place(**(found | {"scores": tuple(found["scores"])}))
            weights: Any = dict(read_tensors(folder / _MODEL))
            state = dict(read_tensors(folder / _OPTIMIZER))
            set_model_state_dict(model, weights, options=_EVERYWHERE)
            whole: Any = get_optimizer_state_dict(model, optimizer, options=_EVERYWHERE)
            whole["state"] = _nested(state)
            set_optimizer_state_dict(model, optimizer, whole, options=_EVERYWHERE)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as problem:
            reason = " ".join(str(problem).split())[:200]
            raise InputError(
                f"cannot read the checkpoint {folder}: {reason}; remove that folder, and the run goes on from the one "
                "before"
            ) from problem
        return place

    def weights(self, step: int) -> dict[str, Tensor]:
        """The weights of a checkpoint."""
        return dict(read_tensors(self.at(step) / _MODEL))

    def place(self, step: int) -> Place:
        """Where the run was."""
        found = json.loads((self.at(step) / _PLACE).read_text("utf-8"))
        return Place(**(found | {"scores": tuple(found["scores"])}))

    def prune(self, kept: Sequence[int]) -> None:
        """Remove all but these, and what writing has left behind when it was killed."""
        for one in self.steps():
            if one not in kept:
                doomed = self.folder / f".old-{one}"  # first out of sight: half a folder is never taken for a whole one
                os.replace(self.at(one), doomed)
        for pattern in (".old-*", ".part-*"):
            for left in self.folder.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)


def write_folder(target: Path, write: Any, way: str = "") -> None:
    """Let `write` fill a folder that appears under its name when it is whole; what stood there goes.

    Raises:
        InputError: It cannot be written; nothing has changed. `way` says the way out.
    """
    part = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=".part-"))
        part.chmod(0o755)
        write(part)
        for one in part.iterdir():
            _flush(one)
        old = Path(tempfile.mkdtemp(dir=target.parent, prefix=".old-")) if target.exists() else None
        if old is not None:
            os.replace(target, old)
        os.replace(part, target)  # at once: killed before it, the folder is under neither name
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except Exception as problem:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
        if not isinstance(problem, OSError) and type(problem).__name__ != "SafetensorError":
            raise
        reason = getattr(problem, "strerror", None) or " ".join(str(problem).split())
        raise InputError(f"cannot write {target}: {reason}" + (f"; {way}" if way else "")) from problem


def mean_of(all_weights: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several checkpoints, number by number (in float64); whole numbers are the last one's."""
    last = all_weights[-1]
    return {
        name: torch.stack([one[name].double() for one in all_weights]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in last.items()
    }


def _flush(path: Path) -> None:
    """Make sure that a file is on the disk before its folder gets its name."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _flat(state: dict[str, dict[str, Any]]) -> dict[str, Tensor]:
    """`exp_avg` of `a.weight` as `exp_avg:a.weight`."""
    return {f"{key}:{name}": torch.as_tensor(one) for name, values in state.items() for key, one in values.items()}


def _nested(flat: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, one in flat.items():
        key, _, parameter = name.partition(":")
        found.setdefault(parameter, {})[key] = one
    return found
