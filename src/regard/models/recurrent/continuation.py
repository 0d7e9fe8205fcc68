"""Decoding step by step: what a search or a sampler drives."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.capture.intercept import is_watching
from regard.errors import InputError
from regard.models.recurrent.checks import check_ids
from regard.models.recurrent.state import RecurrentState
from regard.models.token_mask import token_mask

if TYPE_CHECKING:
    from regard.models.recurrent.seq2seq import RecurrentSeq2Seq

__all__ = ["RecurrentContinuation"]


class RecurrentContinuation:
    """Texts that are generated: `step` on tokens, get the logits of the next one; `state` is all that is kept.

    Gradients are recorded unless switched off, and dropout is that of the model's mode: `model.eval()` and
    `torch.no_grad()` are the caller's.

    Raises:
        InputError: Tokens do not fit the rows or the vocabulary, or a row has no token yet.
    """

    def __init__(self, model: "RecurrentSeq2Seq", state: RecurrentState) -> None:
        self.model, self.state = model, state
        self._output: Tensor | None = None  # after the last token of each row

    @property
    def together(self) -> bool:
        """Whether rows that have ended stay: regard.watch knows a text by its row."""
        return is_watching(self.model)

    @property
    def bos_token_id(self) -> int:
        """The first token of every target."""
        token: int = self.model.config.bos_token_id
        return token

    @property
    def eos_token_id(self) -> int:
        """What ends a text."""
        token: int = self.model.config.eos_token_id
        return token

    def step(
        self, tokens: Int[Tensor, "rows n"], attention_mask: Shaped[Tensor, "rows n"] | None = None
    ) -> Float[Tensor, "rows vocabulary"]:
        """Run on tokens after those before; return the logits of the next token of each row.

        Where `attention_mask` is 0 (or False) there is no token: the row stays as it is.
        """
        check_ids("tokens", tokens, self.model.config.tgt_vocab_size, "tgt_vocab_size", len(self.state.steps))
        mask = token_mask("attention_mask", attention_mask, tokens.shape)
        if mask is not None and self._output is None and not bool(mask.any(1).all()):
            raise InputError(
                "`attention_mask` must have a token in each row at the first step, got a row of padding only: begin "
                f"with the start token ({self.bos_token_id})"
            )
        for t in range(tokens.shape[1]):
            output, state = self.model.step(tokens[:, t], self.state)
            if mask is not None:
                state = state.where(mask[:, t], self.state)
                output = output if self._output is None else torch.where(mask[:, t, None], output, self._output)
            self.state, self._output = state, output
        assert self._output is not None
        return self.model.logits(self._output)

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these rows: repeated, reordered or left out."""
        self.state = self.state.select(rows)
        self._output = None if self._output is None else self._output[rows]
