"""The base of all tasks: a table [task], rows of tokens, batches of them, and the loss on held-out rows."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.data import Corpus, Tokenizer, batches, pad, read_corpus, split
from regard.errors import InputError
from regard.models import SpecialTokens
from regard.models.output_heads import LanguageModel, OutputHead
from regard.train.callbacks import Sample
from regard.train.loss_and_optimizer import IGNORED, OneProcess, summed_cross_entropy
from regard.train.model_types import ModelRequest, ModelSettings
from regard.train.optional_parts import optional_part
from regard.train.settings import TokenizerConfig
from regard.train.training import Training

__all__ = ["Batch", "PairsTask", "Task", "TaskSettings", "TextTask"]

TokenPairs = Sequence[tuple[list[int], list[int]]]  # (source, target): no start tokens, the source with an end token


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


class TaskSettings:
    """The base of all tables [task]."""

    type: ClassVar[str]
    sides: ClassVar[tuple[str, ...]] = ("encoder",)  # of the model

    def least_symbols(self) -> int:
        """Return the least size of each vocabulary that is known without the data."""
        return 0

    def check_memory(self, there: int) -> None:
        """Raise InputError where the data take more bytes than there are."""
        del there


class Task:
    """A task with its data: what is trained on and what is held out. It is exported by `tasks/__init__.py`.

    Args:
        options, training, model: The tables [task], of the class `settings`, [training] and [model] of the run.
        folder: The folder of the tokenizers that are trained for the run.
    """

    settings: ClassVar[type[TaskSettings]]
    metrics: ClassVar[dict[str, bool]] = {"loss": False}  # by name: whether greater is better; the first is the default

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        self.options, self.training, self.model_settings, self.folder = options, training, model, folder
        self.ranks = OneProcess()  # or those over which a row's tokens lie
        self.data: dict[str, str] = {}  # each file's SHA-256, tokenizers' too: with another, tokens mean something else
        self.notes: tuple[str, ...] = ()  # what people should know of the data
        self.counted: tuple[str, ...] = ()  # how the final scores were counted
        self.warnings: list[str] = []  # of what was left out, until the trainer takes them
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

    def optional_score(self, name: str) -> AbstractContextManager[None]:
        """Do without a score that cannot be computed, unless it is the one that measures improvement."""
        chosen, _ = self.metric(self.training.metric_for_best_model)
        return nullcontext() if name == chosen else optional_part(f"the score {name}", self.warnings)

    def request(self, chosen: ModelSettings) -> ModelRequest:
        """Return what the task needs of its model."""
        raise NotImplementedError  # each task defines it

    def model(self, chosen: ModelSettings) -> Any:
        """Return a model for the task."""
        return chosen.build(self.request(chosen))

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return rows as a batch, of the held-out or of the training data."""
        raise NotImplementedError  # each task defines it

    def save(self, folder: Path) -> None:
        """Save what is needed besides the model to use it."""

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
        with self.ranks.over(model) as cut:
            for rows in self.held_batches(max_tokens_per_batch):
                batch = self.rows(rows, held=True).to(device)
                found += float(summed_cross_entropy(model(**batch.inputs).logits, cut(batch.labels)))
                num_labels += int(batch.num_labels)
        found = float(self.ranks.sum_parts(torch.tensor(found, dtype=torch.float64, device=device)))
        return {"loss": found / max(1, num_labels)}

    def final(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the scores of the final model."""
        return self.evaluate(model, max_tokens_per_batch)

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Return the model's predictions for a few held-out texts."""
        del model
        return ()

    def draw(self, model: nn.Module, folder: Path) -> None:
        """Draw the model's attention in a figure, where there is one."""

    def train_tokenizer(self, name: str, tokenizer: TokenizerConfig, texts: Sequence[str]) -> Tokenizer:
        """Return the tokenizer of a checkpoint; from scratch the one of the run's folder, or one trained now.

        Raises:
            InputError: The checkpoint has none.
        """
        found = self._tokenizer(name, tokenizer, texts)
        self.data[name] = found.sha256
        return found

    def _tokenizer(self, name: str, tokenizer: TokenizerConfig, texts: Sequence[str]) -> Tokenizer:
        path = self.folder / name
        if (own := self.model_settings.tokenizer(name)) is not None:
            return own
        if path.is_file():
            return Tokenizer.load(path)
        # `Folder.begin` saves it once run.json is there: before, a kill would leave a file of no run.
        return Tokenizer.train(
            texts, model_type=tokenizer.model_type, vocab_size=tokenizer.vocab_size, lowercase=tokenizer.lowercase
        )


class TextTask(Task):
    """A task of texts in one language, with one tokenizer: the base of language models and classification."""

    columns: ClassVar[tuple[str, ...]] = ("text",)
    output_head: OutputHead

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        super().__init__(options, training, model, folder)
        corpus = read_corpus(self.options.train_file, columns=self.columns)
        self.corpus = corpus
        self.data = {corpus.name: corpus.sha256}
        trained, held = split(corpus, self.options.validation_size, column="text", seed=training.seed)
        self.check_split(trained, held)
        self.vocabulary = self.train_tokenizer("tokenizer.json", self.options.tokenizer, trained["text"])
        self.check_tokenizer()
        self.trained, self.held = self.encode(trained), self.encode(held)
        self.lengths, self.held_lengths = (list(map(self.length, rows)) for rows in (self.trained, self.held))
        self.notes = (f"{corpus}", f"{len(trained):,} lines are trained on, {len(held):,} held out")

    def check_split(self, trained: Corpus, held: Corpus) -> None:
        """Raise InputError where the task cannot learn from these texts."""

    def check_tokenizer(self) -> None:
        """Raise InputError where the tokenizer lacks a token that the task needs."""

    def encode(self, corpus: Corpus) -> list[Any]:
        """Return the rows of a corpus."""
        raise NotImplementedError  # each task defines it

    def length(self, row: Any) -> int:
        """Return the number of tokens of a row, which are its first part where it has several."""
        return len(row[0] if isinstance(row, tuple) else row)

    def request(self, chosen: ModelSettings) -> ModelRequest:
        """Return what the task needs of its model: positions for twice the longest row."""
        longest = 2 * getattr(self.options, "block_size", getattr(self.options, "max_length", 0))
        tokens = special_tokens(self.vocabulary)
        return ModelRequest(self.options.sides, len(self.vocabulary), tokens, self.output_head, longest)

    def save(self, folder: Path) -> None:
        """Save the tokenizer."""
        self.vocabulary.save(folder / "tokenizer.json")


class PairsTask(Task):
    """A task of pairs; a subclass calls `take` with its rows."""

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        super().__init__(options, training, model, folder)
        self.sizes = 0, 0  # of the vocabularies
        self.tokens = SpecialTokens()  # those that the model generates with

    def take(self, trained: TokenPairs, held: TokenPairs) -> None:
        """Set the rows."""
        self.trained, self.held = list(trained), list(held)
        more = len(self.tokens.decoder_prefix)
        self.lengths, self.held_lengths = ([(len(a), len(b) + more) for a, b in rows] for rows in (trained, held))

    def request(self, chosen: ModelSettings) -> ModelRequest:
        """Return what the task needs: an encoder–decoder with positions for twice the longest row."""
        longest = max(max(pair) for pair in (*self.lengths, *self.held_lengths))
        head = LanguageModel(tie_word_embeddings=True, bias=True)
        return ModelRequest(self.options.sides, self.sizes[0], self.tokens, head, 2 * longest, self.sizes[1])

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return sources and targets: decoder inputs begin as generation does, labels end with the end token."""
        chosen = [(self.held if held else self.trained)[row] for row in rows]
        filled, prefix, end = self.tokens.pad_token_id or 0, self.tokens.decoder_prefix, self.tokens.eos_token_ids[0]
        targets = [[*prefix, *target, end] for _, target in chosen]
        ids, real = pad([source for source, _ in chosen], filled)
        read, _ = pad([target[:-1] for target in targets], filled)  # no token attends to the padding after it
        labels, _ = pad([target[1:] for target in targets], IGNORED)
        inputs = {"input_ids": ids, "decoder_input_ids": read}
        inputs |= {} if bool(real.all()) else {"attention_mask": real}
        return Batch(inputs, labels, int(real.sum()) + int((labels != IGNORED).sum()))


def special_tokens(vocabulary: Tokenizer) -> SpecialTokens:
    """Return the special tokens of a model that writes with this tokenizer."""
    return SpecialTokens(
        pad_token_id=vocabulary.pad_token_id,
        bos_token_id=vocabulary.bos_token_id,
        eos_token_id=vocabulary.eos_token_id,
    )
