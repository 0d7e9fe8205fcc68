"""Classification: texts with labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from regard.data import Corpus, pad
from regard.errors import InputError
from regard.metrics import classification_scores
from regard.models.output_heads import SequenceClassification
from regard.train.model_types import CheckpointSettings, ModelRequest, ModelSettings
from regard.train.settings import FilePath, Length, Rows, TokenizerConfig, settings
from regard.train.tasks.base import Batch, HeldOut, TaskSettings, TextTask
from regard.train.training import Training

__all__ = ["ClassificationSettings", "ClassificationTask"]


@settings
class ClassificationSettings(TaskSettings):
    """Text classification.

    Args:
        train_file: TSV or CSV of text and label, JSON Lines (`text`, `label`), fastText's format, or gzip of these.
        validation_file: A file to evaluate on; nothing is then held out of `train_file`.
        test_file: A file that is scored at the end only.
        validation_size: Number of texts held out of `train_file` for evaluation.
        tokenizer: The tokenizer to train; a checkpoint has its own.
        max_length: Tokens of a text; longer texts are truncated, and counted.
    """

    type: ClassVar[str] = "classification"
    train_file: FilePath
    validation_file: FilePath | None = None
    test_file: FilePath | None = None
    validation_size: Rows = 200
    tokenizer: TokenizerConfig = TokenizerConfig()
    max_length: Length = 128


class ClassificationTask(TextTask):
    """Texts and their labels; `accuracy` is the fraction of right ones, `f1_macro` the mean F1 of all labels."""

    settings = ClassificationSettings
    metrics = {"loss": False, "accuracy": True, "f1_macro": True}  # noqa: RUF012 - read only
    columns = ("text", "label")

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        super().__init__(options, training, model, folder)
        longest = self.options.max_length
        cut = sum(length == longest for length in self.lengths)
        long = f"; {cut:,} are cut at {longest} tokens" if cut else ""
        sizes = f"{len(self.trained):,} texts are trained on, {len(self.held.rows):,} held out"
        self.notes = (*self.notes[:-1], f"{sizes}, {len(self.labels)} labels{long}")

    def check_tokenizer(self) -> None:
        """Raise where no token fills up a batch; without a padding token the end token does, as the mask hides both."""
        words = self.vocabulary
        is_padded_by_end = words.pad_token_id is None and words.eos_token_id is not None
        self.filled = self.needed_token(words, "eos" if is_padded_by_end else "pad")

    def check_split(self, trained: Corpus, held: Corpus) -> None:
        """Raise where there is one label, or one that only held-out texts have."""
        self.labels = sorted(set(trained["label"]))
        if len(self.labels) < 2:
            raise InputError(
                f"the texts of {trained.name} have one label, {self.labels[0]!r}: there is nothing to learn"
            )
        if unknown := sorted(set(held["label"]) - set(self.labels)):
            own = held.name != trained.name or self.options.validation_file or self.options.test_file
            raise InputError(
                f"the label {unknown[0]!r} of {held.name} is only among the held-out texts: give more examples of it"
                + (f" in {trained.name}" if own else ", or another `training.seed`")
            )

    def encode(self, corpus: Corpus) -> list[Any]:
        """Return each text's tokens and the number of its label."""
        options = {"truncation": True, "max_length": self.options.max_length}
        encoded = self.vocabulary(corpus["text"], **options)["input_ids"]
        return [(row, self.labels.index(label)) for row, label in zip(encoded, corpus["label"], strict=True)]

    def request(self, chosen: ModelSettings) -> ModelRequest:
        """Return what the task needs: an encoder, or the checkpoint's model, with an output head for these labels."""
        pretrained = isinstance(chosen, CheckpointSettings)
        self.output_head = SequenceClassification(
            len(self.labels), pooling="mean" if pretrained else "first", use_tanh_layer=False
        )
        return super().request(chosen)

    def rows(self, rows: Sequence[int], held: HeldOut | None = None) -> Batch:
        """Return texts and the numbers of their labels."""
        chosen = [(held.rows if held else self.trained)[row] for row in rows]
        ids, real = pad([row for row, _ in chosen], self.filled)
        given = {"input_ids": ids} | ({} if bool(real.all()) else {"attention_mask": real})
        return Batch(given, torch.tensor([label for _, label in chosen]), int(real.sum()))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, max_tokens_per_batch: int, held: HeldOut | None = None) -> dict[str, float]:
        """Return the loss, the accuracy (the fraction of right labels), and their macro F1."""
        held, device = held or self.held, next(model.parameters()).device
        predicted, true = list[str](), list[str]()
        for rows in held.batches(max_tokens_per_batch):
            batch = self.rows(rows, held).to(device)
            predicted += [self.labels[one] for one in model(**batch.inputs).logits.argmax(-1).tolist()]
            true += [self.labels[one] for one in batch.labels.tolist()]
        found = classification_scores(predicted, true)
        scores = {"accuracy": found.accuracy, "f1_macro": found.f1_macro}
        return super().evaluate(model, max_tokens_per_batch, held) | scores

    def save(self, folder: Path) -> None:
        """Save the tokenizer and the labels."""
        super().save(folder)
        (folder / "labels.txt").write_text("\n".join(self.labels) + "\n", "utf-8")
