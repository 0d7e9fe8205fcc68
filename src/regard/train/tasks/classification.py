"""Sentences with labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from regard.data import pad, read_corpus, split
from regard.errors import InputError
from regard.models.config import SpecialTokens
from regard.models.output_heads import SequenceClassification
from regard.train import config as chosen
from regard.train.callbacks import Sample
from regard.train.config import Checkpoint, Config, Model
from regard.train.tasks.base import Batch, Task
from regard.train.tasks.build_model import text_model, vocabulary

__all__ = ["ClassificationTask"]


class ClassificationTask(Task):
    """Texts and their labels; `accuracy` is the fraction of right ones."""

    metrics = {"loss": False, "accuracy": True}  # noqa: RUF012 - read only

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        task = config.task
        assert isinstance(task, chosen.Classification)
        self.settings = task
        corpus = read_corpus(task.train_file, columns=("text", "label"))
        self.data = {corpus.name: corpus.sha256}
        trained, held = split(corpus, task.validation_size, column="text", seed=config.training.seed)
        self.labels = sorted(set(trained["label"]))
        if len(self.labels) < 2:
            raise InputError(
                f"the texts of {corpus.name} have one label, {self.labels[0]!r}: there is nothing to learn"
            )
        if unknown := sorted(set(held["label"]) - set(self.labels)):
            raise InputError(
                f"the label {unknown[0]!r} is only among the held-out texts: give more examples of it, "
                "or another `training.seed`"
            )
        self.vocabulary = vocabulary(config.model, folder / "tokenizer.json", task.tokenizer, trained["text"])
        self.data["tokenizer.json"] = self.vocabulary.sha256
        self.held_texts = held
        self.trained, self.held = (self._rows(one["text"], one["label"]) for one in (trained, held))
        self.lengths, self.held_lengths = ([len(row) for row, _ in rows] for rows in (self.trained, self.held))
        cut = sum(length == task.max_length for length in self.lengths)
        long = f"; {cut:,} are cut at {task.max_length} tokens" if cut else ""
        counts = f"{len(trained):,} texts are trained on, {len(held):,} held out, {len(self.labels)} labels{long}"
        self.notes = (f"{corpus}", counts)

    def model(self, chosen: Model) -> Any:
        """Return an encoder, or the checkpoint's model, with an output head for these labels."""
        vocabulary = self.vocabulary
        tokens = SpecialTokens(
            pad_token_id=vocabulary.pad_token_id,
            bos_token_id=vocabulary.bos_token_id,
            eos_token_id=vocabulary.eos_token_id or 0,
        )
        pooled: Literal["mean", "first"] = "mean" if isinstance(chosen, Checkpoint) else "first"
        head = SequenceClassification(len(self.labels), pooling=pooled, use_tanh_layer=False)
        return text_model(chosen, len(vocabulary), tokens, head, 2 * self.settings.max_length, "encoder")

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return texts and the numbers of their labels."""
        chosen = [(self.held if held else self.trained)[row] for row in rows]
        ids, real = pad([row for row, _ in chosen], self.vocabulary.pad_token_id or 0)
        given = {"input_ids": ids} | ({} if bool(real.all()) else {"attention_mask": real})
        return Batch(given, torch.tensor([label for _, label in chosen]), int(real.sum()))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the loss, and the accuracy: the fraction of right labels."""
        predicted = self._predicted(model, max_tokens_per_batch)
        right = sum(predicted[row] == label for row, (_, label) in enumerate(self.held))
        return super().evaluate(model, max_tokens_per_batch) | {"accuracy": right / len(self.held)}

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Return no samples."""
        return ()

    def save(self, folder: Path) -> None:
        """Save the tokenizer and the labels."""
        self.vocabulary.save(folder / "tokenizer.json")
        (folder / "labels.txt").write_text("\n".join(self.labels) + "\n", "utf-8")

    def _predicted(self, model: nn.Module, max_tokens_per_batch: int) -> dict[int, int]:
        """Return the predicted label of each held-out text."""
        device, found = next(model.parameters()).device, dict[int, int]()
        for rows in self.held_batches(max_tokens_per_batch):
            predicted = model(**self.rows(rows, held=True).to(device).inputs).logits.argmax(-1)
            found |= dict(zip(rows, predicted.tolist(), strict=True))
        return found

    def _rows(self, texts: Sequence[str], labels: Sequence[str]) -> list[tuple[list[int], int]]:
        vocabulary = self.vocabulary
        encoded = vocabulary.encode(texts, bos=vocabulary.bos_token_id is not None)
        ends = [] if vocabulary.eos_token_id is None else [vocabulary.eos_token_id]
        cut = [[*one[: self.settings.max_length - len(ends)], *ends] for one in encoded]
        return [(row, self.labels.index(label)) for row, label in zip(cut, labels, strict=True)]
