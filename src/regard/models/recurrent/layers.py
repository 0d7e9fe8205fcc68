"""The parts of a recurrent encoder–decoder: the encoder, the bridge from its last states, the decoders, their state."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.functional import attention as attend
from regard.masks import Padding
from regard.models.recurrent.config import RecurrentConfig
from regard.nn import (
    AdditiveAttention,
    AttentionDecoderCell,
    BilinearAttention,
    DecoderState,
    LocalAttention,
    ValueModule,
)
from regard.nn.attention_decoder import PreparedMemory
from regard.scores import Concat, Dot, Score

__all__ = [
    "Bridge",
    "Decoder",
    "Encoded",
    "ParallelDecoder",
    "PlainDecoder",
    "RecurrentEncoder",
    "RecurrentState",
    "SteppingDecoder",
    "decoder_of",
    "recurrence",
]


class RecurrentState(NamedTuple):
    """Hidden states of all layers, what the next step needs beside them, and what the attention needs of the source.

    >>> state = RecurrentState(torch.zeros(2, 1, 3), torch.tensor([4, 5]))
    >>> state.select(torch.tensor([1, 1, 0])).steps
    tensor([5, 5, 4])
    """

    hidden_state: Float[Tensor, "batch layers hidden"]
    steps: Int[Tensor, " batch"]  # number of target tokens so far
    cell_state: Float[Tensor, "batch layers hidden"] | None = None  # an LSTM's
    attentional_hidden: Float[Tensor, "batch hidden"] | None = None  # Luong's h̃
    context: Float[Tensor, "batch memory"] | None = None  # the fixed vector, where every step gets it
    encoder_last_hidden_state: Float[Tensor, "batch source memory"] | None = None
    proj_keys: Float[Tensor, "batch source key_width"] | None = None  # what the score compares
    encoder_attention_mask: Bool[Tensor, "batch source"] | None = None  # None: all are tokens

    def select(self, rows: Int[Tensor, " chosen"]) -> "RecurrentState":
        """Take these rows: repeated, reordered or left out."""
        return RecurrentState(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]

    def where(self, condition: Bool[Tensor, " batch"], other: "RecurrentState") -> "RecurrentState":
        """Take this state in the rows where `condition` is True, and the other elsewhere, as torch.Tensor.where."""
        changed = {}
        for name in ("hidden_state", "steps", "cell_state", "attentional_hidden"):
            new, old = getattr(self, name), getattr(other, name)
            if new is not None:
                changed[name] = torch.where(condition.view(-1, *[1] * (new.ndim - 1)), new, old)
        return self._replace(**changed)


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


Decoded = tuple[Tensor, RecurrentState, Tensor | None]  # outputs, the state after them, weights


class PlainDecoder(nn.Module):
    """h = layers([x; c]): the source is known from the first state, and from the context c where it is fed."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.feed_context = config.feed_context
        self.layers = recurrence(
            config, config.embedding_dim + config.encoder_output_size * self.feed_context, config.num_layers
        )

    def forward(self, x: Float[Tensor, "batch n width"], state: RecurrentState) -> Decoded:
        """Read n embedded tokens."""
        if state.context is not None:
            x = torch.cat([x, state.context[:, None].expand(-1, x.shape[1], -1)], -1)
        outputs, hidden, cells = _run(self.layers, x, state.hidden_state, state.cell_state)
        return outputs, state._replace(hidden_state=hidden, cell_state=cells, steps=state.steps + x.shape[1]), None

    def prepare(self, state: RecurrentState) -> RecurrentState:
        """Keep nothing of the source but what is in the first state."""
        return state._replace(encoder_last_hidden_state=None, encoder_attention_mask=None)


