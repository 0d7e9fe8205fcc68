"""The folder of a run: its configuration, checkpoints, log, and final model.

run.json         format version, configuration, package versions, git revision, hashes of the data
log.jsonl        one event a line
checkpoints/     step-00000100/ …: weights, optimizer, place; beside them the model's config.json and tokenizers, with
                 the tokenizer_config.json, chat template and generation_config.json of a checkpoint
model/           the final model, with the same files
"""

import contextlib
import errno
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from regard.data.open_tokenizer import TOKENIZER_FILES
from regard.errors import InputError
from regard.files import read_text, replace_files, write_atomically, write_folder
from regard.models.pretrained_mixin import PretrainedMixin, write_config
from regard.strict_json import is_version
from regard.train.checkpoints import Checkpoints, TrainerState, mean_of
from regard.train.config import Config
from regard.train.optional_parts import optional_part
from regard.train.settings import changed_keys
from regard.train.tasks.base import Task
from regard.train.tasks.data_files import GUARDED_FILES, guarded, read_otherwise, recorded_by_0_2

__all__ = ["Folder", "hold_folder", "last_checkpoint_named"]

# What may change when a run resumes: nothing of it changes a step that was taken.
_FREE = {"task.test_file", "task.num_completions_to_print", "task.max_predict_samples"} | {
    f"training.{name}"
    for name in (
        "output_dir",
        "max_steps",
        "num_train_epochs",
        "eval_steps",
        "save_steps",
        "early_stopping_patience",
        "metric_for_best_model",
        "save_total_limit",
        "num_averaged_checkpoints",
        "num_threads",
        "context_parallel_size",
    )
}
_MOVABLE = {f"task.{key}" for key in GUARDED_FILES}  # whose content is compared by its hash
_FORMAT = 2  # of run.json
_TOKENIZERS = ("source.json", "target.json", "tokenizer.json")
_BESIDE_CHECKPOINTS = ("config.json", "labels.txt", "translation.json", *_TOKENIZERS, *TOKENIZER_FILES)
_WAY = "move it, or name another folder as `output_dir`"
_PACKAGES = ("torch", "numpy", "accelerate", "tokenizers", "safetensors", "transformers", "sacrebleu")


