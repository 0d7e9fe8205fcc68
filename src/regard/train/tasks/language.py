"""Language models: causal ones, which predict the next token of running text, and masked ones, which fill gaps."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.data import Corpus, chunk_tokens, collate_packed, mask_tokens, pack_sequences, pad
from regard.errors import InputError
from regard.models.output_heads import LanguageModel, MaskedLanguageModel
from regard.train.loss_and_optimizer import IGNORED
from regard.train.settings import FilePath, Length, Probability, Rows, TokenizerConfig, settings
from regard.train.tasks.base import Batch, TaskSettings, TextTask

__all__ = ["CausalLMSettings", "CausalTask", "MaskedLMSettings", "MaskedTask"]


@settings
class CausalLMSettings(TaskSettings):
    """Causal language modeling: predict the next token of running text.

    Args:
        train_file: Plain text, JSON Lines (`text`) or gzip of these; a line is a document.
        validation_size: Number of documents held out for evaluation.
        tokenizer: The tokenizer to train; a checkpoint has its own.
        block_size: Tokens in a row of a batch.
        packing: Whether documents are packed into rows in which none attends to another; otherwise the running text is
            cut into rows.
    """

    type: ClassVar[str] = "clm"
    sides: ClassVar[tuple[str, ...]] = ("decoder",)
    train_file: FilePath
    validation_size: Rows = 200
    tokenizer: TokenizerConfig = TokenizerConfig()
    block_size: Length = 128
    packing: bool = False


class CausalTask(TextTask):
    """Rows of running text, cut or packed; `perplexity` is e to the loss."""

    settings = CausalLMSettings
    metrics = {"loss": False, "perplexity": False}  # noqa: RUF012 - read only
    output_head = LanguageModel(tie_word_embeddings=True)

    def check_tokenizer(self) -> None:
        """Raise where there is no end token; without a padding token the end token fills up."""
        words = self.vocabulary
        if words.eos_token_id is None:
            raise InputError("the checkpoint's tokenizer has no token for the end of a text: take another checkpoint")
        self.filled = words.eos_token_id if words.pad_token_id is None else words.pad_token_id

    def encode(self, corpus: Corpus) -> list[tuple[list[int], list[int], list[int]]]:
        """Return rows of inputs, labels and document numbers."""
        words, length = self.vocabulary, self.options.block_size
        starts = words.bos_token_id is not None and words.bos_token_id != words.eos_token_id
        documents = words.encode(corpus["text"], bos=starts, eos=True)
        if not self.options.packing:
            stream = [token for one in documents for token in one]
            return [(row[:-1], row[1:], []) for row in chunk_tokens(stream, length)]
        pieces = [row for one in documents if len(one) > 1 for row in chunk_tokens(one, length)]
        packed = pack_sequences([len(one) - 1 for one in pieces], length)
        read, numbers = collate_packed([one[:-1] for one in pieces], packed, length, self.filled)
        follow, _ = collate_packed([one[1:] for one in pieces], packed, length, IGNORED)
        return list(zip(read.tolist(), follow.tolist(), numbers.tolist(), strict=True))

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return inputs, and the token after each; in packed rows the next one of its document."""
        chosen = [(self.held if held else self.trained)[row] for row in rows]
        read, real = pad([row[0] for row in chosen], self.filled)  # no token attends to the padding after it
        labels, _ = pad([row[1] for row in chosen], IGNORED)
        inputs = {"input_ids": read}
        if self.options.packing:
            inputs["documents"] = pad([row[2] for row in chosen], -1)[0]
            real = inputs["documents"] >= 0
        return Batch(inputs, labels, int(real.sum()))

    def evaluate(self, model: nn.Module, max_tokens_per_batch: int) -> dict[str, float]:
        """Return the loss in nats a token, and the perplexity."""
        loss = super().evaluate(model, max_tokens_per_batch)["loss"]
        return {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}


@settings
class MaskedLMSettings(TaskSettings):
    """Masked language modeling (Devlin et al. 2019, arXiv:1810.04805): 80 % masked, 10 % random, 10 % unchanged.

    Args:
        train_file: As for causal language modeling.
        validation_size: Number of documents held out for evaluation.
        tokenizer: The tokenizer to train; a checkpoint has its own.
        block_size: Tokens in a row of a batch.
        mlm_probability: Fraction of the tokens that are predicted.
    """

    type: ClassVar[str] = "mlm"
    train_file: FilePath
    validation_size: Rows = 200
    tokenizer: TokenizerConfig = TokenizerConfig()
    block_size: Length = 128
    mlm_probability: Probability = 0.15


class MaskedTask(TextTask):
    """Texts with masked tokens; in held-out texts the same ones are masked each time."""

    settings = MaskedLMSettings
    output_head = MaskedLanguageModel()

    def check_tokenizer(self) -> None:
        """Raise where a token is missing."""
        words = self.vocabulary
        if None in (words.mask_token_id, words.bos_token_id, words.eos_token_id, words.pad_token_id):
            raise InputError("the checkpoint's tokenizer has no mask, start, end or padding token: take another one")

    def encode(self, corpus: Corpus) -> list[Any]:
        """Return pieces of each text, between a start and an end token."""
        words, inside = self.vocabulary, self.options.block_size - 2
        documents = [one for one in words.encode(corpus["text"]) if one]
        cut = [one[first : first + inside] for one in documents for first in range(0, len(one), max(1, inside))]
        return [[words.bos_token_id, *one, words.eos_token_id] for one in cut]

    def rows(self, rows: Sequence[int], *, held: bool) -> Batch:
        """Return texts with some tokens masked: others each time, in held-out texts always the same."""
        chosen = [(self.held if held else self.trained)[row] for row in rows]
        ids, real = pad(chosen, self.vocabulary.pad_token_id or 0)
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
        assert words.mask_token_id is not None
        return mask_tokens(
            ids,
            real,
            len(words),
            words.mask_token_id,
            all_special_ids=words.all_special_ids,
            generator=torch.Generator().manual_seed(seed),
            mlm_probability=self.options.mlm_probability,
        )
