"""What a recurrent encoder–decoder is made of."""

from dataclasses import dataclass
from typing import Literal

from regard.checks import check_probability, check_size
from regard.errors import InputError
from regard.models.inputs_outputs import SpecialTokens
from regard.models.standard_names import RECURRENT_CONFIG
from regard.nn.checks import refuse_unknown

__all__ = ["LUONG", "AttentionKind", "RecurrentConfig"]

AttentionKind = Literal["bahdanau", "dot", "general", "concat", "local-m", "local-p"]

LUONG = ("dot", "general", "concat", "local-m", "local-p")


@refuse_unknown("RecurrentConfig", RECURRENT_CONFIG)
@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """The sizes and kinds of a RecurrentSeq2Seq; `dataclasses.asdict` gives JSON, `RecurrentConfig(**it)` the config.

    An option without effect is refused: `radius` where nothing is local, `feed_context` beside an attention.

    Args:
        src_vocab_size: Number of source tokens.
        tgt_vocab_size: Number of target tokens.
        embedding_dim: Dimension of both embeddings.
        hidden_size: Dimension of the states, of each direction in the encoder.
        num_layers: Number of layers, of the encoder and of the decoder.
        cell: "gru" or "lstm".
        bidirectional: Whether the encoder runs in both directions; its states then have 2 · hidden_size entries.
        attention: None is the fixed context vector (Sutskever et al. 2014, arXiv:1409.3215; Cho et al. 2014,
            arXiv:1406.1078); "bahdanau" (2015, arXiv:1409.0473); "dot", "general", "concat", "local-m", "local-p"
            (Luong et al. 2015, arXiv:1508.04025).
        radius: D of "local-m" and "local-p", how many positions on either side are seen.
        input_feeding: Whether Luong's h̃ enters the next step; without it all steps attend at once in training.
        feed_context: Without attention: whether the encoder's last state enters every step, as Cho has it, or only
            the first, as Sutskever has it.
        dropout: The probability of dropping, on embeddings, between layers and before the output layer.
        tie_word_embeddings: Whether the output layer is the target embedding; needs embedding_dim = hidden_size.
        pad_token_id: Fills up batches of sources; None where there is none.
        bos_token_id: The first token of every target.
        eos_token_id: What ends a text.

    Raises:
        InputError: A size, kind, token or combination does not exist or has no effect.

    >>> config = RecurrentConfig(src_vocab_size=50, tgt_vocab_size=40, embedding_dim=16, hidden_size=32)
    >>> config.attention, config.encoder_output_size
    ('bahdanau', 64)
    """

    src_vocab_size: int
    tgt_vocab_size: int
    embedding_dim: int
    hidden_size: int
    num_layers: int = 1
    cell: Literal["gru", "lstm"] = "gru"
    bidirectional: bool = True
    attention: AttentionKind | None = "bahdanau"
    radius: int = 10
    input_feeding: bool = True
    feed_context: bool = False
    dropout: float = 0.0
    tie_word_embeddings: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int = 1
    eos_token_id: int = 2

    def __post_init__(self) -> None:
        check_size("src_vocab_size", self.src_vocab_size, "counts the source tokens")
        check_size("tgt_vocab_size", self.tgt_vocab_size, "counts the target tokens")
        check_size("embedding_dim", self.embedding_dim, "is that of the embeddings")
        check_size("hidden_size", self.hidden_size, "is that of the states")
        check_size("num_layers", self.num_layers, "counts the layers on either side")
        check_size("radius", self.radius, "counts the positions on either side")
        check_probability("dropout", self.dropout)
        for name in ("bidirectional", "input_feeding", "feed_context", "tie_word_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"`{name}` must be True or False, got {getattr(self, name)!r}")
        _check_kinds(self)
        _check_combinations(self)
        _check_token("pad_token_id", self.pad_token_id, "src_vocab_size", self.src_vocab_size)
        _check_token("bos_token_id", self.bos_token_id, "tgt_vocab_size", self.tgt_vocab_size)
        _check_token("eos_token_id", self.eos_token_id, "tgt_vocab_size", self.tgt_vocab_size)

    @property
    def encoder_output_size(self) -> int:
        """Width of the encoder's states, both directions together."""
        return self.hidden_size * (2 if self.bidirectional else 1)

    @property
    def special_tokens(self) -> SpecialTokens:
        """The tokens that mean something, as a Transformer's configuration has them."""
        return SpecialTokens(
            pad_token_id=self.pad_token_id, bos_token_id=self.bos_token_id, eos_token_id=self.eos_token_id
        )

    @property
    def local(self) -> bool:
        """Whether the attention sees a window of the source."""
        return self.attention in ("local-m", "local-p")


def _check_kinds(config: RecurrentConfig) -> None:
    if config.cell not in ("gru", "lstm"):
        raise InputError(f'`cell` must be "gru" or "lstm", got {config.cell!r}')
    if config.attention not in (None, "bahdanau", *LUONG):
        kinds = ", ".join(f'"{kind}"' for kind in ("bahdanau", *LUONG))
        raise InputError(f"`attention` must be None or one of {kinds}, got {config.attention!r}")


def _check_combinations(config: RecurrentConfig) -> None:
    kind = "None" if config.attention is None else f'"{config.attention}"'
    if config.attention == "dot" and config.bidirectional:
        raise InputError(
            f'`attention="dot"` multiplies states of equal width, got {config.hidden_size} in the decoder and '
            f"{config.encoder_output_size} in the encoder, which runs in both directions: say bidirectional=False or "
            'attention="general"'
        )
    if config.feed_context and config.attention is not None:
        raise InputError(
            f"`feed_context` is for the fixed context vector, got attention={kind}, which has a context for every "
            "step: say attention=None or feed_context=False"
        )
    if not config.input_feeding and config.attention not in LUONG:
        raise InputError(
            f'`input_feeding=False` is for the attention of Luong, got attention={kind}: say attention="general" or '
            "leave it out"
        )
    if config.radius != 10 and not config.local:
        raise InputError(
            f'`radius` is for "local-m" and "local-p", got radius={config.radius} and attention={kind}: say '
            'attention="local-p" or leave it out'
        )
    if config.tie_word_embeddings and config.embedding_dim != config.hidden_size:
        raise InputError(
            f"`tie_word_embeddings` makes the target embedding the output layer and needs embedding_dim = hidden_size, "
            f"got embedding_dim={config.embedding_dim} "
            f"and hidden_size={config.hidden_size}: say embedding_dim={config.hidden_size} or tie_word_embeddings=False"
        )


def _check_token(name: str, token: object, counted: str, vocabulary: int) -> None:
    if token is None and name == "pad_token_id":
        return
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
        raise InputError(
            f"`{name}` must be a token from 0 to {vocabulary - 1}, got {token!r}: choose another, or a larger "
            f"`{counted}`"
        )
