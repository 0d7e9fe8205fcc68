"""Multi-head attention: projections around regard.attention."""

from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.cache import Entry
from regard.errors import InputError
from regard.functional import attention
from regard.masks import BoundMask, Mask
from regard.nn.cache_utils import needed, turning
from regard.nn.checks import both, check_flag, check_probability, check_size, check_width, mask_of
from regard.nn.torch_multi_head import read_multihead, refuse_more, write_multihead
from regard.nn.value_module import hold, value_of
from regard.normalizers import Normalizer
from regard.positions import Bias, Rotary
from regard.problem import DEFAULT_MAX_BYTES
from regard.scores import Score

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    """Project, attend in several heads, and project back (Vaswani et al. 2017, 3.2.2, arXiv:1706.03762).

    Formula: head_h = attention(W_Q,h x, W_K,h y, W_V,h z); output = W_O [head_1; …; head_H] + b_O

    Four layers hold the projections: `q_proj`, `k_proj`, `v_proj`, `out_proj`. Everything that regard.attention takes
    as a frozen value can be given here. Tensors in it that are `nn.Parameter` become parameters of this module, others
    buffers (`regard.nn.Held`); a module that gives such a value when it is called without arguments serves too.

    Args:
        width: Width of the queries' vectors, and of the output unless `out_width` says otherwise.
        heads: Number of query heads.
        kv_heads: Number of key–value heads, a divisor of `heads` (GQA: arXiv:2305.13245; 1 is MQA); `heads` by default.
        head_dim: Width of a head's queries and keys; width / heads by default.
        value_dim: Width of a head's values; `head_dim` by default.
        key_width: Width of the keys' vectors; `width` by default.
        value_width: Width of the values' vectors; `key_width` by default.
        out_width: Width of the output; `width` by default.
        bias: Whether the projections of queries, keys and values add a vector.
        out_bias: Whether that of the output does; as `bias` by default.
        score, mask, attention_bias, rotary, normalizer, scale: As in regard.attention (`attention_bias` is its `bias`).
        q_norm, k_norm: Modules over (..., heads, n, head_dim), such as nn.RMSNorm(head_dim), before `rotary`.
        dropout: The probability with which a weight is dropped, in training mode only.
        device, dtype: Of the projections.

    Raises:
        InputError: Widths and heads do not divide; see regard.attention for the rest.

    >>> _ = torch.manual_seed(0)
    >>> layer = MultiHeadAttention(8, heads=2, kv_heads=1)
    >>> output, weights = layer(torch.randn(3, 5, 8), torch.randn(3, 7, 8), weights=True)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 8]), torch.Size([3, 2, 5, 7]))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        out_width: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        score: Score | nn.Module | None = None,
        mask: Mask | nn.Module | None = None,
        attention_bias: Bias | Tensor | nn.Module | None = None,
        rotary: Rotary | nn.Module | None = None,
        normalizer: Normalizer | nn.Module | None = None,
        scale: float | None = None,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.width, self.heads = (
            check_size("width", width, "is that of the queries"),
            check_size("heads", heads, "counts heads"),
        )
        self.kv_heads = check_size("kv_heads", heads if kv_heads is None else kv_heads, "counts key–value heads")
        if heads % self.kv_heads:
            raise InputError(f"`heads` must be a multiple of `kv_heads`, got {heads} and {kv_heads}")
        if head_dim is None and width % heads:
            raise InputError(
                f"`width` must be a multiple of `heads`, got {width} and {heads}: choose a divisor of {width}, or give "
                f"the width of a head, head_dim={-(-width // heads)}"
            )
        self.head_dim = check_size("head_dim", width // heads if head_dim is None else head_dim, "is that of a head")
        self.value_dim = check_size(
            "value_dim", self.head_dim if value_dim is None else value_dim, "is that of a value"
        )
        self.key_width = check_size("key_width", width if key_width is None else key_width, "is that of the keys")
        self.value_width = check_size(
            "value_width", self.key_width if value_width is None else value_width, "is that of the values"
        )
        self.dropout, self.scale = check_probability("dropout", dropout), scale
        bias = check_flag("bias", bias)
        if isinstance(attention_bias, bool):
            raise InputError(
                f"`attention_bias` is what is added to the scores, got {attention_bias}: `bias={attention_bias}` says "
                "whether the projections have biases"
            )
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=bias, **made)
        self.k_proj = nn.Linear(self.key_width, self.kv_heads * self.head_dim, bias=bias, **made)
        self.v_proj = nn.Linear(self.value_width, self.kv_heads * self.value_dim, bias=bias, **made)
        self.out_proj = nn.Linear(
            heads * self.value_dim,
            width if out_width is None else check_size("out_width", out_width, "is that of the output"),
            bias=bias if out_bias is None else check_flag("out_bias", out_bias),
            **made,
        )
        self.q_norm, self.k_norm = q_norm, k_norm
        self.score, self.mask, self.rotary, self.normalizer = hold(score), hold(mask), hold(rotary), hold(normalizer)
        self.attention_bias = hold(attention_bias)
        if isinstance(rotary, Rotary):
            rotary.check(self.head_dim)

    def forward(
        self,
        query: Float[Tensor, "*batch queries width"],
        key: Float[Tensor, "*batch keys key_width"] | None = None,
        value: Float[Tensor, "*batch keys value_width"] | None = None,
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        attention_bias: Bias | Tensor | None = None,
        weights: bool = False,
        cache: Entry | None = None,
        generator: torch.Generator | None = None,
        backend: str = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Let every query look at the keys; give (..., queries, out_width), or a tuple of it and the weights.

        Args:
            query, key, value: The keys are the queries by default (self-attention), the values the keys.
            mask: A mask of regard.masks; a boolean tensor (queries, keys) or (batch, heads, queries, keys), True = may
                see; or four dimensions of zeros and ones, such as (batch, 1, 1, keys). The module's own holds as well.
                A query that sees nothing gets weights 0 and, of each head, 0.
            attention_bias: What is added to the scores, if the module has no bias of its own.
            weights: Return the weights too (..., heads, queries, keys), those before dropout.
            cache: What was read before (regard.cache): the queries stand behind it, `key` and `value` are added to it,
                and masks and biases count all the keys that it then gives. `Memory` projects its keys once.
            generator, backend, max_bytes: As in regard.attention.
        """
        key = query if key is None else key
        value = key if value is None else value
        check_width("query", query, self.width, "width")
        check_width("key", key, self.key_width, "key_width")
        check_width("value", value, self.value_width, "value_width")
        if attention_bias is not None and self.attention_bias is not None:
            raise InputError("`attention_bias` is given, but the module has one of its own: leave one of them out")
        single = query.ndim == key.ndim == value.ndim == 2
        q, k, v = (query[None], key[None], value[None]) if single else (query, key, value)
        own, rotary = value_of(self.mask), value_of(self.rotary)
        q = _split(self.q_proj(q), self.heads)
        q = q if self.q_norm is None else self.q_norm(q)
        if cache is None:
            k, v = self._keys_and_values(k, v)
        else:
            q, (k, v) = self._remembered(q, k, v, rotary, cache)
            own, rotary = needed(own, q.shape[-2], cache), None
        found: Any = attention(
            q,
            k,
            v,
            score=value_of(self.score),
            mask=both(own, mask_of(mask)),
            bias=attention_bias if self.attention_bias is None else value_of(self.attention_bias),
            rotary=rotary,
            scale=self.scale,
            normalizer=value_of(self.normalizer),
            dropout=self.dropout if self.training else 0.0,
            generator=generator,
            return_weights=weights,
            backend=backend,
            max_bytes=max_bytes,
        )
        heads, seen = found if isinstance(found, tuple) else (found, None)
        output: Tensor = self.out_proj(heads.transpose(-3, -2).flatten(-2))
        output = output.squeeze(0) if single else output
        if seen is None:
            return output
        return output, seen.squeeze(0) if single else seen

    def _keys_and_values(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        k, v = _split(self.k_proj(key), self.kv_heads), _split(self.v_proj(value), self.kv_heads)
        return (k if self.k_norm is None else self.k_norm(k)), v

    def _remembered(
        self, q: Tensor, key: Tensor, value: Tensor, rotary: Rotary | None, cache: Entry
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Queries, and all keys and values: those of the cache are turned already, each at its place in the text."""
        if rotary is None:
            return q, cache.extend(lambda: self._keys_and_values(key, value))
        turn = turning(rotary, cache, q.shape[-2], q)

        def turned() -> tuple[Tensor, Tensor]:
            nonlocal q
            k, v = self._keys_and_values(key, value)
            # At once: while a model writes, a step is so small that each operation counts.
            q, k = turn(torch.cat([q, k], -3)).split([self.heads, self.kv_heads], -3)
            return k, v

        pair = cache.extend(turned)
        return q, pair

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> Self:
        """Copy an nn.MultiheadAttention, fused projections or separate; ours is batch first, whatever theirs was."""
        options, state = read_multihead(module)
        ours = cls(**options)
        ours.load_state_dict(state)
        return ours.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Copy into an nn.MultiheadAttention, batch first; refused where that could not compute the same."""
        parts = ("score", "mask", "attention_bias", "rotary", "normalizer", "scale", "q_norm", "k_norm")
        widths = {
            "kv_heads": self.kv_heads != self.heads,
            "head_dim": self.head_dim * self.heads != self.width,
            "value_dim": self.value_dim != self.head_dim,
            "out_width": self.out_proj.out_features != self.width,
            "out_bias": (self.out_proj.bias is None) != (self.q_proj.bias is None),
        }
        refuse_more([one for one in parts if getattr(self, one) is not None] + [one for one in widths if widths[one]])
        return write_multihead(self.state_dict(), self.heads, self.dropout).train(self.training)


def _split(x: Float[Tensor, "*batch n wide"], heads: int) -> Float[Tensor, "*batch heads n dim"]:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)
