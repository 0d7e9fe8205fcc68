"""Performer: softmax attention estimated by random features, in O(n) time and memory (FAVOR+)."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.approximations.approximate import (
    Approximate,
    check_heads,
    check_padding,
    check_padding_of_keys,
    check_tokens,
)
from regard.approximations.features import positive_features, prefix_sums, random_features
from regard.checks import check_flag
from regard.errors import InputError

__all__ = ["PerformerAttention", "performer_attention"]


def performer_attention(
    q: Float[Tensor, "*batch queries dim"],
    k: Float[Tensor, "*batch keys dim"],
    v: Float[Tensor, "*batch keys value_dim"],
    features: Float[Tensor, "count dim"],
    *,
    causal: bool = False,
    key_padding_mask: Bool[Tensor, "*#batch keys"] | None = None,
    eps: float = 1e-4,
) -> Approximate:
    """Estimate softmax(q·k/√d) v by φ(q)(φ(k)ᵀ v) / φ(q)(φ(k)ᵀ 1) (Choromanski et al. 2021, arXiv:2009.14794).

    The features are φ(x) = (exp(w·x' − |x'|²/2 − stabilizer) + eps)/√m with x' = x/d^(1/4). For a query, the stabilizer
    is the maximum of w·x' over the features of this query. For the keys, the stabilizer is one maximum over all keys
    and features. Both stabilizers cancel in the result, except for their effect on eps. Gradients take them for
    constants, as performer-pytorch does.

    Causal sums are computed over prefixes, in chunks. In the causal form, the stabilizer of a key is the maximum over
    the keys up to it, so a query does not depend on later keys. In performer-pytorch the stabilizer is the maximum over
    all keys, and through eps a query depends on later keys. With eps=0 both implementations give the same result.
    Half-precision inputs are computed in float32, also under autocast.

    Args:
        q: Queries; with `causal` as many as keys.
        k: Keys.
        v: Values.
        features: Directions w, as random_features draws them.
        causal: Query i sees keys 0 to i only.
        key_padding_mask: True for keys that are padding, which no query sees. A query that sees no key gets 0.
        eps: Keeps the denominator away from 0. The estimate of exp(q·k/√d) is unbiased at eps=0 only.

    Raises:
        InputError: Widths or lengths do not fit, `key_padding_mask` is not boolean, or eps is negative.

    >>> q = torch.zeros(2, 4)
    >>> performer_attention(q, q, torch.tensor([[0.0], [1.0]]), random_features(8, 4)).output
    tensor([[0.5000],
            [0.5000]])
    """
    _check(q, k, v, causal, key_padding_mask, eps)
    with torch.autocast(q.device.type, enabled=False):
        wide = [x.float() if x.element_size() < 4 else x for x in (q, k, v)]
        output = _estimate(wide[0], wide[1], wide[2], features, causal, key_padding_mask, eps)
    return Approximate(output.to(q.dtype), f"Performer, {features.shape[0]} random features")


def _estimate(
    q: Tensor, k: Tensor, v: Tensor, features: Tensor, causal: bool, padding: Tensor | None, eps: float
) -> Float[Tensor, "*batch queries value_dim"]:
    log_q, half_q = positive_features(q, features)
    log_k, half_k = positive_features(k, features)
    if padding is not None:
        log_k = log_k.masked_fill(padding[..., None], -torch.inf)
    root = features.shape[0] ** -0.5
    left = root * ((log_q - half_q - log_q.detach().amax(-1, keepdim=True)).exp() + eps)
    level = log_k.detach().amax(-1)
    level = level.cummax(-1).values if causal else level.amax(-1, keepdim=True)
    level = level.masked_fill(level == -torch.inf, 0.0)
    right = root * ((log_k - half_k - level[..., None]).exp() + eps)
    if padding is not None:
        right = right.masked_fill(padding[..., None], 0.0)
    counted = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # the last column sums to the denominator
    if causal:
        sums = prefix_sums(left, right, counted, level.expand(right.shape[:-1]))
    else:
        sums = left @ (right.transpose(-2, -1) @ counted)
    total = sums[..., -1:]
    return sums[..., :-1] / total.masked_fill(total == 0, 1.0)


class PerformerAttention(nn.Module):
    """Self- or cross-attention with the softmax estimated by orthogonal positive random features (FAVOR+).

    The module computes output(performer_attention(query(x), key(source), value(source), features)) for each head; all
    heads share one set of features. By default there are d·ln d features for heads of width d, as in
    performer-pytorch. They are a buffer, which is saved, moved and copied with the module, and only `redraw` changes
    them.

    The following relative errors against exact attention were measured with benchmarks/approximations.py. The inputs
    are 1,024 normal q, k and v of width 64, and each error is the mean of five draws.

    - If q and k have standard deviation 0.35, the error is 0.23 with 64 features, 0.11 with 256 and 0.06 with 1,024.
      Four times as many features halve the error.
    - If q and k have standard deviation 0.5, the error is 0.68, 0.37 and 0.20.
    - If q and k are standard normal, the error is 0.78 with any number of features. In this case eps dominates the
      features, and each row is nearly the mean of the values.

    Cost: O(n · features · dim) time, O(n · (features + dim)) memory, forward and backward, causal or not.

    Raises:
        InputError: `num_heads` does not divide `embed_dim`; shapes do not fit; causal with a source of another length.

    >>> attend = PerformerAttention(16, num_heads=2, num_features=32, causal=True)
    >>> attend(torch.zeros(1, 5, 16))
    Approximate(Performer, 32 random features: output (1, 5, 16))
    """

    features: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_features: int | None = None,
        causal: bool = False,
        bias: bool = True,
        eps: float = 1e-4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        width = check_heads(embed_dim, num_heads)
        check_flag("bias", bias)
        check_flag("causal", causal)
        _check_eps(eps)
        self.embed_dim, self.num_heads, self.causal, self.eps = embed_dim, num_heads, causal, eps
        self.query = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.value = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim)
        count = max(1, int(width * math.log(width))) if num_features is None else num_features
        self.register_buffer("features", random_features(count, width, generator=generator))

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new features, as the authors do every thousand steps of training; this is never done automatically."""
        self.features.copy_(random_features(*self.features.shape, generator=generator))

    def forward(
        self,
        x: Float[Tensor, "batch tokens embed_dim"],
        source: Float[Tensor, "batch keys embed_dim"] | None = None,
        *,
        key_padding_mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Approximate:
        """Compute attention from x to the source, or to x itself; `key_padding_mask` is True for padding."""
        source = x if source is None else source
        check_tokens("x", x, self.embed_dim)
        check_tokens("source", source, self.embed_dim, x.shape[0])
        if key_padding_mask is not None:
            check_padding(key_padding_mask, source)
        q, k, v = (
            layer(one).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, one in ((self.query, x), (self.key, source), (self.value, source))
        )
        padding = None if key_padding_mask is None else key_padding_mask[:, None]
        result = performer_attention(q, k, v, self.features, causal=self.causal, key_padding_mask=padding, eps=self.eps)
        return Approximate(self.output(result.output.transpose(1, 2).flatten(-2)), result.method)


def _check(q: Tensor, k: Tensor, v: Tensor, causal: bool, padding: Tensor | None, eps: float) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise InputError(
            f"q, k and v must have one floating-point type, got {q.dtype}, {k.dtype} and {v.dtype}: convert with .to()"
        )
    if min(one.ndim for one in (q, k, v)) < 2 or 0 in (*q.shape[-2:], *k.shape[-2:]):
        raise InputError(f"q, k and v must be (..., length, width), neither of them 0, got {shapes}: write q[None]")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-2] != k.shape[:-2]:
        raise InputError(
            f"q, k and v must have one batch, q and k one width, and k and v one length, got {shapes}: repeat grouped "
            "heads with repeat_interleave"
        )
    if causal and q.shape[-2] != k.shape[-2]:
        raise InputError(f"causal sums need a query for each key, got {shapes}: pass whole sequences, or causal=False")
    if padding is not None:
        check_padding_of_keys(padding, k.shape[:-1])
    _check_eps(eps)


def _check_eps(eps: float) -> None:
    if not 0 <= eps < math.inf:
        raise InputError(f"`eps` must be 0 or more and finite, got {eps}: it keeps the denominator positive")
