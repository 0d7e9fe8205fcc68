"""The encoder of a recurrent encoder–decoder, and how the decoder's first state comes from its last ones."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.models.recurrent.config import RecurrentConfig

__all__ = ["Bridge", "Encoded", "RecurrentEncoder", "recurrence"]


class Encoded(NamedTuple):
    """What the encoder gives: all states of the top layer, and the last ones of every layer and direction."""

    last_hidden_state: Float[Tensor, "batch source memory"]
    hidden_state: Float[Tensor, "batch layers directions hidden"]
    cell_state: Float[Tensor, "batch layers directions hidden"] | None


def recurrence(config: RecurrentConfig, width: int, layers: int, *, bidirectional: bool = False) -> nn.GRU | nn.LSTM:
    """Make an nn.GRU or nn.LSTM of the config's cell, hidden width and dropout."""
    kind = nn.GRU if config.cell == "gru" else nn.LSTM
    dropout = config.dropout if layers > 1 else 0.0  # PyTorch warns where there is no layer to drop between
    return kind(width, config.hidden_size, layers, batch_first=True, dropout=dropout, bidirectional=bidirectional)


class RecurrentEncoder(nn.Module):
    """An embedding and an nn.GRU or nn.LSTM, which runs over each text up to its own end."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.src_vocab_size, config.embedding_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = recurrence(config, config.embedding_dim, config.num_layers, bidirectional=config.bidirectional)

    def forward(
        self, ids: Int[Tensor, "batch source"], attention_mask: Bool[Tensor, "batch source"] | None = None
    ) -> Encoded:
        """Encode texts; `attention_mask` is False for padding on the right, where the states are 0."""
        x = self.dropout(self.embedding(ids))
        if attention_mask is None:
            memory, last = self.layers(x)
        else:
            packed = pack_padded_sequence(x, attention_mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
            packed_memory, last = self.layers(packed)
            memory, _ = pad_packed_sequence(packed_memory, batch_first=True, total_length=ids.shape[1])
        hidden, cells = last if isinstance(last, tuple) else (last, None)
        directions = 2 if self.layers.bidirectional else 1
        shape = (-1, directions, *hidden.shape[1:])
        return Encoded(
            memory, hidden.view(shape).movedim(2, 0), None if cells is None else cells.view(shape).movedim(2, 0)
        )


class Bridge(nn.Module):
    """From the encoder's last states to the decoder's first, layer by layer.

    Bahdanau: s_0 = tanh(W_s · ←h_1), the state of the backward direction at the first token
    (the last state h_S where the encoder has one direction); an LSTM's cell state begins with 0.

    Otherwise the encoder's last state itself (Sutskever, Luong). Where it has two directions, B [→h_S; ←h_1] + b, of
    hidden and cell states alike.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.bahdanau = config.attention == "bahdanau"
        hidden = config.hidden_size
        both = config.bidirectional and not self.bahdanau
        width = 2 * hidden if both else hidden
        count = config.num_layers if both or self.bahdanau else 0
        self.hidden_state = nn.ModuleList(nn.Linear(width, hidden, bias=both) for _ in range(count))
        self.cell_state = nn.ModuleList(
            nn.Linear(width, hidden) for _ in range(count if both and config.cell == "lstm" else 0)
        )

    def forward(
        self, encoded: Encoded
    ) -> tuple[Float[Tensor, "batch layers hidden"], Float[Tensor, "batch layers hidden"] | None]:
        """Give the first hidden states and, for an LSTM, cell states."""
        if self.bahdanau:
            first = _each(self.hidden_state, encoded.hidden_state[:, :, -1]).tanh()
            return first, None if encoded.cell_state is None else torch.zeros_like(first)
        cells = None if encoded.cell_state is None else _each(self.cell_state, encoded.cell_state.flatten(2))
        return _each(self.hidden_state, encoded.hidden_state.flatten(2)), cells


def _each(linear: nn.ModuleList, states: Float[Tensor, "batch layers width"]) -> Float[Tensor, "batch layers hidden"]:
    """Each layer's states through its own matrix; as they are where there is none."""
    return torch.stack([one(states[:, layer]) for layer, one in enumerate(linear)], 1) if len(linear) else states
