"""An encoder or a decoder: what goes into the first block, the blocks, and the norm after the last."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.cache import Cache, CrossAttentionCache, KVCache
from regard.errors import InputError
from regard.masks import Causal, Document, Mask, Padding, Window
from regard.models.config import Learned, Sinusoidal, TransformerConfig
from regard.nn import DecoderBlock, EncoderBlock
from regard.nn.feed_forward import dropped, feed_forward_activation
from regard.nn.value_module import ComputedBuffers, ValueModule, value_of
from regard.parallel.sequence_part import SEQUENCE_PART
from regard.positions import ALiBi, Bias, DenseBias, RoPE, T5Bias, sinusoidal
from regard.scores import Shaw

__all__ = ["Stack"]

_FEW = 2**16  # pairs of which a bias is written out for all layers


class Stack(nn.Module):
    """The blocks of one side of a Transformer.

    Modules: `inputs`, `layers`, `norm` where the configuration has a final one, and `bias`, the bias on the scores that
    all layers share (T5, ALiBi).

    Args:
        config: Of the whole model.
        side: "encoder" sees all, "decoder" what came before; with an encoder beside it a decoder looks at that too.
    """

    def __init__(self, config: TransformerConfig, side: str) -> None:
        super().__init__()
        self.config, self.causal = config, side == "decoder"
        self.crossed = self.causal and config.kind == "encoder-decoder"
        self.inputs = _Inputs(config)
        count = config.decoder_layers if self.causal else config.encoder_layers
        self.layers = nn.ModuleList(self._block(layer) for layer in range(count))
        final = config.norm_first if config.add_final_layer_norm is None else config.add_final_layer_norm
        self.norm = _norm(config) if final else None
        self.bias = self._bias()

    def forward(
        self,
        x: Float[Tensor, "batch n width"],
        positions: Int[Tensor, "*batch n"],
        *,
        types: Int[Tensor, "batch n"] | None = None,
        attention_mask: Tensor | None = None,
        documents: Int[Tensor, "batch n"] | None = None,
        memory: Float[Tensor, "batch keys width"] | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        output_hidden_states: bool = False,
    ) -> tuple[Float[Tensor, "batch n width"], tuple[Tensor, ...] | None]:
        """Return the last states, after the final norm, and on request those before and after each block.

        `attention_mask` (batch, all tokens so far) is False for padding, `encoder_attention_mask` for that of the
        memory; tokens of one of the
        `documents` see no other.
        """
        x = self.inputs(x, positions, types)
        kept, n = [x], x.shape[1]
        seen = _Seen(n, attention_mask if documents is None else documents, value_of(self.bias))
        memory_mask = None
        if memory is not None and encoder_attention_mask is not None:
            memory_mask = Padding(encoder_attention_mask)
        by_texts = self._places_in_texts(positions, attention_mask, cached=cache is not None)
        for index, block in enumerate(self.layers):
            entries = (None, None) if cache is None else cache.layers[index]
            given: dict[str, Any] = seen.by(None if entries[0] is None else entries[0].reach(n), x) | by_texts
            if self.crossed:
                given |= {"memory": memory, "cross_attn_mask": memory_mask, "cache": entries}
            elif cache is not None:
                given["cache"] = entries[0]
            x = block(x, **given)
            if output_hidden_states:
                kept.append(x)
        x = x if self.norm is None else self.norm(x)
        return x, (*kept[:-1], x) if output_hidden_states else None

    def cache(self) -> Cache:
        """An empty cache for these blocks."""
        entries = [
            (KVCache(self.config.window_of(layer)), CrossAttentionCache() if self.crossed else None)
            for layer in range(len(self.layers))
        ]
        return Cache(tuple(entries))

    def _block(self, layer: int) -> nn.Module:
        config = self.config
        weights_dropped = config.dropout if config.attention_dropout is None else config.attention_dropout
        shared = {
            "num_kv_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "bias": config.bias if config.qkv_bias is None else config.qkv_bias,
            "out_bias": config.bias if config.out_bias is None else config.out_bias,
            "scale": config.scale,
            "dropout": weights_dropped,
        }
        own = shared | {"mask": self._mask(layer), **_relative(config)}
        hidden_dropped = config.dropout if config.activation_dropout is None else config.activation_dropout
        options: dict[str, Any] = {
            "norm": config.norm,
            "norm_first": config.norm_first,
            "layer_norm_eps": config.layer_norm_eps,
            "activation": feed_forward_activation(config.hidden_act, config.is_gated_act),
            "dropout": config.dropout,
            "bias": config.bias,
            "attention": own,
            "feed_forward": {"dropout": hidden_dropped},
        }
        sizes = config.hidden_size, config.num_attention_heads, config.intermediate_size
        if self.crossed:
            return DecoderBlock(*sizes, **options, cross_attention=shared)
        return EncoderBlock(*sizes, **options)

    def _mask(self, layer: int) -> Mask | None:
        if not self.causal:
            return None
        window = self.config.window_of(layer)
        return Causal() if window is None else Causal() & Window(window)

    def _places_in_texts(self, positions: Tensor, attention_mask: Tensor | None, *, cached: bool) -> dict[str, Tensor]:
        """What RoPE needs besides distances where its angles depend on the length of a text, not of its row."""
        if not self.config.angles_depend_on_length or positions.ndim == 1:
            return {}
        if not cached and not torch.compiler.is_compiling() and (part := SEQUENCE_PART.get()) is not None:
            return {"position_ids": part.all_position_ids}  # keys of other ranks come too
        if attention_mask is None:
            return {"position_ids": positions}
        return {"position_ids": positions.masked_fill(~attention_mask[:, -positions.shape[1] :], 0)}

    def _bias(self) -> ValueModule | None:
        config, heads = self.config, self.config.num_attention_heads
        if config.position_bias == "t5":
            table = nn.Parameter(torch.empty(config.relative_attention_num_buckets, heads))
            nn.init.normal_(table, std=config.hidden_size**-0.5)
            distance = config.relative_attention_max_distance
            return ValueModule(T5Bias(table, bidirectional=not self.causal, max_distance=distance))
        if config.position_bias == "alibi":
            return ValueModule(ALiBi(heads, bidirectional=not self.causal))
        return None


class _Inputs(ComputedBuffers):
    """What is added to the embeddings of tokens before the first block."""

    table: Tensor | None

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        kind, self.dropout = config.positions, config.dropout
        self.positions = (
            nn.Embedding(kind.max_position_embeddings, config.hidden_size) if isinstance(kind, Learned) else None
        )
        self._kind, self._width = kind, config.hidden_size
        self.make_buffers()
        self.types = nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        self.norm = _norm(config) if config.normalize_embedding else None
        self.length = config.max_position_embeddings

    def make_buffers(self) -> None:
        """Compute the sinusoidal table, which no checkpoint holds."""
        kind, width = self._kind, self._width
        table = (
            sinusoidal(kind.max_position_embeddings, width, variant=kind.variant)
            if isinstance(kind, Sinusoidal)
            else None
        )
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        if self.positions is not None:
            x = x + self.positions(positions)
        elif self.table is not None:
            x = x + self.table[positions].to(x.dtype)
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        elif types is not None:
            raise InputError("`token_type_ids` are given, but this model has no token types: leave them out")
        x = x if self.norm is None else self.norm(x)
        return dropped(x, self.dropout, self.training)


def _norm(config: TransformerConfig) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.hidden_size, config.layer_norm_eps)
    return nn.LayerNorm(config.hidden_size, config.layer_norm_eps, bias=config.bias)


def _relative(config: TransformerConfig) -> dict[str, Any]:
    """Positions that each attention has for itself."""
    if isinstance(config.positions, RoPE):
        return {"rotary": config.positions}
    if config.position_bias == "shaw":
        rows, dim = 2 * config.max_relative_position + 1, config.head_width
        keys, values = (nn.Parameter(torch.randn(rows, dim) * dim**-0.5) for _ in range(2))
        return {"score": Shaw(keys, values)}
    return {}


class _Seen:
    """What the layers of one pass share: padding and bias, made once for each number of keys that a layer sees."""

    # `tokens` are booleans, False for padding, or the number of the document of each.
    def __init__(self, queries: int, tokens: Tensor | None, bias: Bias | None) -> None:
        self._queries, self._tokens, self._bias = queries, tokens, bias
        self._known: list[tuple[int | None, dict[str, Any]]] = []  # no dictionary: a compiler would fix its keys

    def by(self, reach: int | None, x: Tensor) -> dict[str, Any]:
        """The arguments of an attention that sees the last `reach` positions; None: those that are read now alone."""
        keys = self._queries if reach is None else reach
        given = next((one for known, one in self._known if known == reach), None)
        if given is None:
            given = {}
            if self._tokens is not None:  # of a cache that has dropped keys, only the last are padding or not
                kind = Padding if self._tokens.dtype == torch.bool else Document
                given["mask"] = kind(self._tokens[:, self._tokens.shape[1] - keys :])
            if self._bias is not None:
                given["attn_bias"] = self._tile(self._bias, keys, x)
            self._known.append((reach, given))
        return dict(given)

    def _tile(self, bias: Bias, keys: int, x: Tensor) -> Bias:
        """While a text is written the bias is a few numbers a head, which need not be looked up for each layer."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or self._queries * keys > _FEW:
            return bias
        if SEQUENCE_PART.get() is not None:  # keys of other ranks come too
            return bias
        first, heads = keys - self._queries, bias.leading[1]
        i, j = torch.arange(first, keys, device=x.device), torch.arange(keys, device=x.device)
        return DenseBias(bias.tile(slice(0, 1), slice(0, heads), i, j))
