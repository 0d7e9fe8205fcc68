"""The models that a run can train, each a table [model] of its `type`: a Transformer, a recurrent one, a checkpoint.

The keys are the fields of the model's
own configuration. A model of your own is another class in MODEL_TYPES.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_type_hints

import torch
from pydantic import Field

from regard.data import Tokenizer
from regard.data.open_tokenizer import TOKENIZER_FILES
from regard.errors import InputError
from regard.files import read_bytes
from regard.models import Learned, RecurrentConfig, RecurrentSeq2Seq, Sinusoidal, SpecialTokens, TransformerConfig
from regard.models import Transformer as TransformerModel
from regard.models.checkpoint_files import Checkpoint
from regard.models.output_heads import OutputHead
from regard.models.pretrained_mixin import PretrainedMixin
from regard.models.recurrent.config import AttentionKind
from regard.positions import RoPE
from regard.train.settings import FilePath, Fraction, Width, settings

__all__ = [
    "MODEL_TYPES",
    "CheckpointSettings",
    "ModelRequest",
    "ModelSettings",
    "RecurrentSettings",
    "TransformerSettings",
]

Layers = Annotated[int, Field(ge=1, le=10_000)]


@dataclass(frozen=True)
class ModelRequest:
    """What a task needs of its model.

    Args:
        sides: "encoder", "decoder", or both for pairs.
        vocab_size: Number of tokens.
        special_tokens: The tokens that mean something.
        output_head: What is computed from the last states.
        max_position_embeddings: Number of positions of a learned position embedding.
        decoder_vocab_size: Number of the decoder's tokens, of pairs.
    """

    sides: tuple[str, ...]
    vocab_size: int
    special_tokens: SpecialTokens
    output_head: OutputHead
    max_position_embeddings: int
    decoder_vocab_size: int | None = None


class ModelSettings:
    """The base of all tables [model]."""

    type: ClassVar[str]
    smaller: ClassVar[str] = ""  # the keys that make a model smaller

    if TYPE_CHECKING:  # the keys of a configuration are added at run time

        def __init__(self, **keys: Any) -> None: ...

    def build(self, request: ModelRequest) -> PretrainedMixin:
        """Return the model that a task requests, with new weights or those of a checkpoint."""
        raise NotImplementedError  # each type of model defines it

    def generation_tokens(self, tokenizer: Tokenizer, sides: tuple[str, ...]) -> SpecialTokens:
        """Return the special tokens of the model, which it generates with: those of its tokenizer, or a checkpoint's.

        Args:
            tokenizer: The tokenizer of what it generates.
            sides: "encoder", "decoder" or both, as the task needs them.
        """
        del sides
        return SpecialTokens(
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )

    def least_parameters(self, sides: int, symbols: int) -> int:
        """Return the least number of parameters of so many sides with so many symbols each; 0 where files give it."""
        del sides, symbols
        return 0

    def tokenizer(self, name: str) -> tuple[str, Tokenizer] | None:
        """Return the tokenizer that the model has already, with the name of its file; None where one is trained."""
        del name
        return None

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint, by name, that say more of its tokenizer and of generation."""
        return {}


def _settings_of(config: type[Any], *given: str) -> Callable[[type[Any]], Any]:
    """Add the fields of a configuration to a table, with its types and defaults, but those that a task gives."""

    def decorate(kind: type[Any]) -> Any:
        hints = get_type_hints(config)
        for one in fields(config):
            if one.name not in kind.__annotations__ and one.name not in given:
                kind.__annotations__[one.name] = hints[one.name]
                setattr(kind, one.name, one.default)
        return settings(kind)

    return decorate


