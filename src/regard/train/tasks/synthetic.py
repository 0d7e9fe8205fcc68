"""Copy, reverse, sort and recall: the answers are known, so accuracy is."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data import AssociativeRecall, Copy, Reverse, Sort
from regard.errors import InputError
from regard.models.config import SpecialTokens
from regard.train import config as chosen
from regard.train.config import Config
from regard.train.events import Sample
from regard.train.tasks.pairs import PairsTask, written_of

__all__ = ["SyntheticTask"]

_KINDS: dict[str, Any] = {"copy": Copy, "reverse": Reverse, "sort": Sort}


class SyntheticTask(PairsTask):
    """One of the synthetic tasks; `exact` is the share of held-out texts of which every token is right."""

    metrics = {"loss": False, "exact": True}  # noqa: RUF012 - read only

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        asked = config.task
        assert isinstance(asked, chosen.Synthetic)
        if isinstance(config.model, chosen.Checkpoint):
            raise InputError("a synthetic task has symbols of its own: `model.kind` must be transformer or recurrent")
        if asked.task == "recall":
            kind = AssociativeRecall(symbols=asked.symbols, pairs=asked.longest)
        else:
            kind = _KINDS[asked.task](symbols=asked.symbols)
        generator = torch.Generator().manual_seed(config.seed)
        count = asked.examples + asked.held_out
        lengths = asked.shortest, asked.longest
        sources, targets = kind.sample(count, lengths=lengths, generator=generator)
        rows = list(zip(sources, targets, strict=True))
        held = {tuple(source) for source, _ in rows[: asked.held_out]}
        trained = [pair for pair in rows[asked.held_out :] if tuple(pair[0]) not in held]
        if not trained:
            raise InputError("all texts that can be drawn are held out: raise `symbols`, `longest` or `examples`")
        self.sizes = kind.vocabulary_size, kind.vocabulary_size
        self.tokens = SpecialTokens(pad_token_id=kind.pad, bos_token_id=kind.start, eos_token_id=kind.end)
        self.take(trained, rows[: asked.held_out])

    def evaluate(self, model: nn.Module, tokens: int) -> dict[str, float]:
        """The loss, and the share of texts that are right to the last token."""
        written = written_of(model, [source for source, _ in self.held])
        right = [
            said == [*target, self.tokens.eos_token_ids[0]]
            for said, (_, target) in zip(written, self.held, strict=True)
        ]
        return super().evaluate(model, tokens) | {"exact": sum(right) / len(right)}

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Three texts, as numbers."""
        some = self.held[:3]
        written = written_of(model, [source for source, _ in some])
        return tuple(
            Sample(_said(source), _said(said[:-1]), _said(target))
            for said, (source, target) in zip(written, some, strict=True)
        )

    def save(self, folder: Path) -> None:
        """There is nothing but the model."""


def _said(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))