class Folder:
    """The folder of a run, checked against the configuration it is given.

    Args:
        path: The folder.
        config: The configuration.
        writes: Whether this process writes to it; of several the first does.
        processes: How many share out the rows of a step.

    Raises:
        InputError: It holds a run of another configuration or number of processes, or cannot be read or made.
    """

    def __init__(self, path: Path, config: Config, *, writes: bool = True, processes: int = 1) -> None:
        self.path, self.config, self._writes, self._processes = path, config, writes, processes
        self.notes: tuple[str, ...] = ()  # what a resumed run does otherwise than it began
        self.checkpoints, self.model = path / "checkpoints", path / "model"
        self.log = path / "log.jsonl"
        self._record = path / "run.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise InputError(f"cannot make the folder of the run, {path}: {problem.strerror}") from problem
        self._check_places()
        begun = bool(Checkpoints(self.checkpoints).steps())
        # Without a checkpoint there is nothing to resume: what a failed start has left is ignored, and its
        # tokenizers may be of other data and other sizes.
        self._before = self._read() if begun else None
        of_0_2 = path / "vocabulary"  # where 0.2 saved the tokenizers that it trained
        saved = any((self.checkpoints / name).exists() for name in _TOKENIZERS)
        self.tokenizers = of_0_2 if begun and of_0_2.is_dir() and not saved else self.checkpoints
        if not begun and writes:
            left = [self.checkpoints / name for name in _BESIDE_CHECKPOINTS if (self.checkpoints / name).exists()]
            if left and not self._record.exists():
                raise InputError(f"{left[0]} is there, and was saved by no run: {_WAY}")
            with contextlib.suppress(OSError):  # of a run that began, and has no checkpoint
                for file in left:
                    file.unlink()
        if self._before is None and begun and writes:
            raise InputError(f"{path} has checkpoints and no run.json: name another folder as `output_dir`")
        before = None if self._before is None else Config.from_dict(self._before["config"]).task
        self.config = config = config.model_copy(update={"task": config.task.settled(before)})
        if self._before is not None:
            self._compare(self._before["config"], config.to_dict())
            if (were := self._before.get("processes", 1)) != processes:
                raise InputError(
                    f"the run in {self.path} was started on {were} processes and has {processes} now "
                    "(`context_parallel_size` of them count as one), which would make other batches: start as many, or "
                    "name another folder as `output_dir`; the checkpoints are as they were"
                )

    def _check_places(self) -> None:
        """Refuse files in the way of what the run will save, before any step is taken."""
        for one in (self.checkpoints, self.model):
            if one.exists() and not one.is_dir():
                raise InputError(
                    f"{one} must be a folder and is a file: move it, or name another folder as `output_dir`"
                )
        for one in (self._record, self.log, self.path / "curves.svg"):
            if one.exists() and not one.is_file():
                raise InputError(f"{one} must be a file and is none: {_WAY}")
        for one in (self.path, self.checkpoints):
            if self._writes and one.exists() and not os.access(one, os.W_OK | os.X_OK):
                way = "change its mode, or name another folder as `output_dir`"
                reason = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                raise InputError(f"{one} cannot be written in: {way}") from reason

    def begin(self, task: Task, model: PretrainedMixin, *, attends_by: str) -> None:
        """Record what the run is started with, or compare the data with that record; save what opens its checkpoints.

        Args:
            task: The task, with the hashes of its data.
            model: Its model, whose configuration is saved beside the checkpoints, with the tokenizers.
            attends_by: What computes attention in this session; another than in the session before becomes a note.
        """
        if self._before is not None:
            before = guarded(self._before["config"]["task"], self._before["data"])
            table = self.config.to_dict()["task"]
            data = guarded(table, task.data)
            if (name := read_otherwise(data, before)) is not None:
                raise InputError(
                    f"the run in {self.path} was started by a release that read other rows from {_file(table, name)}: "
                    "resume it by that release, or name another folder as `output_dir`; the checkpoints are as "
                    "they were"
                )
            for name, was in before.items():
                if (now := data.get(name)) != was:
                    raise InputError(
                        f"the data of {_file(table, name)!r} has changed since this run was started (SHA-256 "
                        f"{was[:12]}… then, {str(now)[:12]}… now): bring the old file back, or name another "
                        "folder as `output_dir`; the checkpoints are as they were"
                    )
            if tokens := [
                name for name in task.data if "(special tokens)" in name and name not in self._before["data"]
            ]:
                raise InputError(
                    f"the run in {self.path} was started by regard 0.2, which did not put the special tokens of a "
                    f"checkpoint's tokenizer around texts ({tokens[0]}): name another folder as `output_dir`"
                )
            self.notes = _notes(self._before.get("sessions", []), attends_by)
        if not self._writes:
            return
        known = self._before or {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        known |= {
            "version": _FORMAT,
            "config": self.config.to_dict(),
            "data": dict(task.data),
            "processes": self._processes,
        }
        known["sessions"] = [*known.get("sessions", ()), _session() | {"attention": attends_by}]
        write_atomically(self._record, (json.dumps(known, indent=2, ensure_ascii=False) + "\n").encode())

        def write(folder: Path) -> None:
            task.save(folder)
            write_config(model.config, folder)

        replace_files(self.checkpoints, write)

    def finish(
        self,
        task: Task,
        checkpoints: Checkpoints,
        place: TrainerState,
        metric: str,
        higher: bool,
        device: torch.device,
    ) -> dict[str, float]:
        """Save the model, the best one or the mean of the last ones; then return its scores on all held-out data.

        Where no evaluation has a number, it is that of the last step. Scores that cannot be computed are left out.

        Of several processes, all those that share the tokens of a row compute the scores.

        Raises:
            InputError: A checkpoint that it is made of is gone, or the model cannot be written.
        """
        average = self.config.training.num_averaged_checkpoints
        best = place.best(metric, higher)
        if best is None or math.isnan(best[metric]):  # no evaluation has a number
            steps = [place.step]
        else:
            steps = [int(best["step"])] if average == 1 else [int(one["step"]) for one in place.scores[-average:]]
        if gone := [step for step in steps if step not in checkpoints.steps()]:
            key = "metric_for_best_model" if average == 1 else "num_averaged_checkpoints"
            raise InputError(
                f"the model is made of the checkpoints of step {', '.join(map(str, steps))}, and that "
                f"of step {gone[0]} is gone: set `training.{key}` as it was when the run was started, "
                "or train more steps"
            )
        model = task.model(self.config.model).eval()
        model.load_state_dict(mean_of([checkpoints.weights(step) for step in steps]))
        model.to(device)
        known = self._scores(steps)

        def write(folder: Path) -> None:
            model.save_pretrained(folder)
            task.save(folder)
            write_config(model.config, folder)
            if known is not None:  # of the same checkpoints, which are computed again
                (folder / "scores.json").write_bytes(known)

        if self._writes:
            write_folder(self.model, write, "the checkpoints are whole; make room and start the same command again")
        scores: dict[str, float] = {}
        # Ranks that share the tokens of a row wait for each other inside: there an error stops all of them.
        with (
            optional_part("scores.json", task.warnings) if task.ranks.sequence_ranks == 1 else contextlib.nullcontext()
        ):
            scores = task.final(model, self.config.training.max_tokens_per_batch)
            if self._writes:
                text = json.dumps({"steps": steps, "scores": scores}, indent=2) + "\n"
                write_atomically(self.model / "scores.json", text.encode())
        return scores

    def _scores(self, steps: list[int]) -> bytes | None:
        """The scores.json of a model that is made of these checkpoints, if there is one."""
        try:
            content = (self.model / "scores.json").read_bytes()
            return content if json.loads(content)["steps"] == steps else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(read_text(self._record))
            _check_record(found)
            task = recorded_by_0_2(found["config"]["task"], found["data"])
            found["config"] = Config.from_dict(found["config"] | {"task": task}).to_dict()  # with today's keys
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as problem:
            raise InputError(f"cannot read {self._record}: {problem}; name another folder as `output_dir`") from problem
        return dict(found)

    def _compare(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Raise where the configuration would have made other steps than those that were taken."""
        lengths = {"training.max_steps", "training.num_train_epochs"}
        ends = lengths if self.config.training.schedule.needs_total else set()
        for key, (was, is_now) in changed_keys(before, now).items():
            if key in _FREE - ends or (key in _MOVABLE and None not in (was, is_now)):
                continue
            why = " (this schedule depends on the end)" if key in ends else ""
            raise InputError(
                f"`{key}` was {_shown(was)} when the run in {self.path} was started and is {_shown(is_now)} now{why}: "
                "set it as it was to resume, or name another folder as `output_dir`; the checkpoints are as they were"
            )


def _check_record(found: Any) -> None:
    """Refuse what is not as `Folder.begin` writes it.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
        raise ValueError("it has no configuration")
    if not is_version(version := found.get("version"), _FORMAT):
        raise ValueError(f"it is of format {version}, and this release reads format {_FORMAT}")
    data, sessions, processes = found.get("data"), found.get("sessions", []), found.get("processes", 1)
    if not isinstance(data, dict) or not all(isinstance(one, str) for one in data.values()):
        raise ValueError(f'"data" must be the hashes of files, got {data!r}')
    if not isinstance(sessions, list):
        raise ValueError(f'"sessions" must be a list, got {sessions!r}')
    if type(processes) is not int:
        raise ValueError(f'"processes" must be a whole number, got {processes!r}')


def _file(task: dict[str, Any], key: str) -> str:
    """The name of a file by its key; a tokenizer has a name and no key."""
    return Path(task.get(key) or key).name


def _shown(value: Any) -> str:
    return "left to its default" if value is None else repr(value)


def _notes(sessions: list[Any], attends_by: str) -> tuple[str, ...]:
    """Say that attention is computed otherwise than in the last session, if that recorded it."""
    was = sessions[-1].get("attention") if sessions and isinstance(sessions[-1], dict) else None
    if was in (None, attends_by):
        return ()
    return (f"attention was computed by {was} before and is computed by {attends_by} now: results differ by rounding",)


def _session() -> dict[str, Any]:
    """Return when and with which versions a run was started or resumed."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git": _revision(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": versions,
    }


def _revision() -> str | None:
    """Return the git revision of the working folder, with a + where files are changed."""
    try:
        asked = ["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain", "--untracked-files=no"]
        head, status = (subprocess.run(one, capture_output=True, text=True, timeout=10, check=True) for one in asked)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")


@contextlib.contextmanager
def last_checkpoint_named(path: Path) -> Iterator[None]:
    """Name the last checkpoint in an error of writing to the folder of a run: it is what the same command resumes from.

    Raises:
        InputError: Something cannot be written.
    """
    try:
        yield
    except (InputError, OSError) as problem:
        cause: BaseException | None = problem
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__
        if cause is None or not _cannot_write(cause, path):
            raise
        steps = Checkpoints(path / "checkpoints").steps()
        state = f"the last good checkpoint is that of step {steps[-1]}" if steps else "there is no checkpoint yet"
        if state in str(problem):
            raise
        raise InputError(f"{problem}; {state}; mend it, and start the same command again") from problem


def _cannot_write(problem: OSError, path: Path) -> bool:
    """Return whether an error says that a disk is full or read-only, or that a folder of the run is."""
    if problem.errno in (errno.EACCES, errno.EPERM):
        folders = [one for one in (path.parent, path, path / "checkpoints", path / "model") if one.exists()]
        return not all(os.access(one, os.W_OK | os.X_OK) for one in folders)
    return problem.errno in (errno.ENOSPC, errno.EROFS, errno.EFBIG, getattr(errno, "EDQUOT", None), errno.EIO)


@contextlib.contextmanager
def hold_folder(path: Path) -> Iterator[None]:
    """Hold the folder of a run; whoever is killed lets go of it. On Windows nothing is held.

    Raises:
        InputError: Another process trains in it, or it cannot be made or written in.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / ".lock").open("w")
    except OSError as problem:
        raise InputError(f"cannot make the folder of the run, {path}: {problem.strerror}") from problem
    with file:
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):  # a file system that knows no locks
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as problem:
                    raise InputError(
                        f"another process trains in {path}: wait until it has ended, or name another "
                        "folder as `output_dir`"
                    ) from problem
        yield
