"""The base of all tasks: a table [task], rows of tokens, batches of them, and the loss on held-out rows."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.data import Corpus, Tokenizer, batches, pad, read_corpus
from regard.data.corpus_notes import unknown_characters
from regard.data.running_text import parts_of
from regard.errors import InputError
from regard.models import SpecialTokens
from regard.models.output_heads import LanguageModel, OutputHead
from regard.train.callbacks import Sample
from regard.train.loss_and_optimizer import IGNORED, OneProcess, summed_cross_entropy
from regard.train.model_types import CheckpointSettings, ModelRequest, ModelSettings
from regard.train.optional_parts import optional_part
from regard.train.settings import TokenizerConfig
from regard.train.tasks.data_files import read_files
from regard.train.training import Training

__all__ = ["Batch", "HeldOut", "PairsTask", "Task", "TaskSettings", "TextTask"]

TokenPairs = Sequence[tuple[list[int], list[int]]]  # (source, labels): both with their special tokens


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


@dataclass(frozen=True)
class HeldOut:
    """Rows that are scored and never trained on: those held out, or those of a `test_file`.

    `lengths` are the tokens of each row, of pairs both sides' numbers; a translation's rows have `texts` and
    `references` too.
    """

    rows: Sequence[Any]
    lengths: Sequence[Any]
    texts: Corpus = field(default_factory=lambda: Corpus({"text": ()}))
    references: Sequence[list[str]] = ()

    @classmethod
    def of_pairs(cls, rows: TokenPairs) -> "HeldOut":
        """The rows of pairs, with their lengths."""
        return cls(list(rows), _pair_lengths(rows))

    def without(self, rows: Collection[int]) -> "HeldOut":
        """The other rows."""
        left = sorted(set(range(len(self.rows))) - set(rows))
        return HeldOut(
            [self.rows[row] for row in left],
            [self.lengths[row] for row in left],
            self.texts.select(left) if len(self.texts) else self.texts,
            [self.references[row] for row in left] if self.references else (),
        )

    def batches(self, max_tokens_per_batch: int) -> list[tuple[int, ...]]:
        """Return the rows in batches of this many tokens, or of one row where it is longer."""
        limit = max(max_tokens_per_batch, _longest(self.lengths))
        return batches(self.lengths, max_tokens_per_batch=limit, seed=0, epoch=0)


def _pair_lengths(rows: TokenPairs) -> list[tuple[int, int]]:
    return [(len(source), len(labels)) for source, labels in rows]


def _longest(lengths: Sequence[Any]) -> int:
    return max(one if isinstance(one, int) else max(one) for one in lengths)


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

    def settled(self, before: Any) -> Any:
        """Return these settings with what they leave open chosen, so that run.json has it.

        Args:
            before: The settings of the run that is resumed; None for a new run.
        """
        del before
        return self


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
        self.trained: Sequence[Any] = ()
        self.held = HeldOut((), ())
        self.test: HeldOut | None = None  # the rows of a `test_file`
        self.tokenizers: dict[str, Tokenizer] = {}  # by the names of their files, as they are saved

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

    def rows(self, rows: Sequence[int], held: HeldOut | None = None) -> Batch:
        """Return rows as a batch, of held-out data or of the training data."""
        raise NotImplementedError  # each task defines it

    def save(self, folder: Path) -> None:
        """Save what is needed besides the model to use it: tokenizers, and what a checkpoint says of them."""
        for name, tokenizer in self.tokenizers.items():
            tokenizer.save(folder / name)
        files = self.model_settings.tokenizer_files() if self.tokenizers else {}
        if (one := self.tokenizers.get("tokenizer.json")) is not None:
            files = {"tokenizer_config.json": one.to_config()} | files
        for name, content in files.items():
            (folder / name).write_bytes(content)

    def leave_out_long_rows(self, model: Any) -> None:
        """Leave out held-out rows that the model has no positions for, and count them in the notes.

        Raises:
            InputError: Nothing is left of them, or a row is too long that is trained on.
        """
        limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        if limit is None:
            return
        if (longest := max(map(self.num_positions, self.trained), default=0)) > limit:
            keys = [f"`task.{key}`" for key in ("block_size", "max_length") if hasattr(self.options, key)]
            raise InputError(
                f"a row that is trained on has {longest:,} tokens, and the model has positions for {limit:,}: "
                + (f"lower {keys[0]} to {limit:,}" if keys else "take shorter rows")
            )
        own = getattr(self.options, "validation_file", None)
        self.held = self._within(self.held, limit, "held-out rows" if own is None else f"rows of validation_file {own}")
        if self.test is not None:
            self.test = self._within(self.test, limit, f"rows of test_file {self.options.test_file}")

    def _within(self, held: HeldOut, limit: int, what: str) -> HeldOut:
        long = [row for row, one in enumerate(held.rows) if self.num_positions(one) > limit]
        if not long:
            return held
        number = self.num_positions(held.rows[long[0]])
        note = (
            f"{len(long):,} of {len(held.rows):,} {what} are longer than the {limit:,} positions of the model; the "
            f"first is row {long[0] + 1:,}, of {number:,} tokens"
        )
        if len(long) == len(held.rows):
            raise InputError(f"{note}: nothing is left to score")
        self.notes = (*self.notes, f"{note}: they are left out")
        return held.without(long)

    def num_positions(self, row: Any) -> int:
        """Return the number of positions that a row takes in the model."""
        raise NotImplementedError  # each task defines it

    def epoch(self, max_tokens_per_batch: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
        """Return the rows of each batch of an epoch."""
        return batches(self.lengths, max_tokens_per_batch=max_tokens_per_batch, seed=seed, epoch=epoch)

    def batch(self, rows: Sequence[int], *, labelled: bool = True) -> Batch:
        """Return a training batch; without labels where a process has no rows of its own in a step."""
        made = self.rows(rows)
        return made if labelled else replace(made, labels=torch.full_like(made.labels, IGNORED), num_tokens=0)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, max_tokens_per_batch: int, held: HeldOut | None = None) -> dict[str, float]:
        """Return the scores on held-out rows, `self.held` by default; the loss is in nats, without label smoothing."""
        held = held or self.held
        device = next(model.parameters()).device
        found, num_labels = 0.0, 0
        with self.ranks.over(model) as cut:
            for rows in held.batches(max_tokens_per_batch):
                batch = self.rows(rows, held).to(device)
                found += float(summed_cross_entropy(model(**batch.inputs).logits, cut(batch.labels)))
                num_labels += int(batch.num_labels)
        found = float(self.ranks.sum_parts(torch.tensor(found, dtype=torch.float64, device=device)))
        return {"loss": found / max(1, num_labels)}

    def final(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the scores of the final model; those on the rows of a `test_file` begin with "test_".

        Where the latter cannot be computed they are left out, and the others stay.
        """
        self.counted = ()
        scores = self.final_scores(model, max_tokens_per_batch, self.held)
        if self.test is not None:
            # Ranks that share the tokens of a row wait for each other inside: there an error stops all of them.
            alone = self.ranks.sequence_ranks == 1
            with optional_part("the part `test_` of scores.json", self.warnings) if alone else nullcontext():
                tested = self.final_scores(model, max_tokens_per_batch, self.test)
                scores |= {f"test_{name}": score for name, score in tested.items()}
        return scores

    def final_scores(self, model: nn.Module, max_tokens_per_batch: int, held: HeldOut) -> dict[str, float]:
        """Return the scores of the final model on held-out data."""
        return self.evaluate(model, max_tokens_per_batch, held)

    def samples(self, model: nn.Module) -> tuple[Sample, ...]:
        """Return the model's predictions for a few held-out texts."""
        del model
        return ()

    def draw(self, model: nn.Module, folder: Path) -> None:
        """Draw the model's attention in a figure, where there is one."""

    def train_tokenizer(
        self, name: str, tokenizer: TokenizerConfig, texts: Sequence[str], *, bos: bool = False, eos: bool = False
    ) -> Tokenizer:
        """Return the tokenizer of a checkpoint; from scratch the one of the run's folder, or one trained now.

        Args:
            name: The name of its file.
            tokenizer: How it is trained.
            texts: What it is trained on.
            bos, eos: Whether the template of one that is trained puts the begin and the end token around each text.

        Raises:
            InputError: The checkpoint has none.
        """
        path = self.folder / name
        if (own := self.model_settings.tokenizer(name)) is not None:
            file, found = own
            saved = found
        elif path.is_file():
            file, saved, found = name, Tokenizer.load(path), Tokenizer.load_saved(path, bos=bos, eos=eos)
        else:
            options = {key: getattr(tokenizer, key) for key in ("model_type", "vocab_size", "lowercase")}
            file, saved = name, Tokenizer.train(texts, **options).with_template(bos=bos, eos=eos)
            # `Folder.begin` saves it once run.json is there: before, a kill would leave a file of no run.
            found = saved
        self.tokenizers[file] = saved
        self.data[name] = saved.sha256
        if own is not None and not found.is_made_by_regard:  # whose tokens are set by other files, too
            self.data[f"{name} (special tokens)"] = found.special_tokens_sha256
        return found

    def unknown(self, name: str, trained: Corpus, held: Corpus, tokenizer: Tokenizer, key: str) -> tuple[str, ...]:
        """Return a note where a tokenizer, that of `task.<key>`, does not know characters of a column."""
        is_pretrained = isinstance(self.model_settings, CheckpointSettings)
        way = "take another checkpoint for such texts" if is_pretrained else f"raise `task.{key}.vocab_size`"
        return unknown_characters(name, trained[name], held[name], tokenizer, way)

    def needed_token(self, tokenizer: Tokenizer, role: str) -> int:
        """Return the token of a role; raise where the checkpoint's configuration names none."""
        found: int | None = getattr(tokenizer, f"{role}_token_id")
        if found is None:
            raise InputError(
                f"this task needs `{role}_token`, and the tokenizer of the checkpoint has none: name one of its tokens "
                f"as `{role}_token` in its tokenizer_config.json"
            )
        return found


