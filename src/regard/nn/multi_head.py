"""Multi-head attention: projections around regard.attention."""

from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.cache import CrossAttentionCache, Entry
from regard.checks import check_flag, check_probability, check_size
from regard.errors import InputError
from regard.masks import BoundMask, Causal, Mask
from regard.nn.cache_utils import bias_of_kept_keys, check_parts, needed, turning
from regard.nn.checks import both, check_width, public_module, visible_keys
from regard.nn.projections import (
    attend_heads,
    check_groups,
    check_local,
    check_out_proj,
    norm_heads,
    split_heads,
)
from regard.nn.torch_modules import fill_multihead, read_multihead, write_multihead
from regard.nn.value_module import hold, value_of
from regard.normalizers import Normalizer
from regard.positions import Bias, RoPE, Rotary
from regard.problem import DEFAULT_MAX_BYTES
from regard.scores import Score

__all__ = ["MultiHeadAttention"]


@public_module()
class MultiHeadAttention(nn.Module):
    """Project, attend in several heads, and project back (Vaswani et al. 2017, 3.2.2, arXiv:1706.03762).

    Formula: head_h = attention(W_Q,h x, W_K,h y, W_V,h z); output = W_O [head_1; …; head_H] + b_O

    Four layers hold the projections: `q_proj`, `k_proj`, `v_proj`, `out_proj`. The module also accepts the frozen
    values of regard.attention (score, mask, bias, rotary embedding, normalizer). If such a value contains an
    `nn.Parameter`, this becomes a parameter of the module; other tensors become buffers (`regard.nn.ValueModule`).
    Instead of a value you can pass a module that returns one when it is called without arguments.

    Args:
        embed_dim: Width of the queries' vectors, and of the output unless `out_dim` says otherwise.
        num_heads: Number of query heads.
        num_kv_heads: Number of key–value heads, a divisor of `num_heads` (GQA: arXiv:2305.13245; 1 is MQA); `num_heads`
            by default.
        head_dim: Width of a head's queries and keys; embed_dim / num_heads by default.
        v_head_dim: Width of a head's values; `head_dim` by default.
        kdim: Width of the keys' vectors; `embed_dim` by default.
        vdim: Width of the values' vectors; `embed_dim` by default, as in PyTorch.
        out_dim: Width of the output; `embed_dim` by default.
        bias: Whether the projections of queries, keys and values add a vector.
        out_bias: Whether that of the output does; as `bias` by default.
        score, mask, attn_bias, rotary, normalizer, scale: As in regard.attention (`attn_bias` is its `bias`). With
            `cache=`, the `position_ids` of a call are those of its own tokens only, (batch or 1, queries).
        q_norm, k_norm: Modules over (..., heads, n, head_dim), such as nn.RMSNorm(head_dim), before `rotary`.
        dropout: The probability with which a weight is dropped, in training mode only.
        device, dtype: Of the projections.

    Raises:
        InputError: Widths and heads do not divide; see regard.attention for the rest.

    >>> _ = torch.manual_seed(0)
    >>> layer = MultiHeadAttention(8, num_heads=2, num_kv_heads=1)
    >>> output, weights = layer(torch.randn(3, 5, 8), torch.randn(3, 7, 8), need_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 7]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        out_dim: int | None = None,
        out_bias: bool | None = None,
        score: Score | nn.Module | None = None,
        mask: Mask | nn.Module | None = None,
        attn_bias: Bias | Tensor | nn.Module | None = None,
        rotary: Rotary | nn.Module | None = None,
        normalizer: Normalizer | nn.Module | None = None,
        scale: float | None = None,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._set_sizes(embed_dim, num_heads, num_kv_heads, head_dim, v_head_dim, kdim, vdim)
        self.dropout, self.scale = check_probability("dropout", dropout), scale
        bias = check_flag("bias", bias)
        if isinstance(attn_bias, bool):
            raise InputError(
                f"`attn_bias` is what is added to the scores, got {attn_bias}: `bias={attn_bias}` says "
                "whether the projections have biases"
            )
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=bias, **made)
        self.k_proj = nn.Linear(self.kdim, self.num_kv_heads * self.head_dim, bias=bias, **made)
        self.v_proj = nn.Linear(self.vdim, self.num_kv_heads * self.v_head_dim, bias=bias, **made)
        self.out_proj = nn.Linear(
            num_heads * self.v_head_dim,
            embed_dim if out_dim is None else check_size("out_dim", out_dim, "is that of the output"),
            bias=bias if out_bias is None else check_flag("out_bias", out_bias),
            **made,
        )
        self.q_norm, self.k_norm = q_norm, k_norm
        self.score, self.mask, self.rotary, self.normalizer = hold(score), hold(mask), hold(rotary), hold(normalizer)
        self.attn_bias = hold(attn_bias)
        if isinstance(rotary, Rotary):
            rotary.check(self.head_dim)

    def _set_sizes(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None,
        head_dim: int | None,
        v_head_dim: int | None,
        kdim: int | None,
        vdim: int | None,
    ) -> None:
        """Set the sizes, each checked, with the defaults of those that are None."""

        def given(name: str, value: int | None, default: int, what: str) -> int:
            return check_size(name, default if value is None else value, what)

        self.embed_dim = check_size("embed_dim", embed_dim, "is that of the queries")
        self.num_heads = check_size("num_heads", num_heads, "counts heads")
        self.num_kv_heads = given("num_kv_heads", num_kv_heads, num_heads, "counts key–value heads")
        if num_heads % self.num_kv_heads:
            raise InputError(f"`num_heads` must be a multiple of `num_kv_heads`, got {num_heads} and {num_kv_heads}")
        if head_dim is None and embed_dim % num_heads:
            raise InputError(
                f"`embed_dim` must be a multiple of `num_heads`, got {embed_dim} and {num_heads}: choose a divisor of "
                f"{embed_dim}, or give the width of a head, head_dim={-(-embed_dim // num_heads)}"
            )
        self.head_dim = given("head_dim", head_dim, embed_dim // num_heads, "is that of a head")
        self.v_head_dim = given("v_head_dim", v_head_dim, self.head_dim, "is that of a value")
        self.kdim = given("kdim", kdim, embed_dim, "is that of the keys")
        self.vdim = given("vdim", vdim, embed_dim, "is that of the values")

    def forward(
        self,
        query: Float[Tensor, "*batch queries embed_dim"],
        key: Float[Tensor, "*batch keys kdim"] | None = None,
        value: Float[Tensor, "*batch keys vdim"] | None = None,
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        key_padding_mask: Bool[Tensor, "*batch keys"] | None = None,
        attn_bias: Bias | Tensor | None = None,
        is_causal: bool = False,
        position_ids: Int[Tensor, "#batch keys"] | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        cache: Entry | None = None,
        generator: torch.Generator | None = None,
        backend: str = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Let every query look at the keys; give (..., queries, out_dim), or a tuple of it and the weights.

        Args:
            query, key, value: The keys are the queries by default (self-attention), the values the keys.
            mask: A mask of regard.masks; a boolean tensor (queries, keys) or (batch, heads, queries, keys), True = may
                see; or four dimensions of zeros and ones, such as (batch, 1, 1, keys). The module's own holds as well.
                A query that sees nothing gets weights 0 and, of each head, 0.
            key_padding_mask: True for keys that are padding, which no query sees (PyTorch's meaning).
            attn_bias: What is added to the scores, if the module has no bias of its own.
            is_causal: Let query i see the keys 0 to i, as mask=masks.Causal() does for as many queries as keys.
            position_ids: Positions by which `rotary` turns the tokens, (batch or 1, keys), one row a sequence or one
                for all; 0, 1, 2, … by default, after what is in the cache. With `cache`, those of this call's tokens
                only, (batch or 1, queries). Left-padded and packed batches need them.
            need_weights: Return the weights too (..., heads, queries, keys), those before dropout.
            average_attn_weights: Return their mean over the heads (..., queries, keys).
            cache: What was read before (regard.cache): the queries stand behind it, `key` and `value` are added to it,
                and masks and biases count all the keys that it then gives. A `CrossAttentionCache` keeps those of the
                first call.
            generator, backend, max_bytes: As in regard.attention.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value, attn_bias)
        single = query.ndim == key.ndim == value.ndim == 2
        q, k, v = (query[None], key[None], value[None]) if single else (query, key, value)
        padding = key_padding_mask[None] if single and key_padding_mask is not None else key_padding_mask
        own, rotary = value_of(self.mask), value_of(self.rotary)
        if is_causal:
            own = both(own, _causal(query, key, cache))
        if position_ids is not None and (rotary is None or cache is None):
            rotary = _positioned(rotary, position_ids)
        q = norm_heads("q_norm", self.q_norm, split_heads("q_proj", self.q_proj(q), self.head_dim))
        if cache is None:
            k, v = self._keys_and_values(k, v)
        else:
            check_parts(value_of(self.normalizer), value_of(self.score), cache)
            own = needed(own, q.shape[-2], cache)
            q, (k, v) = self._remembered(q, k, v, rotary, cache, position_ids)
            rotary = None
        check_groups(q.shape[-3], k.shape[-3], v.shape[-3], self.num_heads, self.num_kv_heads)
        found: Any = attend_heads(
            self.num_heads,
            q,
            k,
            v,
            score=value_of(self.score),
            mask=own if mask is key_padding_mask is None else visible_keys(own, mask, padding, k[..., 0, :, :]),
            bias=bias_of_kept_keys(attn_bias if self.attn_bias is None else value_of(self.attn_bias), cache),
            rotary=rotary,
            scale=self.scale,
            normalizer=value_of(self.normalizer),
            dropout=self.dropout if self.training else 0.0,
            generator=generator,
            return_weights=need_weights,
            backend=backend,
            max_bytes=max_bytes,
        )
        heads, seen = found if isinstance(found, tuple) else (found, None)
        seen = seen.mean(-3) if average_attn_weights and seen is not None else seen
        heads = heads.transpose(-3, -2).flatten(-2)
        check_out_proj(self.out_proj, heads)
        output: Tensor = self.out_proj(heads)
        output = output.squeeze(0) if single else output
        if seen is None:
            return output
        return output, seen.squeeze(0) if single else seen

    def _check(self, query: Tensor, key: Tensor, value: Tensor, attn_bias: object) -> None:
        check_width("query", query, self.embed_dim, "embed_dim")
        check_width("key", key, self.kdim, "kdim")
        check_width("value", value, self.vdim, "vdim")
        if attn_bias is not None and self.attn_bias is not None:
            raise InputError("`attn_bias` is given, but the module has one of its own: leave one of them out")

    def _keys_and_values(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        k = norm_heads("k_norm", self.k_norm, split_heads("k_proj", self.k_proj(key), self.head_dim))
        return k, split_heads("v_proj", self.v_proj(value), self.v_head_dim)

    def _remembered(
        self, q: Tensor, key: Tensor, value: Tensor, rotary: Rotary | None, cache: Entry, position_ids: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Queries, and all keys and values: those of the cache are turned already, each at its place in the text."""
        turn = None if rotary is None else turning(rotary, cache, q.shape[-2], q, position_ids)
        known = cache.keys_and_values if isinstance(cache, CrossAttentionCache) else None
        if known is not None:  # projected once, at the first call
            return q, known
        k, v = self._keys_and_values(key, value)
        if turn is not None:
            check_local("cache", q)
            # At once: while a model generates, a step is so small that each operation counts.
            q, k = turn(torch.cat([q, k], -3)).split([q.shape[-3], k.shape[-3]], -3)
        return q, cache.update(k, v)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """Copy an nn.MultiheadAttention, fused projections or separate; ours is batch first, whatever theirs was.

        The copy has its types, devices, mode, and which parameters are trained.

        Raises:
            InputError: A subclass or the instance overrides a method, or there are hooks, parametrizations, parameters
                in two places, quantized layers or appended keys.
        """
        attention = cls(**read_multihead(module))
        fill_multihead(attention, module)
        return attention

    def to_torch(self) -> nn.MultiheadAttention:
        """Copy into an nn.MultiheadAttention, batch first; refused where that could not compute the same.

        The same is copied, and the same refused, as by `from_torch`.
        """
        return write_multihead(self, MultiHeadAttention)


def _causal(query: Tensor, key: Tensor, cache: Entry | None) -> Mask:
    """The mask that `is_causal=True` means, which is one where there are as many queries as keys."""
    if cache is None and query.shape[-2] != key.shape[-2]:
        raise InputError(
            f"`is_causal=True` needs as many queries as keys, got {query.shape[-2]} and {key.shape[-2]}: write "
            'mask=masks.Causal() if the queries are the last positions, masks.Causal(align="start") if the first'
        )
    return Causal()


def _positioned(rotary: Rotary | None, position_ids: Tensor) -> Rotary:
    if not isinstance(rotary, RoPE):
        raise InputError(
            "`position_ids` are those of a rotary embedding, and this module has "
            f"{'none' if rotary is None else type(rotary).__name__}: build it with rotary=positions.RoPE(head_dim)"
        )
    return rotary.at(position_ids)
