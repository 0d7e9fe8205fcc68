"""What makes one Transformer differ from another, as a frozen value."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, get_args

from regard.checks import check_count
from regard.errors import InputError
from regard.models.generation_config import GenerationConfig
from regard.models.inputs_outputs import SpecialTokens
from regard.models.output_heads import HEADS, OutputHead
from regard.models.standard_names import CONFIG
from regard.nn.blocks import Norm
from regard.nn.checks import refuse_unknown
from regard.nn.feed_forward import HiddenAct, check_hidden_act
from regard.positions import NTK, DynamicNTK, LinearScaling, Llama3, LongRoPE, Proportional, RoPE, YaRN
from regard.positions.embeddings import Sinusoids
from regard.positions.rope_scaling import LengthScaling

__all__ = ["KINDS", "Learned", "PositionBias", "Positions", "Sinusoidal", "TransformerConfig"]

PositionBias = Literal["t5", "alibi", "shaw"]


@dataclass(frozen=True)
class _Counted:
    """Positions of which there is a number."""

    max_position_embeddings: int

    def __post_init__(self) -> None:
        value = self.max_position_embeddings
        if type(value) is not int or value < 1:
            raise InputError(
                f"`max_position_embeddings` of {type(self).__name__} must be an integer of at least 1, got {value!r}"
            )


@dataclass(frozen=True)
class Sinusoidal(_Counted):
    """Sines and cosines, added to the embeddings (Vaswani et al. 2017); `variant` as in positions.sinusoidal."""

    max_position_embeddings: int = 5000
    variant: Sinusoids = "paper"


@dataclass(frozen=True)
class Learned(_Counted):
    """A learned vector for each position, added to the embeddings (BERT, GPT-2, BART)."""

    max_position_embeddings: int = 512


Positions = Sinusoidal | Learned | RoPE | None


@refuse_unknown("TransformerConfig", CONFIG)
@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """A Transformer, by transformers' names: with the defaults that of Vaswani et al. (2017, arXiv:1706.03762).

    BERT, GPT-2, Llama, T5, BART and Marian are such configurations; `docs/models.md` shows the differences between
    them. An option without a name in transformers has the name of PyTorch's nn.Transformer (`norm_first`, `bias`) or a
    descriptive name.

    Args:
        vocab_size: Number of tokens.
        decoder_vocab_size: Number of the decoder's, if they have an embedding of their own (Marian).
        hidden_size: Dimension of the embeddings and of the blocks' outputs.
        num_attention_heads: Number of heads of each attention.
        intermediate_size: Dimension of the feed-forward layer's hidden layer.
        encoder_layers, decoder_layers: Number of blocks of each; a decoder without an encoder has no cross-attention.
        num_key_value_heads: Number of heads of keys and values, which groups of heads share; all by default.
        head_dim: Dimension of a head; hidden_size / num_attention_heads by default.
        norm: "layer" (LayerNorm) or "rms" (RMSNorm).
        norm_first: Whether norms come before attention and feed-forward (pre-norm) or after the sums (post-norm).
        add_final_layer_norm: Whether a norm follows the last block; as `norm_first` by default.
        normalize_embedding: Whether a norm follows the embeddings.
        layer_norm_eps: What is added to the variance, by either norm.
        hidden_act: "relu", "gelu", "gelu_new" ("gelu_fast", "gelu_pytorch_tanh") or "silu" ("swish").
        is_gated_act: Whether the feed-forward layer is gated: with "silu" SwiGLU (Llama), with "gelu_new" T5 1.1's.
        positions: Sinusoidal, Learned, a positions.RoPE, or None for none; by default Sinusoidal(), or none beside a
            `position_bias`.
        position_bias: "t5", a learned bias for each head and bucket of distances, in one table for all layers of a
            stack; "alibi", a bias that falls with the distance (Press et al. 2022, arXiv:2108.12409); "shaw", a learned
            vector for each distance, on keys and values (Shaw et al. 2018, arXiv:1803.02155).
        relative_attention_num_buckets, relative_attention_max_distance: Of "t5"; 32 and 128 by default.
        max_relative_position: Of "shaw", the distance from which all share a vector; 16 by default.
        scale_embedding: Whether embeddings are multiplied by √hidden_size.
        bias: Whether linear layers and LayerNorms add a vector.
        qkv_bias, out_bias: The same for the attention's projections alone; as `bias` by default.
        scale: The factor on the scores; 1/√head_dim by default, 1 in T5.
        sliding_window: How many positions a query of the decoder sees, itself included.
        layer_types: For each of the decoder's layers "sliding_attention" or "full_attention"; all have the window by
            default.
        type_vocab_size: Number of learned vectors for kinds of tokens (BERT's segments).
        dropout: Probability of dropping embeddings and what is added to the residual, in training mode only.
        attention_dropout, activation_dropout: Of weights, and of the hidden layer; as `dropout` by default.
        output_head: What is computed from the last hidden states, or None for the states alone.
        special_tokens: The tokens that mean something.
        generation_config: How `generate` chooses tokens where its caller does not say; of a checkpoint its own.

    Raises:
        InputError: Sizes do not fit each other, or a name of transformers or PyTorch is given that is another one here.

    >>> TransformerConfig(vocab_size=100, encoder_layers=6, decoder_layers=6).kind
    'encoder-decoder'
    """

    vocab_size: int
    decoder_vocab_size: int | None = None
    hidden_size: int = 512
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    encoder_layers: int = 0
    decoder_layers: int = 0
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    norm: Norm = "layer"
    norm_first: bool = False
    add_final_layer_norm: bool | None = None
    normalize_embedding: bool = False
    layer_norm_eps: float = 1e-5
    hidden_act: HiddenAct = "relu"
    is_gated_act: bool = False
    positions: Positions | Literal["auto"] = "auto"
    position_bias: PositionBias | None = None
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    max_relative_position: int = 16
    scale_embedding: bool = True
    bias: bool = True
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    scale: float | None = None
    sliding_window: int | None = None
    layer_types: Sequence[Literal["sliding_attention", "full_attention"]] | None = None
    type_vocab_size: int = 0
    dropout: float = 0.1
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    output_head: OutputHead | None = None
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    generation_config: GenerationConfig = field(default_factory=GenerationConfig)

    def __post_init__(self) -> None:
        if self.positions == "auto":
            object.__setattr__(self, "positions", Sinusoidal() if self.position_bias is None else None)
        if self.layer_types is not None:  # a list too, as configurations of transformers have it
            object.__setattr__(self, "layer_types", tuple(self.layer_types))
        for names, least in _COUNTS:
            for name in names:
                if getattr(self, name) is not None or name not in _OPTIONAL:
                    check_count(name, getattr(self, name), least, most=None)
        self._check_kinds()
        self._check_positions()
        self._check_heads()
        self._check_window()
        if not self.encoder_layers and not self.decoder_layers:
            raise InputError("`encoder_layers` and `decoder_layers` are both 0: a Transformer has at least one layer")
        if self.decoder_vocab_size is not None and self.kind != "encoder-decoder":
            raise InputError(f"`decoder_vocab_size` is for an encoder–decoder, and this is a {self.kind}: leave it out")
        if self.output_head is not None:
            self.output_head.check(self.kind)

    def _check_kinds(self) -> None:
        kinds: dict[str, Any] = {
            "positions": (Sinusoidal | Learned | RoPE | None, "such as Learned(512) or None"),
            "output_head": (OutputHead | None, "such as output_heads.LanguageModel() or None"),
            "special_tokens": (SpecialTokens, "such as SpecialTokens(eos_token_id=2)"),
            "generation_config": (GenerationConfig, "such as GenerationConfig(num_beams=4)"),
        }
        for name, (kind, example) in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"`{name}` must be a value {example}, got {getattr(self, name)!r}")
        numbers = {"layer_norm_eps": self.layer_norm_eps} | ({} if self.scale is None else {"scale": self.scale})
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
                raise InputError(f"`{name}` must be a finite number above 0, got {value!r}")
        check_hidden_act(self.hidden_act)
        flags = ("norm_first", "normalize_embedding", "is_gated_act", "scale_embedding", "bias")
        for name in (*flags, "add_final_layer_norm", "qkv_bias", "out_bias"):
            if not isinstance(getattr(self, name), bool) and (name in flags or getattr(self, name) is not None):
                raise InputError(f"`{name}` must be True or False, got {getattr(self, name)!r}")

    def _check_positions(self) -> None:
        kinds = (None, *get_args(PositionBias))
        if self.position_bias not in kinds:
            raise InputError(
                f"`position_bias` must be one of {', '.join(map(repr, kinds))}, got {self.position_bias!r}"
            )
        if self.position_bias is not None and self.positions is not None:
            raise InputError(
                f"`position_bias` {self.position_bias!r} stands in place of `positions`, got {self.positions}: give "
                "positions=None, or no position_bias"
            )
        options = {
            "relative_attention_num_buckets": (32, "t5"),
            "relative_attention_max_distance": (128, "t5"),
            "max_relative_position": (16, "shaw"),
        }
        for name, (default, kind) in options.items():
            if getattr(self, name) != default and self.position_bias != kind:
                raise InputError(f"`{name}` is an option of position_bias={kind!r}, got {self.position_bias!r}")

    def _check_heads(self) -> None:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"`hidden_size` must be a multiple of `num_attention_heads`, got {self.hidden_size} and "
                f"{self.num_attention_heads}: choose a divisor, or give "
                f"head_dim={-(-self.hidden_size // self.num_attention_heads)}"
            )
        if self.num_attention_heads % (self.num_key_value_heads or self.num_attention_heads):
            raise InputError(
                f"`num_attention_heads` must be a multiple of `num_key_value_heads`, got {self.num_attention_heads} "
                f"and {self.num_key_value_heads}"
            )
        if isinstance(self.positions, RoPE):
            self.positions.check(self.head_width)

    def _check_window(self) -> None:
        if self.sliding_window is not None and not self.decoder_layers:
            raise InputError(
                "`sliding_window` is the decoder's, and there is none: give decoder_layers, or leave it out"
            )
        kinds = ("sliding_attention", "full_attention")
        named = self.layer_types
        if named is None:
            return
        if len(named) != self.decoder_layers or any(one not in kinds for one in named):
            raise InputError(
                f"`layer_types` must have one of {kinds} for each of the decoder's {self.decoder_layers} layers, got "
                f"{named!r}"
            )
        if "sliding_attention" in named and self.sliding_window is None:
            raise InputError("`layer_types` names layers that have a window: give sliding_window= too")

    @property
    def kind(self) -> Literal["encoder", "decoder", "encoder-decoder"]:
        """Which of the two stacks there are."""
        if not self.decoder_layers:
            return "encoder"
        return "encoder-decoder" if self.encoder_layers else "decoder"

    @property
    def head_width(self) -> int:
        """Width of a head's queries and keys."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def max_position_embeddings(self) -> int | None:
        """How many positions there are, or None where nothing limits them."""
        kind = self.positions
        return kind.max_position_embeddings if isinstance(kind, Learned | Sinusoidal) else None

    @property
    def angles_depend_on_length(self) -> bool:
        """Whether the angles of rotary positions depend on the length of a text."""
        return isinstance(self.positions, RoPE) and isinstance(self.positions.scaling, LengthScaling)

    @property
    def start_token_id(self) -> int | None:
        """The first token of the decoder: its start token, or that of all texts, as in transformers' `generate`."""
        return next(iter(self.special_tokens.decoder_prefix), None)

    def window_of(self, layer: int) -> int | None:
        """The window of a layer of the decoder."""
        named = self.layer_types is None or self.layer_types[layer] == "sliding_attention"
        return self.sliding_window if named else None


_COUNTS = (
    (("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"), 1),
    (("relative_attention_num_buckets", "relative_attention_max_distance"), 1),
    (("encoder_layers", "decoder_layers", "type_vocab_size", "max_relative_position"), 0),
    (("decoder_vocab_size", "num_key_value_heads", "head_dim", "sliding_window"), 1),
)
_OPTIONAL = {"decoder_vocab_size", "num_key_value_heads", "head_dim", "sliding_window"}


# All that may stand in a saved configuration.
KINDS: tuple[type, ...] = (
    TransformerConfig,
    SpecialTokens,
    GenerationConfig,
    *(Sinusoidal, Learned),
    *(RoPE, LinearScaling, NTK, DynamicNTK, YaRN, LongRoPE, Proportional, Llama3),
    *HEADS,
)
