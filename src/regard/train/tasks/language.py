"""Causal language models: the next token of running text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data import chunk_tokens, collate_packed, pack_sequences, pad, read_corpus, split
from regard.errors import InputError
from regard.models.config import SpecialTokens
from regard.models.output_heads import LanguageModel
from regard.train import config as chosen
from regard.train.config import Config, Model
from regard.train.optimization import IGNORED
from regard.train.tasks.base import Batch, Task
from regard.train.tasks.build_model import text_model, vocabulary

__all__ = ["CausalTask"]


class CausalTask(Task):
    """Rows of running text, cut or packed; `perplexity` is e to the loss."""

    metrics = {"loss": False, "perplexity": False}  # noqa: RUF012 - read only

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        task = config.task
        assert isinstance(task, chosen.CausalLM)
        self.settings = task
        corpus = read_corpus(task.train_file, columns=("text",))
        self.data = {corpus.name: corpus.sha256}
        trained, held = split(corpus, task.validation_size, column="text", seed=config.training.seed)
        self.vocabulary = vocabulary(config.model, folder / "tokenizer.json", task.tokenizer, trained["text"])
        self.data["tokenizer.json"] = self.vocabulary.sha256
        if self.vocabulary.eos_token_id is None:
            raise InputError("the checkpoint's tokenizer has no token for the end of a text: take another checkpoint")
        self.filled = (
            self.vocabulary.eos_token_id if self.vocabulary.pad_token_id is None else self.vocabulary.pad_token_id
        )
        self.trained, self.held = (self._rows(one["text"]) for one in (trained, held))
        self.notes = (f"{corpus}", f"{len(trained):,} lines are trained on, {len(held):,} held out")
        self.lengths, self.held_lengths = ([len(row[0]) for row in rows] for rows in (self.trained, self.held))

    def model(self, chosen: Model) -> Any:
        """Return a decoder."""
        end = self.vocabulary.eos_token_id
        tokens = SpecialTokens(
            pad_token_id=self.vocabulary.pad_token_id, bos_token_id=self.vocabulary.bos_token_id, eos_token_id=end or 0
        )
        head = LanguageModel(tie_word_embeddings=True)
        return text_model(chosen, len(self.vocabulary), tokens, head, 2 * self.settings.block_size, "decoder")

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return inputs, and the token after each; in packed rows the next one of its document."""
        chosen = [(self.held if held else self.trained)[row] for row in rows]
        read, real = pad([row[0] for row in chosen], self.filled)  # no token attends to the padding after it
        labels, _ = pad([row[1] for row in chosen], IGNORED)
        inputs = {"input_ids": read}
        if self.settings.packing:
            inputs["documents"] = pad([row[2] for row in chosen], -1)[0]
            real = inputs["documents"] >= 0
        return Batch(inputs, labels, int(real.sum()))

    def evaluate(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the loss in nats a token, and the perplexity."""
        loss = super().evaluate(model, max_tokens_per_batch)["loss"]
        return {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}

    def save(self, folder: Path) -> None:
        """Save the tokenizer."""
        self.vocabulary.save(folder / "tokenizer.json")

    def _rows(self, texts: Sequence[str]) -> list[tuple[list[int], list[int], list[int]]]:
        """Return rows of inputs, labels and document numbers."""
        starts = (
            self.vocabulary.bos_token_id is not None and self.vocabulary.bos_token_id != self.vocabulary.eos_token_id
        )
        documents = self.vocabulary.encode(texts, bos=starts, eos=True)
        length = self.settings.block_size
        if not self.settings.packing:
            stream = [token for one in documents for token in one]
            return [(row[:-1], row[1:], []) for row in chunk_tokens(stream, length)]
        pieces = [row for one in documents if len(one) > 1 for row in chunk_tokens(one, length)]
        rows = []
        packed = pack_sequences([len(one) - 1 for one in pieces], length)
        read, numbers = collate_packed([one[:-1] for one in pieces], packed, length, self.filled)
        follow, _ = collate_packed([one[1:] for one in pieces], packed, length, IGNORED)
        for ids, labels, of in zip(read.tolist(), follow.tolist(), numbers.tolist(), strict=True):
            rows.append((ids, labels, of))
        return rows
