"""What a decoder continues from: the encoder's part, which stays, and its own, which is new after every step."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import InputError
from regard.models.continuation import Prompts, batch_of, check_start_token
from regard.models.generation import GenerationMixin
from regard.models.inputs_outputs import SpecialTokens, token_mask
from regard.models.pretrained_mixin import PretrainedMixin
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.layers import Bridge, RecurrentEncoder, RecurrentState, decoder_of
from regard.models.standard_names import FORWARD
from regard.nn.checks import refuse_unknown
from regard.observe.intercept import is_watching

__all__ = [
    "RecurrentContinuation",
    "RecurrentOutput",
    "RecurrentSeq2Seq",
]


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
        _check_ids("tokens", tokens, self.model.config.tgt_vocab_size, "tgt_vocab_size", len(self.state.steps))
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


class RecurrentOutput(NamedTuple):
    """Logits of the token after each target token, the states they are computed from, and the attention's weights."""

    logits: Float[Tensor, "batch n tgt_vocab_size"]
    last_hidden_state: Float[Tensor, "batch n hidden_size"]
    weights: Float[Tensor, "batch n source"] | None = None


class RecurrentSeq2Seq(GenerationMixin, PretrainedMixin):
    """A GRU or LSTM encodes the source, another generates the target, with or without attention over the source.

    | attention | first state | step t | output |
    |---|---|---|---|
    | None | the encoder's last | h_t = cell([x_t; c], h_{t−1}), the fixed c only with `feed_context` | h_t |
    | "bahdanau" | tanh(W_s · ←h_1) | c_t = attend(h_{t−1}); h_t = cell([x_t; c_t], h_{t−1}) | h_t |
    | Luong's | the encoder's last | h_t = cell([x_t; h̃_{t−1}], h_{t−1}); c_t = attend(h_t) | h̃_t = tanh(W [c_t; h_t])
    |

    If the encoder is bidirectional, a learned linear bridge computes "the encoder's last" state from the states of both
    directions (see `Bridge`). The logits are W output + b. Two details differ from Bahdanau's model: the maxout layer
    over state, token and context is left out, and the cell is PyTorch's. In a decoder with several layers, the top cell
    attends to the source, and h̃ is an input of that cell (in Luong's stack of the lowest one). Without
    `input_feeding`, h̃ is not an input of any cell, and all steps are computed at once.

    Sources: Sutskever et al. 2014 (arXiv:1409.3215), Cho et al. 2014 (arXiv:1406.1078), Bahdanau et al. 2015
    (arXiv:1409.0473), Luong et al. 2015 (arXiv:1508.04025).

    Raises:
        InputError: Tokens do not fit the vocabularies, a source is not padded on the right, or weights are wanted
            where there is no attention.

    >>> import torch
    >>> config = RecurrentConfig(src_vocab_size=9, tgt_vocab_size=7, embedding_dim=4, hidden_size=6)
    >>> model = RecurrentSeq2Seq(config)
    >>> ids, target = torch.tensor([[3, 4, 5], [6, 0, 0]]), torch.tensor([[1, 4], [1, 5]])
    >>> found = model(ids, decoder_input_ids=target, return_weights=True)
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
        self.embedding = nn.Embedding(config.tgt_vocab_size, config.embedding_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.decoder = decoder_of(config)
        # A tied weight is once in the state dict, under its first name: safetensors refuses shared tensors.
        self.output = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.tgt_vocab_size)
        self.output_bias = nn.Parameter(torch.zeros(config.tgt_vocab_size)) if config.tie_word_embeddings else None
        if config.tie_word_embeddings:
            nn.init.normal_(self.embedding.weight, std=config.embedding_dim**-0.5)  # logits of unit size

    @refuse_unknown("RecurrentSeq2Seq.forward", FORWARD)
    def forward(
        self,
        input_ids: Int[Tensor, "batch source"],
        *,
        decoder_input_ids: Int[Tensor, "batch n"],
        attention_mask: Shaped[Tensor, "batch source"] | None = None,
        return_weights: bool = False,
    ) -> RecurrentOutput:
        """Run on the true target whatever was predicted (teacher forcing).

        Args:
            input_ids: Source tokens.
            decoder_input_ids: Target tokens, the start token first; logits[:, t] are those of the token after the t-th.
            attention_mask: 1 (or True) for tokens, 0 for padding, which is on the right and has no influence; by
                default 0 where input_ids are the padding token.
            return_weights: Return the weights of the attention too.
        """
        if return_weights and self.config.attention is None:
            raise InputError(
                "`return_weights=True` needs an attention, and this model has attention=None: build it with "
                'attention="bahdanau"'
            )
        state = self.encode(input_ids, attention_mask=attention_mask)
        _check_ids(
            "decoder_input_ids", decoder_input_ids, self.config.tgt_vocab_size, "tgt_vocab_size", input_ids.shape[0]
        )
        states, _, seen = self.decoder(self.dropout(self.embedding(decoder_input_ids)), state)
        return RecurrentOutput(self.logits(states), states, seen if return_weights else None)

    def encode(
        self, input_ids: Int[Tensor, "batch source"], *, attention_mask: Shaped[Tensor, "batch source"] | None = None
    ) -> RecurrentState:
        """Encode the source; return the state before the first target token."""
        ids = input_ids
        _check_ids("input_ids", ids, self.config.src_vocab_size, "src_vocab_size")
        mask = _mask_of(ids, attention_mask, self.config.pad_token_id)
        encoded = self.encoder(ids, mask)
        hidden, cells = self.bridge(encoded)
        context = encoded.hidden_state[:, -1].flatten(1) if self.config.feed_context else None
        steps = ids.new_zeros(ids.shape[0])
        return self.decoder.prepare(
            RecurrentState(hidden, steps, cells, None, context, encoded.last_hidden_state, None, mask)
        )

    def step(
        self, tokens: Int[Tensor, " batch"], state: RecurrentState
    ) -> tuple[Float[Tensor, "batch hidden"], RecurrentState]:
        """Run on one target token a row; return the input of the output layer, and the state after the token."""
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
        self, input_ids: Int[Tensor, "batch source"], *, attention_mask: Shaped[Tensor, "batch source"] | None = None
    ) -> RecurrentContinuation:
        """Begin to generate a target for each source, step by step."""
        return RecurrentContinuation(self, self.encode(input_ids, attention_mask=attention_mask))

    def continuation(
        self,
        input_ids: Prompts,
        *,
        attention_mask: Tensor | None = None,
        use_cache: bool = True,
        decoder_start_token_id: int | None = None,
        pad_token_id: int | None = None,
        eos_token_id: Sequence[int] | None = None,
    ) -> tuple[RecurrentContinuation, Tensor, None]:
        """Sources as decoding needs them: the text to continue, and its first token.

        Raises:
            InputError: It is called without its state, which is all that a recurrent model has.
        """
        if not use_cache:
            raise InputError(
                "a recurrent model continues from its state, and runs on nothing twice: leave `use_cache` out"
            )
        device, config = self.embedding.weight.device, self.config
        pad = config.pad_token_id if pad_token_id is None else pad_token_id
        if attention_mask is None and isinstance(input_ids, Tensor) and pad is not None:
            attention_mask = input_ids != pad  # as `encode` takes it
        ids, mask = batch_of(input_ids, pad, left=False, device=device, mask=attention_mask)
        with torch.no_grad():
            text = self.writing(ids, attention_mask=mask)
        start = config.bos_token_id if decoder_start_token_id is None else decoder_start_token_id
        return text, ids.new_full((len(ids), 1), check_start_token(start, config.tgt_vocab_size)), None

    def _tokens(self) -> SpecialTokens:
        return self.config.special_tokens  # type: ignore[no-any-return]


def _check_ids(name: str, ids: Tensor, vocabulary: int, counted: str, rows: int | None = None) -> None:
    """Raise unless `ids` are (batch, n) tokens of the vocabulary; `counted` is the option that says how many it has."""
    if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32) or 0 in ids.shape:
        raise InputError(
            f"`{name}` must be token ids (batch, length) of at least one token, got {ids.dtype} of shape "
            f"{tuple(ids.shape)}: write ids[None].long() for a single text"
        )
    if rows is not None and ids.shape[0] != rows:
        raise InputError(f"`{name}` must have a row for each of {rows} texts, got {ids.shape[0]}: pair them one to one")
    low, high = (int(one) for one in ids.aminmax())
    if low < 0 or high >= vocabulary:
        raise InputError(
            f"`{name}` must hold tokens from 0 to {vocabulary - 1}, got {low if low < 0 else high}: raise `{counted}` "
            "or use the tokenizer that the model was made for"
        )


def _mask_of(
    ids: Int[Tensor, "batch source"], mask: Shaped[Tensor, "batch source"] | None, pad_token_id: int | None
) -> Bool[Tensor, "batch source"] | None:
    """Return which ids are tokens: by default all but the padding; None where all are. Padding must be on the right."""
    if mask is None:
        if pad_token_id is None:
            return None
        mask = ids != pad_token_id
    seen = token_mask("attention_mask", mask, ids.shape)
    assert seen is not None
    if bool(seen.all()):
        return None
    if not bool(seen[:, 0].all()) or bool((seen[:, 1:] & ~seen[:, :-1]).any()):
        raise InputError(
            "`attention_mask` must be 1 for the first tokens of each source, one at least, and 0 for the rest, as the "
            "encoder runs both ways from end to end, got padding on the left or a gap: pad on the right"
        )
    return seen
