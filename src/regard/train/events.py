"""Events of training, passed to callbacks: a log, a figure, a progress bar.

A callback is a function of one event; it returns nothing and changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Callback", "Ended", "Evaluated", "Event", "Sample", "Saved", "Started", "Stepped"]


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
    """The held-out data was evaluated; `is_best` where no earlier evaluation was as good."""

    step: int
    epoch: int
    scores: dict[str, float]
    is_best: bool
    seconds: float
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Saved:
    """A checkpoint is saved."""

    step: int
    folder: Path


@dataclass(frozen=True)
class Ended:
    """Training has ended; `reason` is "max_steps", "early_stopping" or "should_stop".

    `scores` are those of the final model, and `model` is its folder, None where training was stopped and can resume;
    `notes` are the signatures of the scores.
    """

    step: int
    reason: str
    scores: dict[str, float]
    model: Path | None
    notes: tuple[str, ...] = ()


Event = Started | Stepped | Evaluated | Saved | Ended
Callback = Callable[[Event], None]