class TextTask(Task):
    """A task of texts in one language, with one tokenizer: the base of language models and classification."""

    columns: ClassVar[tuple[str, ...]] = ("text",)
    output_head: OutputHead
    ends: ClassVar[bool] = True  # whether the template of a tokenizer trained for the task ends a text

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        super().__init__(options, training, model, folder)
        files = read_files(self.options, self.read, column="text", seed=training.seed)
        self.data, trained, held = dict(files.hashes), files.training, files.validation
        for one in filter(None, (held, files.test)):
            self.check_split(trained, one)
        texts = list(parts_of(trained["text"])) if trained.is_running_text else trained["text"]
        # Running text goes on from row to row: its parts begin with no token, and neither do prompts.
        bos = not trained.is_running_text
        self.vocabulary = self.train_tokenizer("tokenizer.json", self.options.tokenizer, texts, bos=bos, eos=self.ends)
        self.tokens = model.generation_tokens(self.vocabulary, self.options.sides)
        self.check_tokenizer()
        self.trained, self.held = self.encode(trained), self._held_out(held)
        self.lengths = list(map(self.length, self.trained))
        self.test = None if files.test is None else self._held_out(files.test)
        self.notes = (
            *files.notes,
            *self.unknown("text", trained, held, self.vocabulary, "tokenizer"),
            _counted(trained, held, is_split=self.options.validation_file is None),
        )

    def _held_out(self, corpus: Corpus) -> HeldOut:
        rows = self.encode(corpus)
        return HeldOut(rows, list(map(self.length, rows)))

    def read(self, path: str) -> Corpus:
        """Return the texts of a file, without spaces around them."""
        corpus = read_corpus(path, columns=self.columns)
        indented = sum(text[:1].isspace() for text in corpus["text"])
        note = f"{indented:,} lines begin with spaces, which are left out"
        if not hasattr(self.options, "keep_linebreaks"):  # which is off here otherwise
            note += "; a task clm with keep_linebreaks keeps them"
        corpus = replace(corpus, notes=(*corpus.notes, note)) if indented else corpus
        return corpus.map("text", str.strip)

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

    def num_positions(self, row: Any) -> int:
        """Return the number of tokens of a row."""
        return self.length(row)

    def model(self, chosen: ModelSettings) -> Any:
        """Return a model for the task; raise InputError where a row has a token that it has no vector of."""
        model = super().model(chosen)
        size = model.config.vocab_size
        if len(self.vocabulary) > size:  # as in a checkpoint to whose tokenizer tokens were added
            sets = [("trained on", self.trained), ("held out", self.held.rows)]
            sets += [] if self.test is None else [("of `task.test_file`", self.test.rows)]
            for what, number, row in ((what, number, row) for what, rows in sets for number, row in enumerate(rows, 1)):
                parts = row[:2] if isinstance(row, tuple) else (row,)  # tokens and what follows them, or a class
                ids = [one for part in parts if isinstance(part, list) for one in part]
                if (most := int(max(ids, default=0))) >= size:
                    token = self.vocabulary.convert_ids_to_tokens([most])[0]
                    raise InputError(
                        f"the token {token!r} ({most}) of row {number} ({what}) is beyond the model's vocabulary of "
                        f"{size}: take the tokenizer that belongs to the model"
                    )
        return model

    def request(self, chosen: ModelSettings) -> ModelRequest:
        """Return what the task needs of its model: positions for twice the longest row."""
        longest = 2 * getattr(self.options, "block_size", getattr(self.options, "max_length", 0))
        return ModelRequest(self.options.sides, len(self.vocabulary), self.tokens, self.output_head, longest)


