"""Attention of recurrent networks over a memory: additive (Bahdanau), bilinear and local (Luong)."""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.checks import check_probability, check_size
from regard.errors import InputError
from regard.functional import attention
from regard.masks import BoundMask, LocalMonotonic, LocalPredictive, Mask, Padding
from regard.nn.checks import check_padding, check_width, public_module, visible_keys
from regard.nn.projections import check_width_of, weight_of
from regard.positions import Gaussian
from regard.problem import DEFAULT_MAX_BYTES
from regard.scores import Additive, Bilinear, Score

__all__ = ["AdditiveAttention", "BilinearAttention", "LocalAttention"]


class _ScoreAttention(nn.Module):
    embed_dim: int
    kdim: int
    dropout: float

    def _score(self) -> Score:
        raise NotImplementedError  # each attention has its own

    def forward(
        self,
        query: Float[Tensor, "*batch queries embed_dim"],
        key: Float[Tensor, "*batch keys kdim"],
        value: Float[Tensor, "*batch keys vdim"] | None = None,
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        key_padding_mask: Bool[Tensor, "batch keys"] | None = None,
        need_weights: bool = False,
        generator: torch.Generator | None = None,
        backend: str = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (..., queries, vdim), and with `need_weights` those before dropout (..., queries, keys).

        `mask` and `key_padding_mask` (True hides) are as in MultiHeadAttention; `generator`, `backend` and `max_bytes`
        as in regard.attention.
        """
        check_width("query", query, self.embed_dim, "embed_dim")
        check_width("key", key, self.kdim, "kdim")
        found: Any = attention(
            query,
            key,
            key if value is None else value,
            score=self._score(),
            mask=visible_keys(None, mask, key_padding_mask, key),
            dropout=self.dropout if self.training else 0.0,
            return_weights=need_weights,
            generator=generator,
            backend=backend,
            max_bytes=max_bytes,
        )
        return found  # type: ignore[no-any-return]


@public_module()
class AdditiveAttention(_ScoreAttention):
    """softmax(v·tanh(W q + U k)) over the keys (Bahdanau et al. 2015, A.1.2, arXiv:1409.0473).

    If no values are given, the keys are also the values. In the paper the query is the decoder's previous state, and
    the keys are the encoder's states. `query_proj` holds W and `key_proj` holds U, both without bias; `vector` holds v.

    Args:
        embed_dim: Width of the queries.
        kdim: Width of the keys; `embed_dim` by default.
        hidden_features: Width of the layer between; `kdim` by default.
        dropout: The probability with which a weight is dropped, in training mode only.

    Raises:
        InputError: Sizes are no positive integers, or widths do not fit.

    >>> attend = AdditiveAttention(8, 6, hidden_features=4)
    >>> output, weights = attend(torch.zeros(2, 3, 8), torch.zeros(2, 5, 6), need_weights=True)
    >>> output.shape, weights[0, 0]
    (torch.Size([2, 3, 6]), tensor([0.2000, 0.2000, 0.2000, 0.2000, 0.2000], grad_fn=<SelectBackward0>))
    """

    def __init__(
        self, embed_dim: int, kdim: int | None = None, *, hidden_features: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed_dim = check_size("embed_dim", embed_dim, "is that of the queries")
        self.kdim = check_size("kdim", embed_dim if kdim is None else kdim, "is that of the keys")
        hidden = check_size(
            "hidden_features", self.kdim if hidden_features is None else hidden_features, "is that of the layer between"
        )
        self.dropout = check_probability("dropout", dropout)
        self.query_proj = nn.Linear(self.embed_dim, hidden, bias=False)
        self.key_proj = nn.Linear(self.kdim, hidden, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def _score(self) -> Score:
        query, key = weight_of("query_proj", self.query_proj), weight_of("key_proj", self.key_proj)
        return Additive(query, key, self.vector)


@public_module()
class BilinearAttention(_ScoreAttention):
    """softmax(q·W·k) over the keys (Luong et al. 2015, 3.1, "general", arXiv:1508.04025).

    If no values are given, the keys are also the values. In the paper the query is the decoder's current state.

    Args:
        embed_dim: Width of the queries.
        kdim: Width of the keys; `embed_dim` by default.
        dropout: The probability with which a weight is dropped, in training mode only.

    Raises:
        InputError: Sizes are no positive integers, or widths do not fit.

    >>> attend = BilinearAttention(8, 6)
    >>> attend(torch.zeros(2, 3, 8), torch.zeros(2, 5, 6)).shape, attend.weight.shape
    (torch.Size([2, 3, 6]), torch.Size([8, 6]))
    """

    def __init__(self, embed_dim: int, kdim: int | None = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed_dim = check_size("embed_dim", embed_dim, "is that of the queries")
        self.kdim = check_size("kdim", embed_dim if kdim is None else kdim, "is that of the keys")
        self.dropout = check_probability("dropout", dropout)
        # q·W·k of independent standard normal q and k has variance 1.
        self.weight = nn.Parameter(torch.randn(self.embed_dim, self.kdim) * (embed_dim * self.kdim) ** -0.5)

    def _score(self) -> Score:
        return Bilinear(self.weight)


@public_module(takes_jagged=False)
class LocalAttention(nn.Module):
    """softmax(h·W·s_j) for source positions j within `radius` of a position p (Luong et al. 2015, 3.2,
    arXiv:1508.04025).

    With alignment "monotonic" (local-m), p_t = t. If t is beyond the last source position, p_t is the last source
    position. With alignment "predictive" (local-p), the position is learned: p_t = S · σ(v_p·tanh(W_p h_t)) for a
    source of length S. The window is then [⌊p_t⌋ − radius, ⌊p_t⌋ + radius], and the weights in it are multiplied by
    exp(−(j − p_t)²/(2 (radius/2)²)). The weights are not renormalized afterwards, so they sum to less than 1. p_t gets
    its gradient from this factor.

    `weight` holds W, `place_proj` W_p and `place_vector` v_p. The source states are also the values.

    Args:
        embed_dim: Width of the decoder's states h.
        radius: D, how many positions on either side are seen; the paper takes 10.
        kdim: Width of the source; `embed_dim` by default.
        alignment: How p is found.

    Raises:
        InputError: Widths do not fit, the alignment is neither, `key_padding_mask` has gaps, or a predictive radius is
            0.

    >>> attend = LocalAttention(8, radius=1, alignment="monotonic")
    >>> _, weights = attend(torch.zeros(1, 2, 8), torch.zeros(1, 4, 8), need_weights=True)
    >>> weights.detach()
    tensor([[[0.5000, 0.5000, 0.0000, 0.0000],
             [0.3333, 0.3333, 0.3333, 0.0000]]])
    """

    def __init__(
        self,
        embed_dim: int,
        radius: int,
        *,
        kdim: int | None = None,
        alignment: Literal["monotonic", "predictive"] = "predictive",
    ) -> None:
        super().__init__()
        self.embed_dim = check_size("embed_dim", embed_dim, "is that of the queries")
        self.kdim = check_size("kdim", embed_dim if kdim is None else kdim, "is that of the source")
        self.radius = check_size("radius", radius, "counts the positions on either side")
        if alignment not in ("monotonic", "predictive"):
            raise InputError(f'`alignment` must be "monotonic" or "predictive", got {alignment!r}')
        self.alignment = alignment
        self.weight = nn.Parameter(torch.randn(embed_dim, self.kdim) * (embed_dim * self.kdim) ** -0.5)
        if alignment == "predictive":
            self.place_proj = nn.Linear(embed_dim, embed_dim, bias=False)
            self.place_vector = nn.Parameter(torch.randn(embed_dim) * embed_dim**-0.5)

    def forward(
        self,
        query: Float[Tensor, "batch queries embed_dim"],
        source: Float[Tensor, "batch positions kdim"],
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        key_padding_mask: Bool[Tensor, "batch positions"] | None = None,
        q_offset: int | Int[Tensor, " batch"] = 0,
        need_weights: bool = False,
        backend: str = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (batch, queries, kdim), and with `need_weights` the weights (batch, queries, positions).

        Args:
            query: The decoder's states, number `q_offset` and those after it.
            source: The encoder's states.
            mask: What hides more than the window does, as in MultiHeadAttention.
            key_padding_mask: True for padding, which follows the source; its length S is then that of each sequence.
            q_offset: Number of the first query, for a decoder that runs step by step; one a sequence, or one for all.
            need_weights: Return the weights too.
            backend, max_bytes: As in regard.attention.
        """
        check_width("query", query, self.embed_dim, "embed_dim")
        check_width("source", source, self.kdim, "kdim")
        real = None if key_padding_mask is None else ~check_padding(source, key_padding_mask, x_name="source")
        near: Mask
        if self.alignment == "predictive":
            place = self.places(query, _lengths(source, real))
            near, weight_factor = LocalPredictive(place, self.radius), Gaussian(place, float(self.radius))
        elif real is None and isinstance(q_offset, int):
            near, weight_factor = LocalMonotonic(self.radius, q_offset), None
        else:
            step = torch.arange(query.shape[1], device=query.device, dtype=torch.float32)
            at = step + (q_offset if isinstance(q_offset, int) else q_offset[:, None])
            near, weight_factor = LocalPredictive(at.minimum(_lengths(source, real) - 1), self.radius), None
        found: Any = attention(
            query,
            source,
            source,
            score=Bilinear(self.weight),
            mask=visible_keys(near if real is None else near & Padding(real), mask, None, source),
            weight_factor=weight_factor,
            return_weights=need_weights,
            backend=backend,
            max_bytes=max_bytes,
        )
        return found  # type: ignore[no-any-return]

    def places(
        self, query: Float[Tensor, "batch queries embed_dim"], lengths: Float[Tensor, "batch 1"]
    ) -> Float[Tensor, "batch queries"]:
        """p = S · σ(v_p·tanh(W_p h)) in positions from 0, in float32 at least: float16 cannot count beyond 2,048."""
        projected = self.place_proj(query)
        check_width_of("place_proj", projected, self.place_vector.shape[0])
        logits = projected.tanh() @ self.place_vector
        share: Tensor = logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid()
        return lengths * share


def _lengths(source: Tensor, real: Tensor | None) -> Float[Tensor, "batch 1"]:
    """How long each source is."""
    batch, positions = source.shape[:2]
    if real is None:
        return torch.full((batch, 1), float(positions), device=source.device)
    lengths = real.sum(1, keepdim=True)
    if not bool((real == (torch.arange(positions, device=real.device) < lengths)).all()):
        raise InputError(
            "`key_padding_mask` must be False for the first positions of each source and True for the rest, as places "
            "are counted from the first: pad on the right"
        )
    return lengths.to(torch.float32)
