"""What a step needs besides the model: the loss summed over labels, AdamW, learning-rate schedules, its process.

Schedules have transformers' names and values and are pure functions of the step, without state: `step` is the number of
optimizer steps taken so far, as in `torch.optim.lr_scheduler.LambdaLR`; `total` the number of all of them.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.train.settings import Count, settings

__all__ = [
    "IGNORED",
    "OneProcess",
    "Schedule",
    "SchedulerKwargs",
    "SchedulerType",
    "optimizer_of",
    "summed_cross_entropy",
    "total_steps",
]

IGNORED = -100  # the label of what is not predicted


def summed_cross_entropy(
    logits: Float[Tensor, "*batch labels"], labels: Int[Tensor, " *batch"], label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return Σ over all labels but −100 of −(1 − ε) log p(label) − ε · mean over all classes of log p, in nats.

    It is a sum, to be divided once by the number of labels of a whole step: then neither gradient accumulation nor the
    number of processes changes the loss. ε is `label_smoothing` (Szegedy et al. 2016, arXiv:1512.00567).

    >>> import torch
    >>> round(float(summed_cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, -100]))), 4)  # 2 log 4
    2.7726
    """
    return functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def optimizer_of(
    model: nn.Module, *, learning_rate: float, weight_decay: float, betas: tuple[float, float], eps: float
) -> torch.optim.AdamW:
    """Return AdamW over the parameters that are trained; only matrices decay, neither biases nor norms."""
    learned = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in learned if one.ndim >= 2], "weight_decay": weight_decay},
        {"params": [one for one in learned if one.ndim < 2], "weight_decay": 0.0},
    ]
    kept = [group for group in groups if group["params"]]
    return torch.optim.AdamW(kept, lr=learning_rate, betas=betas, eps=eps)


class OneProcess:
    """The process of a run, which has all rows of a step, whole; `ranks.Ranks` are several.

    `data_ranks` share out the rows of a step, of which this has those of `data_rank`; `sequence_ranks` share out the
    tokens of each row.
    """

    data_ranks, data_rank, sequence_ranks = 1, 0, 1

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return x

    def sum_parts(self, x: Tensor) -> Tensor:
        """Return the sum over the processes that share the tokens of a row."""
        return x

    def over(self, model: nn.Module) -> AbstractContextManager[Callable[[Tensor], Tensor]]:
        """Run a model on this process's tokens inside; give what cuts its labels out of those of whole rows."""
        del model
        return nullcontext(lambda labels: labels)

    def main_process_first(self) -> AbstractContextManager[None]:
        """Let the first process go through before the others."""
        return nullcontext()

    def meet(self) -> None:
        """Return when all processes are here."""

    def prepare(self, model: nn.Module) -> None:
        """Prepare what averages gradients, where something does."""


def total_steps(max_steps: int | None, num_train_epochs: float | None, batches: Callable[[int], Sequence[Any]]) -> int:
    """Return the number of optimizer steps; an epoch that is not whole has so much of its steps, rounded up."""
    if max_steps is not None:
        return max_steps
    whole, part = divmod(num_train_epochs or 0, 1)
    steps = sum(len(batches(epoch)) for epoch in range(int(whole)))
    return steps + (math.ceil(part * len(batches(int(whole)))) if part else 0)


SchedulerType = Literal[
    "linear",
    "cosine",
    "cosine_with_min_lr",
    "inverse_sqrt",
    "warmup_stable_decay",
    "constant",
    "constant_with_warmup",
]

_TIMESCALE = 10_000  # of "inverse_sqrt" without warm-up, as in transformers


@settings
class SchedulerKwargs:
    """Options of single schedules, `lr_scheduler_kwargs` of transformers.

    Args:
        min_lr_rate: Of "cosine_with_min_lr": its last learning rate as a fraction of the peak.
        num_decay_steps: Of "warmup_stable_decay": how many of the last steps decay; required.
        decay_type: Of "warmup_stable_decay": the shape of the decay.
        min_lr_ratio: Of "warmup_stable_decay": its last learning rate as a fraction of the peak.
    """

    min_lr_rate: Annotated[float, Field(ge=0, le=1)] | None = None
    num_decay_steps: Count | None = None
    decay_type: Literal["cosine", "linear", "1-sqrt"] | None = None
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] | None = None


