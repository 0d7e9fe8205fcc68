"""What makes one Transformer differ from another, as a frozen value."""

from dataclasses import dataclass, field
from typing import Any, Literal

from regard.errors import InputError
from regard.models.output_heads import HEADS, Head
from regard.nn.block_base import Norm
from regard.nn.feed_forward import Activation
from regard.positions import NTK, DynamicNTK, Linear, Llama3, RoPE, YaRN
from regard.positions.sinusoidal import Sinusoids

__all__ = ["KINDS", "Buckets", "Clipped", "Learned", "Positions", "Sinusoidal", "Slopes", "Tokens", "TransformerConfig"]


@dataclass(frozen=True)
class _Counted:
    """Positions whose whole numbers count something."""

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("count", 1), ("max_distance", 1), ("clip", 0)):
            value = getattr(self, name, least)
            if type(value) is not int or value < least:
                raise InputError(
                    f"`{name}` of {type(self).__name__} must be a whole number from {least} on, got {value!r}"
                )


@dataclass(frozen=True)
class Sinusoidal(_Counted):
    """Sines and cosines, added to the embeddings (Vaswani et al. 2017); `variant` as in positions.sinusoidal."""

    length: int = 5000
    variant: Sinusoids = "paper"


@dataclass(frozen=True)
class Learned(_Counted):
    """A learned vector for each of `length` positions, added to the embeddings (BERT, GPT-2, BART)."""

    length: int = 512


@dataclass(frozen=True)
class Buckets(_Counted):
    """T5's bias: a learned number for each head and bucket of distances, in one table for all layers of a stack."""

    count: int = 32
    max_distance: int = 128


@dataclass(frozen=True)
class Slopes:
    """ALiBi: a bias that falls with the distance, by a slope of each head (Press et al. 2022, arXiv:2108.12409)."""


@dataclass(frozen=True)
class Clipped(_Counted):
    """Shaw et al. (2018, arXiv:1803.02155): a learned vector for each distance up to `clip`, on keys and on values."""

    clip: int = 16


Positions = Sinusoidal | Learned | Buckets | Slopes | Clipped | RoPE | None


