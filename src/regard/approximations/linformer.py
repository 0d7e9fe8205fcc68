"""Linformer: keys and values compressed from n positions to a fixed rank, so that attention costs O(n · rank)."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.approximations.approximate import Approximate, check_heads, check_padding, check_tokens
from regard.checks import check_flag, check_size
from regard.errors import InputError

__all__ = ["Compression", "LinformerAttention"]

Sharing = Literal["none", "headwise", "key-value"]


class Compression(nn.Module):
    """The compression matrices E and F (Wang et al. 2020, arXiv:2006.04768): `rank` learned sums over up to `length`
    positions.

    `sharing` determines the number of matrices. With "none" each head has an E and an F of its own. With "headwise" all
    heads share one E and one F. With "key-value" one matrix is used as E and as F. For the paper's "layerwise" sharing,
    pass one `Compression` with "key-value" to every layer. An input shorter than `length` uses the first columns.

    Raises:
        InputError: A size is less than 1, or the sharing is none of the three.

    >>> {name: tuple(one.shape) for name, one in Compression(8, 2, num_heads=4).named_parameters()}
    {'e': (4, 2, 8), 'f': (4, 2, 8)}
    >>> {name: tuple(one.shape) for name, one in Compression(8, 2, num_heads=4, sharing="key-value").named_parameters()}
    {'e': (1, 2, 8)}
    """

    def __init__(self, length: int, rank: int, *, num_heads: int = 1, sharing: Sharing = "none") -> None:
        super().__init__()
        for name, value in (("length", length), ("rank", rank), ("num_heads", num_heads)):
            check_size(name, value)
        if sharing not in ("none", "headwise", "key-value"):
            raise InputError(
                f'`sharing` must be "none", "headwise" or "key-value", got {sharing!r}: for layerwise sharing give one '
                'Compression(..., sharing="key-value") to every layer'
            )
        shape = (num_heads if sharing == "none" else 1, rank, length)
        self.e = nn.Parameter(torch.randn(shape) * rank**-0.5)
        self.f = nn.Parameter(torch.randn(shape) * rank**-0.5) if sharing != "key-value" else None

    def forward(
        self, k: Float[Tensor, "batch heads keys dim"], v: Float[Tensor, "batch heads keys value_dim"]
    ) -> tuple[Float[Tensor, "batch heads rank dim"], Float[Tensor, "batch heads rank value_dim"]]:
        """Return E k and F v, using the first columns of both."""
        keys, length, heads = k.shape[-2], self.e.shape[-1], self.e.shape[0]
        if keys > length:
            raise InputError(f"this compression is for up to {length} keys, got {keys}: make it with length={keys}")
        if heads not in (1, k.shape[1]):
            raise InputError(
                f'this compression is for {heads} heads, got {k.shape[1]}: share it with sharing="headwise"'
            )
        f = self.e if self.f is None else self.f
        return self.e[..., :keys] @ k, f[..., :keys] @ v


class LinformerAttention(nn.Module):
    """output(softmax(q·(E k)/√d) (F v)): self- or cross-attention over `rank` sums of keys instead of all keys.

    E compresses the input before W_k projects it, as in the authors' code. The biases are therefore not compressed: the
    keys are (E x) W + b instead of E (x W + b). Padded keys are set to zero before they are compressed. If all keys are
    padding, each head returns 0. There is no causal form, because each of the `rank` keys combines all positions.

    The following relative errors were measured on new sequences with benchmarks/approximations.py. E and F (headwise)
    were fitted to exact attention over 256 tokens that resemble their neighbours. The error is 0.25 at rank 8, 0.038 at
    rank 32 and 0.014 at rank 128. Tokens that do not resemble one another cannot be compressed. With rank = length and
    E = F = 1 the result is exact.

    Cost: O(n · rank · dim) time, O(n · rank) memory.

    Raises:
        InputError: `num_heads` does not divide `embed_dim`; the input is longer than the compression; a mask is passed.

    >>> attend = LinformerAttention(16, num_heads=2, compression=Compression(10, 4, num_heads=2))
    >>> attend(torch.zeros(1, 7, 16))
    Approximate(Linformer, rank 4 for 7 keys: output (1, 7, 16))
    """

    def __init__(self, embed_dim: int, num_heads: int, compression: Compression, *, bias: bool = True) -> None:
        super().__init__()
        check_heads(embed_dim, num_heads)
        check_flag("bias", bias)
        if not isinstance(compression, Compression):
            raise InputError(
                f"`compression` must be a Compression, got {type(compression).__name__}: "
                f"Compression(length, rank, num_heads={num_heads})"
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.query = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.value = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.compression = compression

    def forward(
        self,
        x: Float[Tensor, "batch tokens embed_dim"],
        source: Float[Tensor, "batch keys embed_dim"] | None = None,
        *,
        key_padding_mask: Bool[Tensor, "batch keys"] | None = None,
        mask: object = None,
    ) -> Approximate:
        """Compute attention from x to the source, or to x itself; `key_padding_mask` marks padding, and any `mask` is
        refused.
        """
        if mask is not None:
            raise InputError(
                f"Linformer has no mask over pairs, causal or other, got {type(mask).__name__}: E mixes all positions "
                "before a query looks. Pass `key_padding_mask=` for padding, or use PerformerAttention(causal=True) or "
                "regard.attention with the mask"
            )
        source = x if source is None else source
        check_tokens("x", x, self.embed_dim)
        check_tokens("source", source, self.embed_dim, x.shape[0])
        if key_padding_mask is not None:
            check_padding(key_padding_mask, source)
            source = source.masked_fill(key_padding_mask[..., None], 0.0)
        k, v = self.compression(
            self._split(functional.linear(source, self.key.weight)),
            self._split(functional.linear(source, self.value.weight)),
        )
        k, v = self._biased(k, self.key), self._biased(v, self.value)
        out = functional.scaled_dot_product_attention(self._split(self.query(x)), k, v)
        if key_padding_mask is not None:
            out = out.masked_fill(key_padding_mask.all(1)[:, None, None, None], 0.0)
        method = f"Linformer, rank {k.shape[-2]} for {source.shape[1]} keys"
        return Approximate(self.output(out.transpose(1, 2).flatten(-2)), method)

    def _split(self, x: Float[Tensor, "batch tokens embed_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads

    def _biased(self, x: Float[Tensor, "batch heads rank head_dim"], layer: nn.Linear) -> Tensor:
        return x if layer.bias is None else x + layer.bias.view(self.num_heads, 1, -1)
