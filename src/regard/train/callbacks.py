"""Callbacks of training: the events they receive, the log in JSON Lines, and the figure of a run.

A callback is a function of one event; it returns nothing and changes nothing.
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InputError
from regard.files import printable, read_bytes, write_atomically
from regard.render.mpl_figure import place, sheet, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Callback",
    "Curves",
    "Ended",
    "Evaluated",
    "Event",
    "JsonlLog",
    "Sample",
    "Saved",
    "Started",
    "Stepped",
    "curves_figure",
    "read_log",
]


@dataclass(frozen=True)
class Started:
    """Training starts, or resumes after `step`.

    `max_steps` is the number of all optimizer steps, `num_parameters` that of the model's parameters; `notes` describe
    the data and what was left out of it.
    """

    out: Path
    step: int
    max_steps: int
    num_parameters: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stepped:
    """An optimizer step is done.

    `loss` is the mean over the labels of the step, in nats; `grad_norm` the norm of the gradient before clipping;
    `num_tokens` the number of tokens of the step without padding, and `seconds` its duration.
    """

    step: int
    epoch: int
    loss: float
    learning_rate: float
    grad_norm: float
    num_tokens: int
    seconds: float


@dataclass(frozen=True)
class Sample:
    """A held-out text, the model's prediction, and the reference."""

    source: str
    prediction: str
    reference: str


@dataclass(frozen=True)
class Evaluated:
    """The held-out data was evaluated; `is_best` where no earlier evaluation was as good.

    `warnings` name what was left out, each with its reason.
    """

    step: int
    epoch: int
    scores: dict[str, float]
    is_best: bool
    seconds: float
    samples: tuple[Sample, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Saved:
    """A checkpoint is saved."""

    step: int
    folder: Path


@dataclass(frozen=True)
class Ended:
    """Training has ended; `reason` is "max_steps", "early_stopping" or "should_stop".

    `scores` are those of the final model, and `model` is its folder, None where training was stopped and can resume;
    `notes` are the signatures of the scores, and `warnings` name what was left out, each with its reason: what `train`
    returns has those of the whole run, the event those since the last evaluation.
    """

    step: int
    reason: str
    scores: dict[str, float]
    model: Path | None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


Event = Started | Stepped | Evaluated | Saved | Ended
Callback = Callable[[Event], None]


_WAY = "remove the line, or the file: the checkpoints are enough to resume from"


class JsonlLog:
    """A callback that appends events to a file; when a run resumes, it drops the events that will come again.

    Args:
        path: The file; events are appended.

    `note` names, once a run has resumed, the earlier steps that the log lacks.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.note = path, ""

    def __call__(self, event: Event) -> None:
        """Append one event."""
        if isinstance(event, Started):
            last = self._forget(event.step)
            if last < event.step:
                state = f"ends with step {last:,}" if last else "is gone or empty"
                self.note = f"{self.path} {state}: the curves lack steps {last + 1:,} to {event.step:,}"
        if isinstance(event, Saved):
            return  # the folder lists them
        found = {"event": type(event).__name__.lower(), **asdict(event)}
        line = (json.dumps(_plain(found), ensure_ascii=False) + "\n").encode()
        try:
            with self.path.open("ab", buffering=0) as file:
                whole = file.tell()
                try:
                    left = memoryview(line)
                    while left:  # a full disk takes a part, and says why at the next call
                        left = left[file.write(left) :]
                except OSError:
                    with suppress(OSError):
                        file.truncate(whole)  # half a line would stand before the next one
                    raise
        except OSError as problem:
            raise InputError(f"cannot write {self.path}: {problem.strerror}; the checkpoints are whole") from problem

    def _forget(self, step: int) -> int:
        """Drop what was logged after the checkpoint that the run resumes from, and a line that a kill has cut.

        Returns the last step that is left, 0 where there is none.
        """
        if not self.path.exists():
            return 0
        kept = [one for one in read_log(self.path) if one["step"] <= step and one["event"] != "ended"]
        text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept)
        try:
            write_atomically(self.path, text.encode())
        except InputError as problem:
            raise InputError(f"{problem}; the checkpoints are whole") from problem
        return max((one["step"] for one in kept if one["event"] == "stepped"), default=0)


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Return the events of a log as dictionaries, without a last line that was cut.

    Raises:
        InputError: The file cannot be read, or another line is no JSON.
    """
    try:  # not splitlines(): a sample may hold a line separator of Unicode's; and a cut may go through a character
        lines = read_bytes(path).removesuffix(b"\n").split(b"\n")
    except OSError as problem:
        raise InputError(f"cannot read {printable(path)}: {problem.strerror or problem}") from problem
    found: list[dict[str, Any]] = []
    if lines == [b""]:
        return found
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as problem:
            if number < len(lines):
                raise InputError(f"cannot read line {number} of {path}: {problem}; {_WAY}") from problem
            break
        found.append(event)
    return found


def _plain(value: Any) -> Any:
    """Return values that JSON has: NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


_WIDE, _HIGH, _LEFT, _GAP = 6.4, 2.1, 1.0, 0.75
_TRAINED, _HELD = "#7a8ca8", "#c2410c"  # they differ in lightness too


def curves_figure(log_history: Sequence[dict[str, Any]]) -> "Figure":
    """Return a figure of the events of a log: panels for the loss, each other score, and the learning rate."""
    steps = [one for one in log_history if one["event"] == "stepped"]
    scored = [one for one in log_history if one["event"] == "evaluated"]
    names = dict.fromkeys(name for one in scored for name in one["scores"] if name not in ("loss", "perplexity"))
    panels = ["loss", *names, "learning_rate"]
    with sheet(panels) as brush:
        height = len(panels) * (_HIGH + _GAP) + 0.2
        brush.figure.set_size_inches(_LEFT + _WIDE + 0.3, height)
        for index, name in enumerate(panels):
            axes = place(brush, (_LEFT, height - (index + 1) * (_HIGH + _GAP) + 0.45, _WIDE, _HIGH))
            _panel(axes, name, steps, scored)
    return brush.figure


class Curves:
    """A callback that draws the log of a run when training ends or is stopped.

    Args:
        log: The log; `JsonlLog` comes before this callback.
        path: The figure, PNG or SVG.
    """

    def __init__(self, log: Path, path: Path) -> None:
        self.log, self.path = log, path

    def __call__(self, event: Event) -> None:
        """Draw the log at the end."""
        if isinstance(event, Ended) and self.log.exists():
            write_figure(curves_figure(read_log(self.log)), self.path)


def _panel(axes: "Axes", name: str, steps: Sequence[dict[str, Any]], scored: Sequence[dict[str, Any]]) -> None:
    if name in ("loss", "learning_rate") and steps:
        axes.plot(
            [one["step"] for one in steps], [one[name] for one in steps], color=_TRAINED, lw=0.9, label="training"
        )
    if name != "learning_rate" and scored:
        values = [one["scores"].get(name, math.nan) for one in scored]
        axes.plot([one["step"] for one in scored], values, color=_HELD, lw=1.4, marker="o", ms=3, label="held out")
    axes.set_ylabel({"loss": "loss (nats)", "learning_rate": "learning rate", "bleu": "BLEU"}.get(name, name))
    axes.set_xlabel("step")
    axes.set_xlim(0, max((one["step"] for one in (*steps, *scored)), default=1) * 1.02)
    if name == "learning_rate":
        axes.ticklabel_format(axis="y", style="scientific", scilimits=(-2, 2))
    axes.grid(alpha=0.25, lw=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if name == "loss" and steps and scored:
        axes.legend(frameon=False)
