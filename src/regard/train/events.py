"""What happens while a model is trained, told to whoever listens: a log, a figure, a progress bar.

A listener is a function of one event; it returns nothing and changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ended", "Evaluated", "Event", "Listener", "Sample", "Saved", "Started", "Stepped"]


@dataclass(frozen=True)
class Started:
    """Training begins, or goes on behind `step`.

    `total` is the last step, as far as is known; `parameters` counts numbers that are learned; `notes` say what was
    left out of the data.
    """

    out: Path
    step: int
    total: int
    parameters: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stepped:
    """A step is done.

    `loss` is the mean over the tokens asked for, in nats; `norm` the gradient's before it was clipped; `tokens` how
    many were read, and `seconds` how long that took.
    """

    step: int
    epoch: int
    loss: float
    rate: float
    norm: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Sample:
    """A held-out text, what the model says, and what was expected."""

    source: str
    said: str
    expected: str


@dataclass(frozen=True)
class Evaluated:
    """The held-out data was looked at; `best` says that no earlier evaluation was better."""

    step: int
    epoch: int
    scores: dict[str, float]
    best: bool
    seconds: float
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class Saved:
    """A checkpoint is whole."""

    step: int
    folder: Path


@dataclass(frozen=True)
class Ended:
    """Training is over: "steps" are done, "patience" is spent, or someone "stopped" it; `scores` are the last model's.

    `model` is the folder of the model, None where training can go on; `notes` say how the scores were counted.
    """

    step: int
    why: str
    scores: dict[str, float]
    model: Path | None
    notes: tuple[str, ...] = ()


Event = Started | Stepped | Evaluated | Saved | Ended
Listener = Callable[[Event], None]