def _is_token(value: object, optional: bool) -> bool:
    return (value is None and optional) or (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    )


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens that mean something to a model; None where it has none.

    Args:
        pad: Fills up a batch.
        start: What a decoder begins with.
        stop: What ends a text.
        first: What a decoder always writes first (BART's forced_bos_token_id).
        last: What it writes when it runs out of room (forced_eos_token_id).
        never: What it never writes (Marian: its padding).
    """

    pad: int | None = None
    start: int | None = None
    stop: tuple[int, ...] = ()
    first: int | None = None
    last: int | None = None
    never: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        single = {name: (getattr(self, name),) for name in ("pad", "start", "first", "last")}
        for name, found in {**single, "stop": self.stop, "never": self.never}.items():
            if not isinstance(found, tuple) or any(not _is_token(one, name in single) for one in found):
                raise InputError(
                    f"`{name}` names tokens, each an integer from 0 to 2³¹ − 1, got {getattr(self, name)!r}"
                )


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """A Transformer: with its defaults that of Vaswani et al. (2017, arXiv:1706.03762), once it has layers.

    BERT, GPT-2, Llama, T5, BART and Marian are such values; `docs/models.md` shows what each changed.

    Args:
        vocabulary: Number of tokens.
        target_vocabulary: Number of the decoder's, if they have an embedding of their own.
        width, heads, hidden: Of the vectors, their heads, and the feed-forward layer's hidden layer.
        encoder_layers, decoder_layers: How many blocks of each; a decoder without an encoder sees only itself.
        kv_heads, head_dim: As in nn.MultiHeadAttention.
        norm, norm_first, eps, activation: As in nn.EncoderBlock.
        final_norm: Whether a norm follows the last block; as `norm_first` by default.
        embedding_norm: Whether one follows the embeddings.
        positions: Sinusoidal, Learned, Buckets, Slopes, Clipped, a positions.RoPE, or None for none.
        scaled_embedding: Whether embeddings are multiplied by √width.
        bias: Whether linear layers and LayerNorms add a vector.
        qkv_bias, out_bias: The same for the attention's projections alone; as `bias` by default.
        scale: The factor on the scores; 1/√head_dim by default, 1 in T5.
        window: How many positions a query of the decoder sees, itself included.
        windowed_layers: The decoder's layers that have the window, counted from 0; all by default.
        token_types: Number of learned vectors for kinds of tokens (BERT's segments).
        dropout: Probability of dropping embeddings and what is added to the residual, in training mode only.
        attention_dropout, activation_dropout: Of weights, and of the hidden layer; as `dropout` by default.
        head: What is made of the last states, or None for the states alone.
        tokens: The tokens that mean something.

    Raises:
        InputError: Sizes do not fit each other.

    >>> TransformerConfig(vocabulary=100, encoder_layers=6, decoder_layers=6).kind
    'encoder-decoder'
    """

    vocabulary: int
    target_vocabulary: int | None = None
    width: int = 512
    heads: int = 8
    hidden: int = 2048
    encoder_layers: int = 0
    decoder_layers: int = 0
    kv_heads: int | None = None
    head_dim: int | None = None
    norm: Norm = "layer"
    norm_first: bool = False
    final_norm: bool | None = None
    embedding_norm: bool = False
    eps: float = 1e-5
    activation: Activation = "relu"
    positions: Positions = Sinusoidal()
    scaled_embedding: bool = True
    bias: bool = True
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    scale: float | None = None
    window: int | None = None
    windowed_layers: tuple[int, ...] | None = None
    token_types: int = 0
    dropout: float = 0.1
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    head: Head | None = None
    tokens: Tokens = field(default_factory=Tokens)

    def __post_init__(self) -> None:
        for names, least in _COUNTS:
            for name in names:
                _count(name, getattr(self, name), least)
        self._check_kinds()
        self._check_heads()
        self._check_window()
        if not self.encoder_layers and not self.decoder_layers:
            raise InputError("`encoder_layers` and `decoder_layers` are both 0: a Transformer has at least one layer")
        if self.target_vocabulary is not None and self.kind != "encoder-decoder":
            raise InputError(f"`target_vocabulary` is for an encoder–decoder, and this is a {self.kind}: leave it out")
        if self.head is not None:
            self.head.check(self.kind)

    def _check_kinds(self) -> None:
        kinds: dict[str, Any] = {
            "positions": (
                Sinusoidal | Learned | Buckets | Slopes | Clipped | RoPE | None,
                "such as Learned(512) or None",
            ),
            "head": (Head | None, "such as output_heads.LanguageModel() or None"),
            "tokens": (Tokens, "such as Tokens(stop=(2,))"),
        }
        for name, (kind, example) in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"`{name}` must be a value {example}, got {getattr(self, name)!r}")
        numbers = {"eps": self.eps} | ({} if self.scale is None else {"scale": self.scale})
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InputError(f"`{name}` must be a number above 0, got {value!r}")

    def _check_heads(self) -> None:
        if self.head_dim is None and self.width % self.heads:
            raise InputError(
                f"`width` must be a multiple of `heads`, got {self.width} and {self.heads}: choose a divisor, or give "
                f"head_dim={-(-self.width // self.heads)}"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise InputError(f"`heads` must be a multiple of `kv_heads`, got {self.heads} and {self.kv_heads}")
        if isinstance(self.positions, RoPE):
            self.positions.check(self.head_width)

    def _check_window(self) -> None:
        if self.window is not None and not self.decoder_layers:
            raise InputError("`window` is the decoder's, and there is none: give decoder_layers, or leave it out")
        named = self.windowed_layers or ()
        if not isinstance(named, tuple) or any(one not in range(self.decoder_layers) for one in named):
            raise InputError(
                f"`windowed_layers` names layers of the decoder, from 0 to {self.decoder_layers - 1}, got {named!r}"
            )
        if self.windowed_layers is not None and self.window is None:
            raise InputError("`windowed_layers` names layers that have a window: give window= too")

    @property
    def kind(self) -> Literal["encoder", "decoder", "encoder-decoder"]:
        """Which of the two stacks there are."""
        if not self.decoder_layers:
            return "encoder"
        return "encoder-decoder" if self.encoder_layers else "decoder"

    @property
    def head_width(self) -> int:
        """Width of a head's queries and keys."""
        return self.head_dim or self.width // self.heads

    @property
    def length(self) -> int | None:
        """How many positions there are, or None where nothing limits them."""
        return self.positions.length if isinstance(self.positions, Learned | Sinusoidal) else None

    def window_of(self, layer: int) -> int | None:
        """The window of a layer of the decoder."""
        named = self.windowed_layers is None or layer in self.windowed_layers
        return self.window if named else None


_COUNTS = (
    (("vocabulary", "width", "heads", "hidden"), 1),
    (("encoder_layers", "decoder_layers", "token_types"), 0),
    (("target_vocabulary", "kv_heads", "head_dim", "window"), 1),
)
_OPTIONAL = {"target_vocabulary", "kv_heads", "head_dim", "window"}


def _count(name: str, value: object, least: int) -> None:
    if value is None and name in _OPTIONAL:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"`{name}` must be an integer of at least {least}, got {value!r}")


# All that may stand in a saved configuration.
KINDS: tuple[type, ...] = (
    TransformerConfig,
    Tokens,
    *(Sinusoidal, Learned, Buckets, Slopes, Clipped),
    *(RoPE, Linear, NTK, DynamicNTK, YaRN, Llama3),
    *HEADS,
)
