"""What all tasks share: rows of tokens, batches of them, and the loss on those held out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.data import batches
from regard.errors import InputError
from regard.train.config import Config, Model
from regard.train.events import Sample
from regard.train.losses import IGNORED, summed_cross_entropy

__all__ = ["Batch", "Task"]


@dataclass(frozen=True)
class Batch:
    """What a model reads and what it should say.

    `inputs` are the arguments of its forward pass, `labels` the classes, IGNORED where nothing is asked, and `tokens`
    how many real ones were read.
    """

    inputs: dict[str, Tensor]
    labels: Int[Tensor, "batch *n"]
    tokens: int

    @property
    def asked(self) -> Int[Tensor, ""]:
        """How many labels count."""
        return (self.labels != IGNORED).sum()

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        inputs = {name: one.to(device) for name, one in self.inputs.items()}
        return replace(self, inputs=inputs, labels=self.labels.to(device))


class Task:
    """A task with its data: what is trained on and what is held out.

    Args:
        config: Of the run.
        folder: Where vocabularies that are trained for the run lie, or shall.
    """

    metrics: ClassVar[dict[str, bool]] = {"loss": False}  # by name: is more better? The first is the default

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.data: dict[str, str] = {}  # each file's SHA-256, tokenizers' too: with another, tokens mean something else
        self.notes: tuple[str, ...] = ()  # what people should know of the data
        self.counted: tuple[str, ...] = ()  # how the final scores were counted
        self.lengths: Sequence[Any] = ()  # of the rows that are trained on
        self.held_lengths: Sequence[Any] = ()

    def metric(self, name: str | None) -> tuple[str, bool]:
        """What improvement is measured by, and whether more is better."""
        chosen = next(iter(self.metrics)) if name is None else name
        if chosen not in self.metrics:
            raise InputError(f"`run.metric` must be one of {', '.join(self.metrics)} for this task, got {chosen!r}")
        return chosen, self.metrics[chosen]

    def model(self, chosen: Model) -> Any:
        """A model that fits the task."""
        raise NotImplementedError  # each task defines it

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """These rows as a batch, of those held out or those trained on."""
        raise NotImplementedError  # each task defines it

    def save(self, folder: Path) -> None:
        """Write what is needed beside the model to use it."""
        raise NotImplementedError  # each task defines it

    def epoch(self, tokens: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
        """The rows of each batch of an epoch."""
        return batches(self.lengths, tokens=tokens, seed=seed, epoch=epoch)

    def held_batches(self, tokens: int) -> list[tuple[int, ...]]:
        """The rows that are held out, in batches of so many tokens, or of one row where it is longer."""
        longest = max(one if isinstance(one, int) else max(one) for one in self.held_lengths)
        return batches(self.held_lengths, tokens=max(tokens, longest), seed=0, epoch=0)

    def batch(self, rows: Sequence[int], *, asked: bool = True) -> Batch:
        """Rows that are trained on; nothing is asked where a process has no row of its own and only keeps step."""
        made = self.rows(rows, held=False)
        return made if asked else replace(made, labels=torch.full_like(made.labels, IGNORED), tokens=0)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, tokens: int) -> dict[str, float]:
        """Scores on what is held out; the loss in nats without label smoothing."""
        device = next(model.parameters()).device
        found, asked = 0.0, 0
        for rows in self.held_batches(tokens):
            batch = self.rows(rows, held=True).to(device)
            found += float(summed_cross_entropy(model(**batch.inputs).logits, batch.labels))
            asked += int(batch.asked)
        return {"loss": found / max(1, asked)}

    def final(self, model: nn.Module, tokens: int) -> dict[str, float]:
        """Scores of the model that is kept."""
        return self.evaluate(model, tokens)

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """What the model says to a few texts that are held out."""
        return ()

    def draw(self, model: nn.Module, folder: Path) -> None:
        """Draw what the model does now, where there is something to see."""