_OPTIONS_OF = {
    "cosine_with_min_lr": ("min_lr_rate",),
    "warmup_stable_decay": ("num_decay_steps", "decay_type", "min_lr_ratio"),
}


@dataclass(frozen=True)
class Schedule:
    """Return the learning rate of each step as a fraction of its peak.

    Args:
        kind: "linear" and "cosine" (Loshchilov & Hutter 2017, arXiv:1608.03983) decay to 0, "cosine_with_min_lr" to
            `min_lr_rate`; "inverse_sqrt" is √(warmup_steps / step), the paper's schedule (Vaswani et al. 2017,
            arXiv:1706.03762, section 5.3: peak `(hidden_size · warmup_steps)^−½`); "warmup_stable_decay" (Hu et al.
            2024, arXiv:2404.06395) holds the peak up to the last `num_decay_steps`; "constant" ignores `warmup_steps`.
        warmup_steps: Steps of a linear rise from 0; below 1 a fraction of all steps.
        options: Of the schedules that have some.

    Raises:
        InputError: `kind` is unknown, `warmup_steps` is negative, an option is missing or of another schedule.

    >>> [round(Schedule("cosine", 2).factor(step, 6), 2) for step in range(7)]
    [0.0, 0.5, 1.0, 0.85, 0.5, 0.15, 0.0]
    """

    kind: SchedulerType = "inverse_sqrt"
    warmup_steps: float = 0
    options: SchedulerKwargs = field(default_factory=SchedulerKwargs)

    def __post_init__(self) -> None:
        if self.kind not in get_args(SchedulerType):
            raise InputError(
                f"`lr_scheduler_type` must be one of {', '.join(get_args(SchedulerType))}, got {self.kind!r}"
            )
        if not 0 <= self.warmup_steps < math.inf:
            raise InputError(f"`warmup_steps` must be at least 0, got {self.warmup_steps}")
        known = _OPTIONS_OF.get(self.kind, ())
        for name, value in asdict(self.options).items():
            if value is not None and name not in known:
                raise InputError(f"`lr_scheduler_kwargs.{name}` is no option of {self.kind!r}: leave it out")
        if known and getattr(self.options, known[0]) is None:
            raise InputError(f"`lr_scheduler_kwargs` must have `{known[0]}` for {self.kind!r}")

    @property
    def needs_total(self) -> bool:
        """Whether the learning rate depends on the number of all steps."""
        return self.kind not in ("inverse_sqrt", "constant", "constant_with_warmup") or 0 < self.warmup_steps < 1

    def num_warmup_steps(self, total: int | None = None) -> int:
        """Return the steps of the rise; `total` is required where they are a fraction of it."""
        if self.kind == "constant":
            return 0
        if not 0 < self.warmup_steps < 1:
            return int(self.warmup_steps)
        assert total is not None
        return math.ceil(total * self.warmup_steps)

    def factor(self, step: int, total: int | None = None) -> float:
        """Return the fraction of the peak after `step` steps; `total` is required where `needs_total`."""
        warmup = self.num_warmup_steps(total)
        if step < warmup:
            return _to_floor(step / warmup, self.options.min_lr_ratio or 0.0)  # of "warmup_stable_decay" only
        if self.kind in ("constant", "constant_with_warmup"):
            return 1.0
        if self.kind == "inverse_sqrt":
            timescale = warmup or _TIMESCALE
            return math.sqrt(timescale / (step + timescale - warmup))
        assert total is not None
        if self.kind == "warmup_stable_decay":
            return self._decayed(step, total)
        done = min(1.0, (step - warmup) / max(1, total - warmup))
        if self.kind == "linear":
            return 1 - done
        return _to_floor((1 + math.cos(math.pi * done)) / 2, self.options.min_lr_rate or 0.0)

    def _decayed(self, step: int, total: int) -> float:
        length, floor = self.options.num_decay_steps or 1, self.options.min_lr_ratio or 0.0
        begin = total - length
        if step < begin:
            return 1.0
        done = min(1.0, (step - begin) / length)
        shapes = {"linear": 1 - done, "1-sqrt": 1 - math.sqrt(done), "cosine": (1 + math.cos(math.pi * done)) / 2}
        return _to_floor(shapes[self.options.decay_type or "cosine"], floor)


def _to_floor(factor: float, floor: float) -> float:
    return floor + (1 - floor) * factor