def _counted(trained: Corpus, held: Corpus, *, is_split: bool) -> str:
    """Say what is trained on and what is held out."""
    if not trained.is_running_text:
        return f"{len(trained):,} lines are trained on, {len(held):,} held out"
    if is_split:
        return f"running text of {len(trained) + len(held):,} lines: the last {len(held):,} lines are held out"
    return f"running text of {len(trained):,} lines is trained on, {held.name} with {len(held):,} lines is held out"


class PairsTask(Task):
    """A task of pairs; a subclass calls `take` with its rows."""

    def __init__(self, options: Any, training: Training, model: ModelSettings, folder: Path) -> None:
        super().__init__(options, training, model, folder)
        self.sizes = 0, 0  # of the vocabularies
        self.tokens = SpecialTokens()  # those that the model generates with

    def take(self, trained: TokenPairs, held: TokenPairs) -> None:
        """Set the rows."""
        self.trained, self.lengths = list(trained), _pair_lengths(trained)
        self.held = HeldOut.of_pairs(held)

    def num_positions(self, row: Any) -> int:
        """Return the number of tokens of the longer side."""
        return max(map(len, row))

    def request(self, chosen: ModelSettings) -> ModelRequest:
        """Return what the task needs: an encoder–decoder with positions for twice the longest row.

        Those of a `test_file` do not count: it may be given when the model is trained already.
        """
        longest = _longest((*self.lengths, *self.held.lengths))
        head = LanguageModel(tie_word_embeddings=True, bias=True)
        return ModelRequest(self.options.sides, self.sizes[0], self.tokens, head, 2 * longest, self.sizes[1])

    def rows(self, rows: Sequence[int], held: HeldOut | None = None) -> Batch:
        """Return sources and labels; the decoder's inputs are the start token and all labels but the last."""
        chosen = [(held.rows if held else self.trained)[row] for row in rows]
        filled, start = self.tokens.pad_token_id, self.tokens.decoder_prefix[0]
        assert filled is not None
        ids, real = pad([source for source, _ in chosen], filled)
        read, _ = pad([[start, *row[:-1]] for _, row in chosen], filled)  # no token attends to the padding after it
        labels, _ = pad([row for _, row in chosen], IGNORED)
        inputs = {"input_ids": ids, "decoder_input_ids": read}
        inputs |= {} if bool(real.all()) else {"attention_mask": real}
        return Batch(inputs, labels, int(real.sum()) + int((labels != IGNORED).sum()))