@_settings_of(
    TransformerConfig,
    *("vocab_size", "decoder_vocab_size", "encoder_layers", "decoder_layers"),
    *("position_bias", "type_vocab_size", "output_head", "special_tokens"),
    "generation_config",
)
class TransformerSettings(ModelSettings):
    """A Transformer trained from scratch; its keys are those of `models.TransformerConfig`, and these.

    Args:
        num_hidden_layers: Blocks of each side that the task needs: encoder and decoder for pairs, else one of them.
        positions: Position encoding, or position bias ("t5", "alibi", "shaw").
    """

    type: ClassVar[str] = "transformer"
    smaller: ClassVar[str] = "`hidden_size`, `intermediate_size` or `num_hidden_layers`"
    hidden_size: Width = 256
    num_attention_heads: Width = 4
    intermediate_size: Width = 1024
    num_hidden_layers: Layers = 3
    num_key_value_heads: Width | None = None
    positions: Literal["sinusoidal", "learned", "t5", "alibi", "shaw", "rope", "none"] = "sinusoidal"
    norm_first: bool = True
    dropout: Fraction = 0.1
    attention_dropout: Fraction | None = None
    activation_dropout: Fraction | None = None

    def __post_init__(self) -> None:
        self._config(("encoder", "decoder"), vocab_size=1)  # which checks what goes together

    def build(self, request: ModelRequest) -> PretrainedMixin:
        """Return a Transformer with new weights."""
        config = self._config(
            request.sides,
            vocab_size=request.vocab_size,
            decoder_vocab_size=request.decoder_vocab_size,
            output_head=request.output_head,
            special_tokens=request.special_tokens,
        )
        if isinstance(config.positions, Learned):
            config = replace(config, positions=Learned(request.max_position_embeddings))
        return TransformerModel(config)

    def least_parameters(self, sides: int, symbols: int) -> int:
        """Return the least number of parameters.

        For width w, hidden width h and s symbols: s·w on each side; in each block 2w² (queries and output), as much for
        keys and values, or less with fewer heads, and 2wh.
        """
        square, layers, heads = self.hidden_size**2, self.num_hidden_layers, self.num_attention_heads
        attention = 2 * square + 2 * square * (self.num_key_value_heads or heads) // heads
        blocks = layers * (attention + 2 * self.hidden_size * self.intermediate_size)
        return sides * (symbols * self.hidden_size + blocks) + (layers * attention if sides == 2 else 0)

    def _config(self, sides: tuple[str, ...], **given: Any) -> TransformerConfig:
        own = {one.name: getattr(self, one.name) for one in fields(TransformerConfig) if hasattr(self, one.name)}
        layers = {f"{side}_layers": self.num_hidden_layers for side in sides}
        named: dict[str, Any] = {"sinusoidal": Sinusoidal(), "learned": Learned(), "none": None}
        if self.positions == "rope":
            named["rope"] = RoPE(own["head_dim"] or self.hidden_size // self.num_attention_heads)
        bias = {} if self.positions in named else {"position_bias": self.positions}
        return TransformerConfig(**own | layers | given | bias | {"positions": named.get(self.positions)})


@_settings_of(
    RecurrentConfig, "src_vocab_size", "tgt_vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "feed_context"
)
class RecurrentSettings(ModelSettings):
    """A GRU or LSTM encoder–decoder; its keys are those of `models.RecurrentConfig`.

    Args:
        attention: "none" for the fixed context vector.
    """

    type: ClassVar[str] = "recurrent"
    smaller: ClassVar[str] = "`hidden_size` or `num_layers`"
    embedding_dim: Width = 256
    hidden_size: Width = 256
    num_layers: Layers = 1
    attention: AttentionKind | Literal["none"] = "bahdanau"
    dropout: Fraction = 0.1

    def __post_init__(self) -> None:
        self._config(src_vocab_size=3, tgt_vocab_size=3)  # which checks what goes together

    def build(self, request: ModelRequest) -> PretrainedMixin:
        """Return an encoder–decoder with new weights."""
        if len(request.sides) == 1:
            raise InputError("`model.type` recurrent is an encoder–decoder, which reads pairs: take a transformer here")
        tokens = request.special_tokens
        return RecurrentSeq2Seq(
            self._config(
                src_vocab_size=request.vocab_size,
                tgt_vocab_size=request.decoder_vocab_size,
                pad_token_id=tokens.pad_token_id,
                bos_token_id=tokens.bos_token_id,
                eos_token_id=tokens.end_token_id(None),
            )
        )

    def least_parameters(self, sides: int, symbols: int) -> int:
        """Return the least number of parameters: s·w on each side, and 3h² in each layer."""
        return sides * (symbols * self.embedding_dim + self.num_layers * 3 * self.hidden_size**2)

    def _config(self, **given: Any) -> RecurrentConfig:
        own = {one.name: getattr(self, one.name) for one in fields(RecurrentConfig) if hasattr(self, one.name)}
        attention = None if self.attention == "none" else self.attention
        return RecurrentConfig(**own | {"attention": attention} | given)


@settings
class CheckpointSettings(ModelSettings):
    """A model to fine-tune: a folder, an id of the hub, or a bundled model (minilm, smollm2, me5)."""

    type: ClassVar[str] = "checkpoint"
    model_name_or_path: FilePath
    dropout: Fraction | None = None

    def build(self, request: ModelRequest) -> PretrainedMixin:
        """Return the checkpoint's model, in float32: a step of 1e-5 is nothing to the eight bits of bfloat16."""
        head = request.output_head if request.output_head.fresh else type(request.output_head)()  # the checkpoint's own
        asked: dict[str, Any] = {"output_head": head, "dtype": torch.float32, "special_tokens": request.special_tokens}
        if self.dropout is not None:
            asked |= dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), self.dropout)
        return TransformerModel.from_pretrained(self.model_name_or_path, **asked)

    def generation_tokens(self, tokenizer: Tokenizer, sides: tuple[str, ...]) -> SpecialTokens:
        """Return the checkpoint's own special tokens; where a model that generates has none to pad or to end a text,
        those that its tokenizer's configuration names.

        Raises:
            InputError: The model is no encoder–decoder or decoder where the task needs one, its configuration does not
                say what a target starts with, or its tokenizer puts a language's token there.
        """
        name = self.model_name_or_path
        config = TransformerModel.pretrained_config(name)
        own: SpecialTokens = config.special_tokens
        if "decoder" not in sides:
            return own
        needed = "encoder-decoder" if len(sides) == 2 else "decoder"
        if config.kind != needed:
            article = "an" if needed.startswith("e") else "a"
            raise InputError(
                f"`model.model_name_or_path` must name {article} {needed} for this task, and {name!r} is of the kind "
                f"{config.kind}: name another model, or set another `task.type`"
            )
        if len(sides) == 2:
            self._check_start()
        lacking = {
            key: getattr(tokenizer, key) for key in ("pad_token_id", "eos_token_id") if getattr(own, key) is None
        }
        return replace(own, **lacking)

    def _check_start(self) -> None:
        """Refuse an encoder–decoder whose first tokens are not set by its configuration."""
        files = Checkpoint(self.model_name_or_path)
        raw = files.config()
        if raw.get("decoder_start_token_id") is None and not files.is_saved_by_regard:
            raise InputError(
                f"the checkpoint {self.model_name_or_path} has no `decoder_start_token_id`, the token that targets "
                "start from, in its config.json or generation_config.json: put it into config.json"
            )
        for key in ("src_lang", "tgt_lang"):
            if (language := files.settings("tokenizer_config.json").get(key)) is not None:
                raise InputError(
                    f"the tokenizer of {self.model_name_or_path} begins texts with the token of a language (`{key}` = "
                    f"{language!r} in its tokenizer_config.json), and regard does not set tokens of languages: "
                    "fine-tune this checkpoint with transformers"
                )

    def tokenizer(self, name: str) -> tuple[str, Tokenizer]:
        """Return the checkpoint's tokenizer, and the name of its file.

        Raises:
            InputError: It has none.
        """
        files = Checkpoint(self.model_name_or_path)
        files.config(), self.tokenizer_files()  # of an id of the hub: they are beside the tokenizer when asked for
        for one in dict.fromkeys((name, "tokenizer.json")):
            if (path := files.file(one)) is None:
                continue
            kind = TransformerModel.pretrained_config(self.model_name_or_path).kind
            if files.is_saved_by_regard:
                return one, Tokenizer.load_saved(path, bos=kind != "encoder-decoder", eos=kind != "decoder")
            found = Tokenizer.load(path).as_configured(path)
            if kind == "encoder-decoder" and found.template == ((), ()) and found.eos_token_id is not None:
                found = found.with_template(eos=True)  # without a template, sources end as targets must
            return one, found
        raise InputError(
            f"the checkpoint {self.model_name_or_path!r} has no tokenizer.json, the file of a fast tokenizer, which "
            "fine-tuning needs: save one there by `save_pretrained` of a fast tokenizer of transformers"
        )

    def tokenizer_files(self) -> dict[str, bytes]:
        """Return the files of the checkpoint, by name, that say more of its tokenizer and of generation.

        Raises:
            InputError: One cannot be read.
        """
        files = Checkpoint(self.model_name_or_path)
        paths = {name: files.file(name, optional=True) for name in TOKENIZER_FILES}
        try:
            return {name: read_bytes(path) for name, path in paths.items() if path is not None}
        except OSError as problem:
            raise InputError(f"cannot read the files of {self.model_name_or_path!r}: {problem}") from problem


MODEL_TYPES: tuple[type[ModelSettings], ...] = (TransformerSettings, RecurrentSettings, CheckpointSettings)
