"""The recurrent encoder–decoder."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.models.config import SpecialTokens
from regard.models.generation import Prompts, Writes, batch_of
from regard.models.pretrained_mixin import Saved
from regard.models.recurrent.checks import check_ids, real_of
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.continuation import RecurrentContinuation
from regard.models.recurrent.decoder import decoder_of
from regard.models.recurrent.encoder import Bridge, RecurrentEncoder
from regard.models.recurrent.state import RecurrentState

__all__ = ["RecurrentOutput", "RecurrentSeq2Seq"]


class RecurrentOutput(NamedTuple):
    """Logits of the token behind each target token, the states they are read from, and the attention's weights."""

    logits: Float[Tensor, "batch n vocabulary"]
    states: Float[Tensor, "batch n hidden"]
    weights: Float[Tensor, "batch n source"] | None = None


class RecurrentSeq2Seq(Writes, Saved):
    """A GRU or LSTM reads the source, another writes the target; attention may stand between them.

    | attention | first state | step t | output |
    |---|---|---|---|
    | None | the encoder's last | h_t = cell([x_t; c], h_{t−1}), the fixed c only with `feed_context` | h_t |
    | "bahdanau" | tanh(W_s · ←h_1) | c_t = attend(h_{t−1}); h_t = cell([x_t; c_t], h_{t−1}) | h_t |
    | Luong's | the encoder's last | h_t = cell([x_t; h̃_{t−1}], h_{t−1}); c_t = attend(h_t) | h̃_t = tanh(W [c_t; h_t]) |

    "The encoder's last" of two directions goes through a learned linear bridge (see `Bridge`). The logits are W output
    + b; Bahdanau's maxout read-out over state, token and context is left out, and the cell is PyTorch's. With several
    layers the attention cell is the top one and those below read the target alone, where Luong's h̃ enters the lowest;
    without `input_feeding` there is no h̃ in the step, and all steps are computed at once.

    Sources: Sutskever et al. 2014 (arXiv:1409.3215), Cho et al. 2014 (arXiv:1406.1078), Bahdanau et al. 2015
    (arXiv:1409.0473), Luong et al. 2015 (arXiv:1508.04025).

    Raises:
        InputError: Tokens do not fit the vocabularies, a source is not padded on the right, or weights are wanted
            where there is no attention.

    >>> import torch
    >>> config = RecurrentConfig(source_vocabulary=9, target_vocabulary=7, width=4, hidden=6)
    >>> model = RecurrentSeq2Seq(config)
    >>> found = model(torch.tensor([[3, 4, 5], [6, 0, 0]]), torch.tensor([[1, 4], [1, 5]]), weights=True)
    >>> found.logits.shape, found.weights[1].tolist()
    (torch.Size([2, 2, 7]), [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    """

    config_kinds = (RecurrentConfig,)

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        if not isinstance(config, RecurrentConfig):
            raise InputError(f"`config` must be a RecurrentConfig, got {type(config).__name__}")
        self.config = config
        self.encoder = RecurrentEncoder(config)
        self.bridge = Bridge(config)
        self.embedding = nn.Embedding(config.target_vocabulary, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.decoder = decoder_of(config)
        # A tied weight stands once in the state dict, under its first name: safetensors refuses shared tensors.
        self.output = None if config.tied else nn.Linear(config.hidden, config.target_vocabulary)
        self.output_bias = nn.Parameter(torch.zeros(config.target_vocabulary)) if config.tied else None
        if config.tied:
            nn.init.normal_(self.embedding.weight, std=config.width**-0.5)  # logits of unit size

    def forward(
        self,
        ids: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch n"],
        *,
        real: Bool[Tensor, "batch source"] | None = None,
        weights: bool = False,
    ) -> RecurrentOutput:
        """Read the true target whatever was predicted (teacher forcing).

        Args:
            ids: Source tokens.
            target: Target tokens, the start token first; logits[:, t] are those of the token behind target[:, t].
            real: False for padding, which is on the right and has no influence; by default where ids are `pad_token`.
            weights: Give the weights of the attention too.
        """
        if weights and self.config.attention is None:
            raise InputError(
                "`weights=True` asks for weights that attention=None does not have: build the model with "
                'attention="bahdanau"'
            )
        state = self.encode(ids, real)
        check_ids("target", target, self.config.target_vocabulary, "target_vocabulary", len(ids))
        states, _, seen = self.decoder(self.dropout(self.embedding(target)), state)
        return RecurrentOutput(self.logits(states), states, seen if weights else None)

    def encode(
        self, ids: Int[Tensor, "batch source"], real: Bool[Tensor, "batch source"] | None = None
    ) -> RecurrentState:
        """Read the source; give the state before the first target token."""
        check_ids("ids", ids, self.config.source_vocabulary, "source_vocabulary")
        real = real_of(ids, real, self.config.pad_token)
        encoded = self.encoder(ids, real)
        hidden, cells = self.bridge(encoded)
        context = encoded.hidden[:, -1].flatten(1) if self.config.feed_context else None
        steps = ids.new_zeros(len(ids))
        return self.decoder.prepare(RecurrentState(hidden, steps, cells, None, context, encoded.memory, None, real))

    def step(
        self, tokens: Int[Tensor, " batch"], state: RecurrentState
    ) -> tuple[Float[Tensor, "batch hidden"], RecurrentState]:
        """Read one target token a row; give what the output layer reads, and the state behind the token."""
        output, state, _ = self.decoder(self.dropout(self.embedding(tokens[:, None])), state)
        return output[:, 0], state

    def logits(self, states: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch vocabulary"]:
        """Score every word of the target vocabulary."""
        states = self.dropout(states)
        if self.output is None:
            return functional.linear(states, self.embedding.weight, self.output_bias)
        scores: Tensor = self.output(states)
        return scores

    def writing(
        self, ids: Int[Tensor, "batch source"], real: Bool[Tensor, "batch source"] | None = None
    ) -> RecurrentContinuation:
        """Begin to write a target for each source, step by step."""
        return RecurrentContinuation(self, self.encode(ids, real))

    def continuation(
        self, prompts: Prompts, *, real: Tensor | None = None, cached: bool = True
    ) -> tuple[RecurrentContinuation, Tensor, None]:
        """Sources as decoding wants them: the text that goes on, and what it reads first.

        Raises:
            InputError: It is asked to go without its state, which is all that a recurrent model has.
        """
        if not cached:
            raise InputError("a recurrent model goes on from its state and reads nothing twice: leave `cached` out")
        device, config = self.embedding.weight.device, self.config
        if real is None and isinstance(prompts, Tensor) and config.pad_token is not None:
            real = prompts != config.pad_token  # as `encode` takes it
        ids, real = batch_of(prompts, config.pad_token, left=False, device=device, real=real)
        with torch.no_grad():
            text = self.writing(ids, real)
        return text, ids.new_full((len(ids), 1), config.start_token), None

    def _tokens(self) -> SpecialTokens:
        config = self.config
        return SpecialTokens(
            pad_token_id=config.pad_token, bos_token_id=config.start_token, eos_token_id=config.stop_token
        )
