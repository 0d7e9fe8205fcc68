"""The base of all tasks: rows of tokens, batches of them, and the loss on held-out rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.data import batches
from regard.errors import InputError
from regard.train.callbacks import Sample
from regard.train.config import Config, Model
from regard.train.optimization import IGNORED, summed_cross_entropy

__all__ = ["Batch", "Task"]


@dataclass(frozen=True)
class Batch:
    """Inputs of a model and their labels.

    `inputs` are the arguments of its forward pass, `labels` the classes, −100 where nothing is predicted, and
    `num_tokens` counts tokens without padding.
    """

    inputs: dict[str, Tensor]
    labels: Int[Tensor, "batch *n"]
    num_tokens: int

    @property
    def num_labels(self) -> Int[Tensor, ""]:
        """Number of labels that count."""
        return (self.labels != IGNORED).sum()

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        inputs = {name: one.to(device) for name, one in self.inputs.items()}
        return replace(self, inputs=inputs, labels=self.labels.to(device))


class Task:
    """A task with its data: what is trained on and what is held out.

    Args:
        config: The configuration of the run.
        folder: The folder of the tokenizers that are trained for the run.
    """

    metrics: ClassVar[dict[str, bool]] = {"loss": False}  # by name: whether greater is better; the first is the default

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.data: dict[str, str] = {}  # each file's SHA-256, tokenizers' too: with another, tokens mean something else
        self.notes: tuple[str, ...] = ()  # what people should know of the data
        self.counted: tuple[str, ...] = ()  # how the final scores were counted
        self.lengths: Sequence[Any] = ()  # of the rows that are trained on
        self.held_lengths: Sequence[Any] = ()

    def metric(self, name: str | None) -> tuple[str, bool]:
        """Return the score that measures improvement, and whether greater is better."""
        chosen = next(iter(self.metrics)) if name is None else name.removeprefix("eval_")
        if chosen not in self.metrics:
            raise InputError(
                f"`training.metric_for_best_model` must be one of {', '.join(self.metrics)} for this task, "
                f"got {chosen!r}"
            )
        return chosen, self.metrics[chosen]

    def model(self, chosen: Model) -> Any:
        """Return a model for the task."""
        raise NotImplementedError  # each task defines it

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return rows as a batch, of the held-out or of the training data."""
        raise NotImplementedError  # each task defines it

    def save(self, folder: Path) -> None:
        """Save what is needed besides the model to use it."""
        raise NotImplementedError  # each task defines it

    def epoch(self, max_tokens_per_batch: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
        """Return the rows of each batch of an epoch."""
        return batches(self.lengths, max_tokens_per_batch=max_tokens_per_batch, seed=seed, epoch=epoch)

    def held_batches(self, max_tokens_per_batch: int) -> list[tuple[int, ...]]:
        """Return the held-out rows in batches of this many tokens, or of one row where it is longer."""
        longest = max(one if isinstance(one, int) else max(one) for one in self.held_lengths)
        limit = max(max_tokens_per_batch, longest)
        return batches(self.held_lengths, max_tokens_per_batch=limit, seed=0, epoch=0)

    def batch(self, rows: Sequence[int], *, labelled: bool = True) -> Batch:
        """Return a training batch; without labels where a process has no rows of its own in a step."""
        made = self.rows(rows, held=False)
        return made if labelled else replace(made, labels=torch.full_like(made.labels, IGNORED), num_tokens=0)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the scores on held-out rows; the loss is in nats, without label smoothing."""
        device = next(model.parameters()).device
        found, num_labels = 0.0, 0
        for rows in self.held_batches(max_tokens_per_batch):
            batch = self.rows(rows, held=True).to(device)
            found += float(summed_cross_entropy(model(**batch.inputs).logits, batch.labels))
            num_labels += int(batch.num_labels)
        return {"loss": found / max(1, num_labels)}

    def final(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the scores of the final model."""
        return self.evaluate(model, max_tokens_per_batch)

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Return the model's predictions for a few held-out texts."""
        return ()

    def draw(self, model: nn.Module, folder: Path) -> None:
        """Draw the model's attention in a figure, where there is one."""
