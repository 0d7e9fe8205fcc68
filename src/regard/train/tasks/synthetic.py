"""Copy, reverse, sort and recall: the answers are known, so accuracy is."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data import AssociativeRecall, Copy, Reverse, Sort
from regard.errors import InputError
from regard.models.config import SpecialTokens
from regard.train import config as chosen
from regard.train.callbacks import Sample
from regard.train.config import Config
from regard.train.tasks.pairs import PairsTask, written_of

__all__ = ["SyntheticTask"]

_KINDS: dict[str, Any] = {"copy": Copy, "reverse": Reverse, "sort": Sort}


class SyntheticTask(PairsTask):
    """A synthetic task; `exact` is the fraction of held-out texts predicted right to the last token."""

    metrics = {"loss": False, "exact": True}  # noqa: RUF012 - read only

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        task = config.task
        assert isinstance(task, chosen.Synthetic)
        if isinstance(config.model, chosen.Checkpoint):
            raise InputError("a synthetic task has symbols of its own: `model.type` must be transformer or recurrent")
        if task.task_name == "recall":
            kind = AssociativeRecall(num_symbols=task.num_symbols, num_kv_pairs=task.max_length)
        else:
            kind = _KINDS[task.task_name](num_symbols=task.num_symbols)
        generator = torch.Generator().manual_seed(config.training.seed)
        count = task.num_examples + task.validation_size
        length_range = task.min_length, task.max_length
        sources, targets = kind.sample(count, length_range=length_range, generator=generator)
        rows = list(zip(sources, targets, strict=True))
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

    def evaluate(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the loss, and the fraction of texts whose prediction is right to the last token."""
        written = written_of(model, [source for source, _ in self.held])
        right = [
            found == [*target, self.tokens.eos_token_ids[0]]
            for found, (_, target) in zip(written, self.held, strict=True)
        ]
        return super().evaluate(model, max_tokens_per_batch) | {"exact": sum(right) / len(right)}

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Return three texts, as numbers."""
        some = self.held[:3]
        written = written_of(model, [source for source, _ in some])
        return tuple(
            Sample(_numbers(source), _numbers(found[:-1]), _numbers(target))
            for found, (source, target) in zip(written, some, strict=True)
        )

    def save(self, folder: Path) -> None:
        """Save nothing: there is no tokenizer."""


def _numbers(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))
