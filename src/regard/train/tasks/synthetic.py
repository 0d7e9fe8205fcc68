"""Synthetic tasks, copy, reverse, sort and recall: the answers are known, so accuracy is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from regard.data import AssociativeRecall, Copy, Reverse, Sort
from regard.data.tokenizer import LARGEST_VOCABULARY
from regard.errors import InputError
from regard.models.decoding import Greedy
from regard.models.inputs_outputs import SpecialTokens
from regard.train.callbacks import Sample
from regard.train.model_types import CheckpointSettings, ModelSettings
from regard.train.settings import Rows, settings
from regard.train.tasks.base import HeldOut, PairsTask, TaskSettings
from regard.train.training import Training

__all__ = ["SyntheticSettings", "SyntheticTask"]

_KINDS: dict[str, Any] = {"copy": Copy, "reverse": Reverse, "sort": Sort}
_SYMBOL, _EXAMPLE = 24, 200  # bytes of a symbol, drawn as int64 and in two lists, and of the lists of an example


@settings
class SyntheticSettings(TaskSettings):
    """A synthetic task with known answers.

    Args:
        task_name: "copy", "reverse", "sort", or "recall" (of the value that follows a key).
        num_symbols: Number of different symbols.
        min_length, max_length: Symbols in a text; for "recall", pairs of key and value.
        num_examples, validation_size: Number of texts for training and for evaluation.
    """

    type: ClassVar[str] = "synthetic"
    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    task_name: Literal["copy", "reverse", "sort", "recall"]
    num_symbols: Annotated[int, Field(ge=2, le=LARGEST_VOCABULARY)] = 16
    min_length: Annotated[int, Field(ge=1)] = 3
    max_length: Annotated[int, Field(ge=1, le=2**20)] = 20
    num_examples: Rows = 20000
    validation_size: Rows = 500

    def __post_init__(self) -> None:
        if self.max_length < self.min_length:
            raise InputError(f"`max_length` must be at least `min_length`, {self.min_length}, got {self.max_length}")

    def least_symbols(self) -> int:
        """Return the number of symbols, which both vocabularies have."""
        return self.num_symbols

    def check_memory(self, there: int) -> None:
        """Raise where the texts take more bytes than there are; "recall" draws an order of all keys for each."""
        each = _EXAMPLE + self.max_length * _SYMBOL + (self.num_symbols * 6 if self.task_name == "recall" else 0)
        if (needed := (self.num_examples + self.validation_size) * each) > there:
            raise InputError(
                f"{self.num_examples:,} examples and {self.validation_size:,} held out of up to {self.max_length:,} "
                f"symbols take about {needed / 2**30:,.1f} GiB, and this machine has {there / 2**30:,.1f} GiB: lower "
                "`num_examples`, `validation_size` or `max_length` under [task]"
            )


class SyntheticTask(PairsTask):
    """A synthetic task; `exact` is the fraction of held-out texts predicted right to the last token."""

    settings = SyntheticSettings
    metrics = {"loss": False, "exact": True}  # noqa: RUF012 - read only

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        super().__init__(options, training, model, folder)
        task = self.options
        if isinstance(model, CheckpointSettings):
            raise InputError("a synthetic task has symbols of its own: `model.type` must be transformer or recurrent")
        if task.task_name == "recall":
            kind = AssociativeRecall(num_symbols=task.num_symbols, num_kv_pairs=task.max_length)
        else:
            kind = _KINDS[task.task_name](num_symbols=task.num_symbols)
        generator = torch.Generator().manual_seed(training.seed)
        count = task.num_examples + task.validation_size
        length_range = task.min_length, task.max_length
        sources, targets = kind.sample(count, length_range=length_range, generator=generator)
        rows = [(source, [*target, kind.eos_token_id]) for source, target in zip(sources, targets, strict=True)]
        held = {tuple(source) for source, _ in rows[: task.validation_size]}
        trained = [pair for pair in rows[task.validation_size :] if tuple(pair[0]) not in held]
        if not trained:
            raise InputError(
                "all texts that can be drawn are held out: raise `num_symbols`, `max_length` or `num_examples`"
            )
        self.sizes = kind.vocab_size, kind.vocab_size
        self.tokens = SpecialTokens(
            pad_token_id=kind.pad_token_id, bos_token_id=kind.bos_token_id, eos_token_id=kind.eos_token_id
        )
        self.take(trained, rows[: task.validation_size])

    def evaluate(self, model: nn.Module, max_tokens_per_batch: int, held: HeldOut | None = None) -> dict[str, float]:
        """Return the loss, and the fraction of texts whose prediction is right to the last token."""
        held = held or self.held
        scores = super().evaluate(model, max_tokens_per_batch, held)
        with self.optional_score("exact"):
            written = _written(model, [source for source, _ in held.rows])
            right = [found == labels for found, (_, labels) in zip(written, held.rows, strict=True)]
            scores["exact"] = sum(right) / len(right)
        return scores

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Return three texts, as numbers."""
        some = self.held.rows[:3]
        written = _written(model, [source for source, _ in some])
        return tuple(
            Sample(_numbers(source), _numbers(found[:-1]), _numbers(labels[:-1]))
            for found, (source, labels) in zip(written, some, strict=True)
        )


def _numbers(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


def _written(model: Any, sources: Sequence[list[int]], *, rows: int = 100) -> list[list[int]]:
    """Return what a model generates for each source, in batches of sources of like length, in the order given."""
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    found: list[list[int]] = [[] for _ in sources]
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        limits = [2 * len(sources[row]) + 10 for row in chosen]
        for row, (_, (best,)) in zip(
            chosen, model.search([sources[row] for row in chosen], Greedy(), limits), strict=True
        ):
            found[row] = list(best.tokens)
    return found
