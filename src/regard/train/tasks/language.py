"""Language models: causal ones, which predict the next token of running text, and masked ones, which fill gaps."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.data import Corpus, chunk_tokens, collate_packed, mask_tokens, pack_sequences, pad, read_corpus
from regard.data.running_text import encode_running_text
from regard.errors import InputError
from regard.models.output_heads import LanguageModel, MaskedLanguageModel
from regard.train.loss_and_optimizer import IGNORED
from regard.train.settings import FilePath, Length, Probability, Rows, TokenizerConfig, settings
from regard.train.tasks.base import Batch, HeldOut, TaskSettings, TextTask

__all__ = ["CausalLMSettings", "CausalTask", "MaskedLMSettings", "MaskedTask"]


@settings
class CausalLMSettings(TaskSettings):
    """Causal language modeling: predict the next token of running text.

    Args:
        train_file: Plain text, JSON Lines (`text`, a document a line) or gzip of these.
        validation_file: A file to evaluate on; nothing is then held out of `train_file`.
        test_file: A file that is scored at the end only.
        validation_size: Number of documents held out of `train_file` for evaluation; of running text its last lines.
        keep_linebreaks: Whether plain text is one running text, whose lines keep their ends and indentation; otherwise
            each line is a document, without the spaces around it. By default the opposite of `packing`.
        tokenizer: The tokenizer to train; a checkpoint has its own.
        block_size: Tokens in a row of a batch.
        packing: Whether documents are packed into rows in which none attends to another, lines of plain text too;
            otherwise all is one stream of tokens that is cut into rows.
    """

    type: ClassVar[str] = "clm"
    sides: ClassVar[tuple[str, ...]] = ("decoder",)
    train_file: FilePath
    validation_file: FilePath | None = None
    test_file: FilePath | None = None
    validation_size: Rows = 200
    keep_linebreaks: bool | None = None
    tokenizer: TokenizerConfig = TokenizerConfig()
    block_size: Length = 128
    packing: bool = False

    def settled(self, before: Any) -> "CausalLMSettings":
        """Keep line ends where a new run leaves that open and packs no documents."""
        if self.keep_linebreaks is not None:
            return self
        is_resumed = isinstance(before, CausalLMSettings)  # else the folder has a run of another task, or none
        return replace(self, keep_linebreaks=before.keep_linebreaks if is_resumed else not self.packing)


class CausalTask(TextTask):
    """Rows of running text, cut or packed; `perplexity` is e to the loss."""

    settings = CausalLMSettings
    metrics = {"loss": False, "perplexity": False}  # noqa: RUF012 - read only
    output_head = LanguageModel(tie_word_embeddings=True)
    ends = False  # a prompt is continued

    def check_tokenizer(self) -> None:
        """Raise where no token ends a document; without a padding token the end token fills up."""
        self.end = self.tokens.end_token_id(self.vocabulary.eos_token_id)
        self.filled = self.end if self.tokens.pad_token_id is None else self.tokens.pad_token_id

    def read(self, path: str) -> Corpus:
        """Return the documents of a file, or the lines of its running text.

        Raises:
            InputError: As for `read_corpus`; or running text is to be packed, which has no documents.
        """
        corpus = read_corpus(path, columns=self.columns, keep_linebreaks=True)
        keeps_line_ends = self.options.settled(None).keep_linebreaks
        if not corpus.is_running_text:
            # Before, documents lost the spaces around them without `keep_linebreaks`: such a run is not resumed.
            is_as_before = keeps_line_ends or all(text == text.strip() for text in corpus["text"])
            return replace(corpus, is_by_place=corpus.is_by_place and is_as_before)
        if not keeps_line_ends:
            return super().read(path)
        if self.options.packing:
            raise InputError(
                f"`task.packing` packs documents, and {corpus.name} is one running text with `task.keep_linebreaks`: "
                "leave `keep_linebreaks` out, and each line is a document, or leave `packing` out"
            )
        return corpus

    def encode(self, corpus: Corpus) -> list[tuple[list[int], list[int], list[int]]]:
        """Return rows of inputs, labels and document numbers; an end token follows each document."""
        length, ends = self.options.block_size, self.tokens.eos_token_ids
        if corpus.is_running_text:
            before, after = self.vocabulary.template
            documents = [[*before, *encode_running_text(self.vocabulary, corpus["text"]), *after]]
        else:
            documents = self.vocabulary(corpus["text"])["input_ids"]
        documents = [one if one and one[-1] in ends else [*one, self.end] for one in documents]
        if not self.options.packing:
            stream = [token for one in documents for token in one]
            return [(row[:-1], row[1:], []) for row in chunk_tokens(stream, length)]
        pieces = [row for one in documents if len(one) > 1 for row in chunk_tokens(one, length)]
        packed = pack_sequences([len(one) - 1 for one in pieces], length)
        read, numbers = collate_packed([one[:-1] for one in pieces], packed, length, self.filled)
        follow, _ = collate_packed([one[1:] for one in pieces], packed, length, IGNORED)
        return list(zip(read.tolist(), follow.tolist(), numbers.tolist(), strict=True))

    def rows(self, rows: Sequence[int], held: HeldOut | None = None) -> Batch:
        """Return inputs, and the token after each; in packed rows the next one of its document."""
        chosen = [(held.rows if held else self.trained)[row] for row in rows]
        read, real = pad([row[0] for row in chosen], self.filled)  # no token attends to the padding after it
        labels, _ = pad([row[1] for row in chosen], IGNORED)
        inputs = {"input_ids": read}
        if self.options.packing:
            inputs["documents"] = pad([row[2] for row in chosen], -1)[0]
            real = inputs["documents"] >= 0
        return Batch(inputs, labels, int(real.sum()))

    def num_positions(self, row: Any) -> int:
        """Return the number of tokens of a row; of packed documents those of the longest."""
        if not self.options.packing:
            return len(row[0])
        return max(Counter(number for number in row[2] if number >= 0).values())

    def evaluate(self, model: nn.Module, max_tokens_per_batch: int, held: HeldOut | None = None) -> dict[str, float]:
        """Return the loss in nats a token, and the perplexity."""
        loss = super().evaluate(model, max_tokens_per_batch, held)["loss"]
        return {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}


@settings
class MaskedLMSettings(TaskSettings):
    """Masked language modeling (Devlin et al. 2019, arXiv:1810.04805): 80 % masked, 10 % random, 10 % unchanged.

    Args:
        train_file: Plain text, a document a line, JSON Lines (`text`) or gzip of these.
        validation_file: A file to evaluate on; nothing is then held out of `train_file`.
        test_file: A file that is scored at the end only.
        validation_size: Number of documents held out of `train_file` for evaluation.
        tokenizer: The tokenizer to train; a checkpoint has its own.
        block_size: Tokens in a row of a batch.
        mlm_probability: Fraction of the tokens that are predicted.
    """

    type: ClassVar[str] = "mlm"
    train_file: FilePath
    validation_file: FilePath | None = None
    test_file: FilePath | None = None
    validation_size: Rows = 200
    tokenizer: TokenizerConfig = TokenizerConfig()
    block_size: Length = 128
    mlm_probability: Probability = 0.15


class MaskedTask(TextTask):
    """Texts with masked tokens; in held-out texts the same ones are masked each time."""

    settings = MaskedLMSettings
    output_head = MaskedLanguageModel()

    def check_tokenizer(self) -> None:
        """Raise where the mask or the padding token is missing, or no text fits between the special tokens."""
        self.mask, self.filled = (self.needed_token(self.vocabulary, role) for role in ("mask", "pad"))
        before, after = self.vocabulary.template
        self.inside = self.options.block_size - len(before) - len(after)
        if self.inside < 1:
            raise InputError(
                f"`task.block_size` must be above {len(before) + len(after)}, the number of special tokens around each "
                f"text, got {self.options.block_size}"
            )

    def encode(self, corpus: Corpus) -> list[Any]:
        """Return pieces of each text, between the special tokens of the tokenizer's template."""
        words, inside = self.vocabulary, self.inside
        documents = [one for one in words.encode(corpus["text"]) if one]
        cut = [one[first : first + inside] for one in documents for first in range(0, len(one), inside)]
        return [words.build_inputs_with_special_tokens(one) for one in cut]

    def rows(self, rows: Sequence[int], held: HeldOut | None = None) -> Batch:
        """Return texts with some tokens masked: others each time, in held-out texts always the same."""
        chosen = [(held.rows if held else self.trained)[row] for row in rows]
        ids, real = pad(chosen, self.filled)
        if held:  # each by itself, whatever the others of the batch are
            inputs, labels = ids.clone(), torch.full_like(ids, IGNORED)
            for at, (row, one) in enumerate(zip(rows, chosen, strict=True)):
                read, wanted = self._masked(torch.tensor([one]), torch.ones(1, len(one), dtype=torch.bool), row)
                inputs[at, : len(one)], labels[at, : len(one)] = read[0], wanted[0]
        else:
            inputs, labels = self._masked(ids, real, int(torch.randint(2**31, ())))
        given = {"input_ids": inputs} | ({} if bool(real.all()) else {"attention_mask": real})
        return Batch(given, labels, int(real.sum()))

    def _masked(self, ids: Tensor, real: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        words = self.vocabulary
        return mask_tokens(
            ids,
            real,
            len(words),
            self.mask,
            all_special_ids=words.all_special_ids,
            generator=torch.Generator().manual_seed(seed),
            mlm_probability=self.options.mlm_probability,
        )
