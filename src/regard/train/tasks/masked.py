"""Masked language modeling: predict masked tokens of a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data import mask_tokens, pad, read_corpus, split
from regard.errors import InputError
from regard.models.config import SpecialTokens
from regard.models.output_heads import MaskedLanguageModel
from regard.train import config as chosen
from regard.train.config import Config, Model
from regard.train.optimization import IGNORED
from regard.train.tasks.base import Batch, Task
from regard.train.tasks.build_model import text_model, vocabulary

__all__ = ["MaskedTask"]


class MaskedTask(Task):
    """Texts with masked tokens; in held-out texts the same ones are masked each time."""

    metrics = {"loss": False}  # noqa: RUF012 - read only

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        task = config.task
        assert isinstance(task, chosen.MaskedLM)
        self.settings = task
        corpus = read_corpus(task.train_file, columns=("text",))
        self.data = {corpus.name: corpus.sha256}
        trained, held = split(corpus, task.validation_size, column="text", seed=config.training.seed)
        self.vocabulary = vocabulary(config.model, folder / "tokenizer.json", task.tokenizer, trained["text"])
        self.data["tokenizer.json"] = self.vocabulary.sha256
        if None in (
            self.vocabulary.mask_token_id,
            self.vocabulary.bos_token_id,
            self.vocabulary.eos_token_id,
            self.vocabulary.pad_token_id,
        ):
            raise InputError("the checkpoint's tokenizer has no mask, start, end or padding token: take another one")
        self.notes = (f"{corpus}", f"{len(trained):,} lines are trained on, {len(held):,} held out")
        self.trained, self.held = (self._rows(one["text"]) for one in (trained, held))
        self.lengths, self.held_lengths = ([len(row) for row in rows] for rows in (self.trained, self.held))

    def model(self, chosen: Model) -> Any:
        """Return an encoder."""
        vocabulary = self.vocabulary
        tokens = SpecialTokens(
            pad_token_id=vocabulary.pad_token_id,
            bos_token_id=vocabulary.bos_token_id,
            eos_token_id=vocabulary.eos_token_id or 0,
        )
        longest = 2 * self.settings.block_size
        return text_model(chosen, len(vocabulary), tokens, MaskedLanguageModel(), longest, "encoder")

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return texts with some tokens masked: others each time, in held-out texts always the same."""
        chosen = [(self.held if held else self.trained)[row] for row in rows]
        ids, real = pad(chosen, self.vocabulary.pad_token_id or 0)
        if held:  # each by itself, whatever the others of the batch are
            hidden = [self._hidden(torch.tensor([one]), torch.ones(1, len(one), dtype=torch.bool), row)
                      for row, one in zip(rows, chosen, strict=True)]  # fmt: skip
            inputs, labels = ids.clone(), torch.full_like(ids, IGNORED)
            for at, (read, wanted) in enumerate(hidden):
                inputs[at, : read.shape[1]], labels[at, : read.shape[1]] = read[0], wanted[0]
        else:
            inputs, labels = self._hidden(ids, real, int(torch.randint(2**31, ())))
        given = {"input_ids": inputs} | ({} if bool(real.all()) else {"attention_mask": real})
        return Batch(given, labels, int(real.sum()))

    def _hidden(self, ids: Tensor, real: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        vocabulary = self.vocabulary
        assert vocabulary.mask_token_id is not None
        return mask_tokens(
            ids, real, len(vocabulary), vocabulary.mask_token_id, all_special_ids=vocabulary.all_special_ids,
            generator=torch.Generator().manual_seed(seed), mlm_probability=self.settings.mlm_probability,
        )  # fmt: skip

    def save(self, folder: Path) -> None:
        """Save the tokenizer."""
        self.vocabulary.save(folder / "tokenizer.json")

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Return pieces of each text, between a start and an end token."""
        start, end = self.vocabulary.bos_token_id, self.vocabulary.eos_token_id
        assert start is not None
        assert end is not None
        inside = self.settings.block_size - 2
        documents = [one for one in self.vocabulary.encode(texts) if one]
        cut = [one[first : first + inside] for one in documents for first in range(0, len(one), max(1, inside))]
        return [[start, *one, end] for one in cut]
