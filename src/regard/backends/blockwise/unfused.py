"""Pieces written out: any score, bias, normalizer, factor and dropout, on any device.

A tile of scores is computed, changed in place until it is weights, used and dropped; the backward computes it again.
Its gradients are those of the formula; what has no closed form here (a score or a bias of one's own) is differentiated
by autograd, tile by tile. Tiles are (batch, kv_heads, items, group, rows, columns), so that everything broadcasts.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from regard.backends.base import log_sum
from regard.backends.blockwise.bias_tiles import Term
from regard.backends.blockwise.block_layout import Piece, Sheet
from regard.backends.blockwise.scoring import Scoring
from regard.normalizers import Sigmoid

if TYPE_CHECKING:
    from regard.backends.blockwise.autograd_function import Gradients

__all__ = ["General"]

Tile = Float[Tensor, "batch kv_heads items group rows columns"]


class General:
    """Everything that a problem can ask for."""

    elements = 2**20  # of scores: a few such tiles stay in cache
    columns = 2**12

    def __init__(self, sheet: Sheet) -> None:
        problem = self.problem = sheet.problem
        self.sheet = sheet
        self.elements = max(1, General.elements // problem.score.floats_per_pair)
        self.scoring = Scoring(sheet)
        self.bias = None if problem.bias is None else Term(problem.bias, sheet)
        self.weight_factor = None if problem.weight_factor is None else Term(problem.weight_factor, sheet)
        self.shift = problem.normalizer.shift_for(problem.keys) if isinstance(problem.normalizer, Sigmoid) else None

    def forward(self, piece: Piece, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Output of one piece and its `log_sums`; without a softmax there are none, and outputs add up."""
        scores = self.scoring.scores(piece, q, k)
        capped, _ = self._capped(scores)
        scores = self._masked(piece, capped)
        sums = share = None
        if self.shift is None:
            peak = scores.amax(-1, keepdim=True)
            peak.masked_fill_(peak == -torch.inf, 0.0)
            weights = scores.sub_(peak).exp_()
            total = weights.sum(-1, keepdim=True)
            high, low = log_sum(peak, total)
            sums = self._by_rows(high.squeeze(-1)), self._by_rows(low.squeeze(-1))
            share = self._by_rows(total.masked_fill_(total == 0, 1.0))
        else:
            weights = scores.add_(self.shift).sigmoid_()
        weights, _ = self._thinned(piece, weights)
        output = self.scoring.weighted(piece, weights, v)
        return output if share is None else output.div_(share), sums

    def backward(
        self, piece: Piece, q: Tensor, k: Tensor, v: Tensor, up: Tensor, lse: Tensor, delta: Tensor, into: "Gradients"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The piece's share of the gradients of q, k and v; those of other tensors are added to `into`.

        `delta` is Σ_d up · output, less the gradient of the log-sum-exp. Where `lse` is rounded, both `up` and `delta`
        have been multiplied by what is missing in exp(scores − lse).
        """
        scores = self.scoring.scores(piece, q, k, trace=True)
        capped, slope = self._capped(scores)
        scores = self._masked(piece, capped)
        if self.shift is None:
            weights = scores.sub_(self._by_heads(lse.masked_fill(lse == -torch.inf, 0.0)).unsqueeze(-1)).exp_()
        else:
            weights = scores.add_(self.shift).sigmoid_()
        thin, keep = self._thinned(piece, weights)
        d_thin, dv = self.scoring.weighted_back(piece, thin, v, up, into)
        d_weights = self._thinned_back(piece, weights, d_thin, keep, into)
        if self.shift is None:
            d_scores = d_weights.sub_(self._by_heads(delta).unsqueeze(-1)).mul_(weights)
        else:
            d_scores = d_weights.mul_(weights).mul_(1 - weights)
        if self.bias is not None:
            self.bias.back(piece, d_scores, into)
        if slope is not None:
            d_scores.mul_(slope)
        dq, dk = self.scoring.back(piece, q, k, d_scores, into)
        return dq, dk, dv

    def _capped(self, scores: Tile) -> tuple[Tile, Tile | None]:
        """Scores within ±softcap, and the slope of the cap there."""
        cap = self.problem.score.softcap
        if cap is None:
            return scores, None
        ratio = scores.div_(cap).tanh_()
        return ratio * cap, 1 - ratio.square()

    def _masked(self, piece: Piece, scores: Tile) -> Tile:
        """Bias added, hidden pairs at −inf."""
        if self.bias is not None:
            scores.add_(self.bias.tile(piece).to(scores.dtype))
        hidden = self.sheet.hidden(piece)
        return scores if hidden is None else scores.masked_fill_(hidden, -torch.inf)

    def _thinned(self, piece: Piece, weights: Tile) -> tuple[Tile, Tensor | None]:
        """Weights after the factor and dropout, and what dropout multiplies by."""
        if self.weight_factor is not None:
            weights = weights * self.weight_factor.tile(piece).to(weights.dtype)
        keep = self._keep(piece, weights.dtype)
        return weights if keep is None else weights * keep, keep

    def _thinned_back(self, piece: Piece, weights: Tile, d_thin: Tile, keep: Tensor | None, into: "Gradients") -> Tile:
        if keep is not None:
            d_thin.mul_(keep)
        if self.weight_factor is not None:
            self.weight_factor.back(piece, weights * d_thin, into)
            d_thin = d_thin * self.weight_factor.tile(piece).to(weights.dtype)  # a second derivative needs both
        return d_thin

    def _keep(self, piece: Piece, dtype: torch.dtype) -> Tensor | None:
        """1 / (1 − p) where dropout keeps a weight and 0 elsewhere."""
        dropout = self.problem.dropout
        if dropout is None:
            return None
        rows, columns = piece.places(self.sheet.block, shared=False)
        kept = dropout.keep(self.sheet.batch, self.sheet.heads, rows, columns)  # (batch, heads, items, rows, columns)
        tile: Tensor = kept.unflatten(1, self.sheet.sizes[1:]).transpose(2, 3)
        return tile.to(dtype).mul_(1 / (1 - dropout.p))

    def _by_rows(
        self, x: Float[Tensor, "batch kv_heads items group rows *one"]
    ) -> Float[Tensor, "sides items rows *one"]:
        return x.flatten(0, 1).flatten(2, 3)

    def _by_heads(self, x: Float[Tensor, "sides items rows"]) -> Float[Tensor, "batch kv_heads items group rows"]:
        batch, kv_heads, group = self.sheet.sizes
        tile: Tensor = x.unflatten(2, (group, -1)).unflatten(0, (batch, kv_heads))
        return tile
