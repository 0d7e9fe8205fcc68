"""Recurrent cells that look at a memory at every step, as Bahdanau and as Luong have them."""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.checks import check_size
from regard.errors import InputError
from regard.functional import attention as attend
from regard.masks import BoundMask, Mask
from regard.nn.checks import check_width, public_module, visible_keys
from regard.nn.rnn_attention import AdditiveAttention, BilinearAttention
from regard.nn.value_module import ValueModule
from regard.scores import Additive, Concat, Score

__all__ = ["AttentionDecoderCell", "DecoderState", "PreparedMemory"]


class DecoderState(NamedTuple):
    """What goes from one step to the next: the hidden state, an LSTM's cell state, and Luong's h̃, which is fed in."""

    hidden_state: Float[Tensor, "batch hidden"]
    cell_state: Float[Tensor, "batch hidden"] | None = None
    attentional_hidden: Float[Tensor, "batch hidden"] | None = None


class PreparedMemory(NamedTuple):
    """The states of an encoder, and what of a score needs them alone: Bahdanau's U h_j, once a source."""

    memory: Float[Tensor, "batch keys memory"]
    keys: Float[Tensor, "batch keys kdim"]


@public_module(takes_jagged=False)
class AttentionDecoderCell(nn.Module):
    """One step of a decoder with attention over the states of an encoder.

    Formula, attention_architecture="bahdanau" (2015, arXiv:1409.0473): c_t = attention(h_{t−1}, memory);
    h_t = cell([x_t; c_t], h_{t−1}); the output is h_t

    attention_architecture="luong" (2015, arXiv:1508.04025, with input feeding): h_t = cell([x_t; h̃_{t−1}], h_{t−1});
    c_t = attention(h_t, memory); the output is h̃_t = tanh(W_c [c_t; h_t]), without bias

    The cell is PyTorch's: Bahdanau's own GRU resets the state before its matrix, and keeps where PyTorch's renews.

    Args:
        input_size: Width of x.
        hidden_size: Width of the state and of the output.
        memory_dim: Width of the encoder's states; `hidden_size` by default.
        attention_architecture: "bahdanau" (attention before the cell) or "luong" (after it).
        cell: "gru" or "lstm".
        attention: A module over (query, memory), or a score (scores.Dot(), scores.Concat(...)). By default
            AdditiveAttention for "bahdanau", and BilinearAttention ("general") for "luong".

    Raises:
        InputError: Widths do not fit, an architecture or cell does not exist, or the state lacks a part.

    >>> import torch
    >>> step = AttentionDecoderCell(4, 8, 6)
    >>> output, state, weights = step(torch.zeros(2, 4), torch.zeros(2, 5, 6), need_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([2, 8]), torch.Size([2, 5]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        memory_dim: int | None = None,
        *,
        attention_architecture: Literal["bahdanau", "luong"] = "bahdanau",
        cell: Literal["gru", "lstm"] = "gru",
        attention: Score | nn.Module | None = None,
    ) -> None:
        super().__init__()
        if attention_architecture not in ("bahdanau", "luong"):
            raise InputError(f'`attention_architecture` must be "bahdanau" or "luong", got {attention_architecture!r}')
        if cell not in ("gru", "lstm"):
            raise InputError(f'`cell` must be "gru" or "lstm", got {cell!r}')
        self.attention_architecture = attention_architecture
        self.input_size = check_size("input_size", input_size, "is that of the input")
        self.hidden_size = check_size("hidden_size", hidden_size, "is that of the state")
        memory_dim = hidden_size if memory_dim is None else memory_dim
        self.memory_dim = check_size("memory_dim", memory_dim, "is that of the memory")
        if attention is None:
            kind: Any = AdditiveAttention if attention_architecture == "bahdanau" else BilinearAttention
            attention = kind(hidden_size, self.memory_dim)
        self.attention = ValueModule(attention) if isinstance(attention, Score) else attention
        more = self.memory_dim if attention_architecture == "bahdanau" else hidden_size
        self.cell = (nn.GRUCell if cell == "gru" else nn.LSTMCell)(input_size + more, hidden_size)
        luong = attention_architecture == "luong"
        self.combine = nn.Linear(self.memory_dim + hidden_size, hidden_size, bias=False) if luong else None

    def start(self, hidden_state: Float[Tensor, "batch hidden"]) -> DecoderState:
        """Begin with this hidden state; what else there is begins with 0."""
        zeros = torch.zeros_like(hidden_state)
        return DecoderState(
            hidden_state,
            zeros if isinstance(self.cell, nn.LSTMCell) else None,
            zeros if self.combine is not None else None,
        )

    def prepare(self, memory: Float[Tensor, "batch keys memory"]) -> PreparedMemory:
        """Compute once what every step would compute again: the projection of the keys by an additive score.

        >>> import torch
        >>> step, memory = AttentionDecoderCell(4, 8, 6), torch.randn(2, 5, 6)
        >>> once = step.prepare(memory)
        >>> torch.allclose(step(torch.ones(2, 4), once)[0], step(torch.ones(2, 4), memory)[0])
        True
        """
        check_width("memory", memory, self.memory_dim, "memory_dim")
        score = self._score()
        project = None if score is None else _project(score, self.hidden_size, self.memory_dim)[0]
        return PreparedMemory(memory, memory if project is None else memory @ project.to(memory.dtype).T)

    def forward(
        self,
        x: Float[Tensor, "batch input"],
        memory: Float[Tensor, "batch keys memory"] | PreparedMemory,
        state: DecoderState | None = None,
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        key_padding_mask: Bool[Tensor, "batch keys"] | None = None,
        need_weights: bool = False,
        **asked: Any,
    ) -> tuple[Tensor, DecoderState] | tuple[Tensor, DecoderState, Tensor]:
        """Give (output, state) and, on request, the weights (batch, keys) before dropout.

        `memory` is the memory of the encoder, or `prepare(memory)`, which can be shared by many steps. `mask` and
        `key_padding_mask` (True hides) hide keys. All other arguments in `asked` are passed to the attention
        (`backend`, LocalAttention's `q_offset`). Without a state the first step begins with 0.
        """
        check_width("x", x, self.input_size, "input_size")
        if isinstance(memory, Tensor):
            memory = self.prepare(memory)
        state = self.start(x.new_zeros(x.shape[0], self.hidden_size)) if state is None else state
        lstm = isinstance(self.cell, nn.LSTMCell)
        if (lstm and state.cell_state is None) or (self.combine is not None and state.attentional_hidden is None):
            raise InputError("`state` lacks a part that this cell needs: begin with cell.start(hidden_state)")
        asked |= self._seen(mask, key_padding_mask, memory.memory)
        if self.combine is None:
            context, seen = self._look(state.hidden_state, memory, asked)
            hidden, kept = self._step(torch.cat([x, context], -1), state)
            output, state = hidden, DecoderState(hidden, kept)
        else:
            assert state.attentional_hidden is not None
            hidden, kept = self._step(torch.cat([x, state.attentional_hidden], -1), state)
            context, seen = self._look(hidden, memory, asked)
            output = torch.tanh(self.combine(torch.cat([context, hidden], -1)))
            state = DecoderState(hidden, kept, output)
        return (output, state, seen) if need_weights else (output, state)

    def _seen(
        self, mask: Mask | BoundMask | Tensor | None, key_padding_mask: Tensor | None, memory: Tensor
    ) -> dict[str, Any]:
        """Masks in the words of the attention: a module takes padding as it is, a score as a mask."""
        if self._score() is None and key_padding_mask is not None:
            return {"key_padding_mask": key_padding_mask} | ({} if mask is None else {"mask": mask})
        seen = visible_keys(None, mask, key_padding_mask, memory)
        return {} if seen is None else {"mask": seen}

    def _look(self, hidden: Tensor, memory: PreparedMemory, asked: dict[str, Any]) -> tuple[Tensor, Tensor]:
        query, score = hidden[:, None], self._score()
        if score is None:
            found = self.attention(query, memory.memory, need_weights=True, **asked)
        else:
            if isinstance(self.attention, AdditiveAttention) and self.training:
                asked = asked | {"dropout": self.attention.dropout}
            score = _project(score, self.hidden_size, self.memory_dim)[1]
            found = attend(query, memory.keys, memory.memory, score=score, return_weights=True, **asked)
        return found[0][:, 0], found[1].flatten(1)

    def _score(self) -> Score | None:
        """The score that is held; None for a module that is asked as a whole."""
        if isinstance(self.attention, AdditiveAttention):
            return self.attention._score()
        return self.attention() if isinstance(self.attention, ValueModule) else None

    def _step(self, x: Tensor, state: DecoderState) -> tuple[Tensor, Tensor | None]:
        if isinstance(self.cell, nn.LSTMCell):
            assert state.cell_state is not None
            return self.cell(x, (state.hidden_state, state.cell_state))  # type: ignore[no-any-return]
        return self.cell(x, state.hidden_state), None


def _project(score: Score, query_width: int, memory_dim: int) -> tuple[Tensor | None, Score]:
    """The matrix that meets the keys alone, if there is one, and the score of keys that have met it.

    A score that does not fit stays as it is: the attention refuses it in its own words.
    """
    if isinstance(score, Concat) and score.weight.shape[1] == query_width + memory_dim:
        w_query, w_key = score.weight.split([query_width, memory_dim], 1)
        score = Additive(w_query, w_key, score.vector, score.bias, score.softcap)
    if isinstance(score, Additive) and score.w_key is not None and score.w_key.shape[1] == memory_dim:
        return score.w_key, replace(score, w_key=None)
    return None, score