class SteppingDecoder(nn.Module):
    """The attention cell on top, which needs the step before for its own; layers below see only the target.

    In Luong's stack h̃ enters the lowest layer; here it enters the top one, so that those below run over all steps.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        below = config.num_layers - 1
        self.layers = recurrence(config, config.embedding_dim, below) if below else None
        self.dropout = nn.Dropout(config.dropout)
        self.local, self.luong = config.local, config.attention != "bahdanau"
        self.cross_attention = AttentionDecoderCell(
            config.hidden_size if below else config.embedding_dim,
            config.hidden_size,
            config.encoder_output_size,
            attention_architecture="luong" if self.luong else "bahdanau",
            cell=config.cell,
            attention=_attention_of(config),
        )

    def prepare(self, state: RecurrentState) -> RecurrentState:
        """Project the keys once; begin with h̃ = 0."""
        assert state.encoder_last_hidden_state is not None
        keys = self.cross_attention.prepare(state.encoder_last_hidden_state).keys
        return state._replace(
            proj_keys=keys, attentional_hidden=torch.zeros_like(state.hidden_state[:, -1]) if self.luong else None
        )

    def forward(self, x: Float[Tensor, "batch n width"], state: RecurrentState) -> Decoded:
        """Read n embedded tokens, one after the other."""
        assert state.encoder_last_hidden_state is not None
        assert state.proj_keys is not None
        hidden, cells = (
            state.hidden_state[:, :-1],
            state.cell_state if state.cell_state is None else state.cell_state[:, :-1],
        )
        if self.layers is not None:
            x, hidden, cells = _run(self.layers, x, hidden, cells)
            x = self.dropout(x)
        memory = PreparedMemory(state.encoder_last_hidden_state, state.proj_keys)
        top = DecoderState(
            state.hidden_state[:, -1],
            None if state.cell_state is None else state.cell_state[:, -1],
            state.attentional_hidden,
        )
        outputs, weights, asked = [], [], _asked(state, self.local)
        for t, one in enumerate(x.unbind(1)):
            more = asked | {"q_offset": state.steps + t} if self.local else asked
            output, top, seen = self.cross_attention(one, memory, top, need_weights=True, **more)
            outputs.append(output)
            weights.append(seen)
        state = state._replace(
            hidden_state=torch.cat([hidden, top.hidden_state[:, None]], 1),
            cell_state=None
            if cells is None or top.cell_state is None
            else torch.cat([cells, top.cell_state[:, None]], 1),
            attentional_hidden=top.attentional_hidden,
            steps=state.steps + x.shape[1],
        )
        return torch.stack(outputs, 1), state, torch.stack(weights, 1)


class ParallelDecoder(nn.Module):
    """h = layers(x), c = attention(h, memory), h̃ = tanh(W_c [c; h]): Luong without input feeding, all steps at once."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.local = config.local
        self.layers = recurrence(config, config.embedding_dim, config.num_layers)
        found = _attention_of(config)
        self.cross_attention = _Scored(found) if isinstance(found, Score) else found
        self.combine = nn.Linear(config.encoder_output_size + config.hidden_size, config.hidden_size, bias=False)

    def prepare(self, state: RecurrentState) -> RecurrentState:
        """Take the memory as it is."""
        return state

    def forward(self, x: Float[Tensor, "batch n width"], state: RecurrentState) -> Decoded:
        """Read n embedded tokens."""
        states, hidden, cells = _run(self.layers, x, state.hidden_state, state.cell_state)
        asked = _asked(state, self.local) | ({"q_offset": state.steps} if self.local else {})
        context, weights = self.cross_attention(states, state.encoder_last_hidden_state, need_weights=True, **asked)
        outputs = torch.tanh(self.combine(torch.cat([context, states], -1)))
        return outputs, state._replace(hidden_state=hidden, cell_state=cells, steps=state.steps + x.shape[1]), weights


Decoder = PlainDecoder | SteppingDecoder | ParallelDecoder


def decoder_of(config: RecurrentConfig) -> Decoder:
    """Choose the decoder: only where a step needs the attention of the one before is it a loop."""
    if config.attention is None:
        return PlainDecoder(config)
    return SteppingDecoder(config) if config.input_feeding else ParallelDecoder(config)


class _Scored(nn.Module):
    """Attention by a score, as a module, so that whoever watches knows its place."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = ValueModule(score)

    def forward(self, query: Tensor, memory: Tensor, *, need_weights: bool = False, **asked: Any) -> Any:
        return attend(query, memory, memory, score=self.score(), return_weights=need_weights, **asked)


def _attention_of(config: RecurrentConfig) -> Score | nn.Module:
    hidden, memory = config.hidden_size, config.encoder_output_size
    if config.attention == "bahdanau":
        return AdditiveAttention(hidden, memory, hidden_features=hidden)
    if config.attention == "general":
        return BilinearAttention(hidden, memory)
    if config.attention == "dot":
        return Dot()
    if config.attention == "concat":
        # As nn.Linear draws a matrix of so many columns.
        weight = torch.empty(hidden, hidden + memory).uniform_(-1, 1) * (hidden + memory) ** -0.5
        vector = torch.empty(hidden).uniform_(-1, 1) * hidden**-0.5
        return Concat(nn.Parameter(weight), nn.Parameter(vector))
    alignment: Any = "monotonic" if config.attention == "local-m" else "predictive"
    return LocalAttention(hidden, config.radius, kdim=memory, alignment=alignment)


def _asked(state: RecurrentState, local: bool) -> dict[str, Any]:
    """The padding, in the words of the attention."""
    if local:
        return {} if state.encoder_attention_mask is None else {"key_padding_mask": ~state.encoder_attention_mask}
    return {} if state.encoder_attention_mask is None else {"mask": Padding(state.encoder_attention_mask)}


def _run(
    layers: nn.GRU | nn.LSTM, x: Tensor, hidden: Tensor, cells: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run layers whose states are batch first."""
    first = hidden.transpose(0, 1).contiguous()
    if cells is None:
        outputs, last = layers(x, first)
        return outputs, last.transpose(0, 1), None
    outputs, (last, kept) = layers(x, (first, cells.transpose(0, 1).contiguous()))
    return outputs, last.transpose(0, 1), kept.transpose(0, 1)
