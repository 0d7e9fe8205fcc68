"""Pieces on PyTorch's fused CPU kernel, which takes strided windows and gives the log-sum-exp.

The operators are those that `F.scaled_dot_product_attention` calls on CPU. Their backward recomputes weights as
exp(scores − lse), so that with the output and log-sum-exp of whole rows it gives each piece's share of the gradients.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.backends.blockwise.bias_tiles import Term
from regard.backends.blockwise.block_layout import BlockBand, Piece, Sheet
from regard.normalizers import Softmax
from regard.problem import Problem

__all__ = ["Fused", "as_wide", "can_fuse", "evened"]


_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Fused:
    """Dot products, softmax, any mask, and a bias without a gradient that depends on i − j alone."""

    elements = 2**23  # of scores, which the kernel does not keep: bounds masks, gathered keys and their gradients
    columns = 2**14

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        bias = sheet.problem.bias
        self.bias = None if bias is None else Term(bias, sheet)
        self._last: tuple[tuple[int, int, int], tuple[Tensor | None, Tensor | None]] | None = None

    def forward(
        self,
        piece: Piece,
        q: Float[Tensor, "sides items rows dim"],
        k: Float[Tensor, "sides items columns dim"],
        v: Float[Tensor, "sides items columns value_dim"],
    ) -> tuple[Float[Tensor, "sides items rows value_dim"], tuple[Tensor, Tensor]]:
        """Output and log-sum-exp of one piece; what rounding took from that is unknown, and taken for 0."""
        added, blind = self._added(piece)
        shape = q.shape
        q, k, v = _stacked(piece, q, k, v)
        output, lse = _FORWARD(q, k, v, 0.0, False, attn_mask=added, scale=self.sheet.problem.scale)
        output, lse = output.reshape(*shape[:3], -1), lse.reshape(shape[:3])
        lse = lse if blind is None else lse.masked_fill(blind, -torch.inf)
        return output, (lse, torch.zeros_like(lse))

    def backward(
        self,
        piece: Piece,
        q: Float[Tensor, "sides items rows dim"],
        k: Float[Tensor, "sides items columns dim"],
        v: Float[Tensor, "sides items columns value_dim"],
        up: Float[Tensor, "sides items rows value_dim"],
        output: Float[Tensor, "sides items rows value_dim"],
        lse: Float[Tensor, "sides items rows"],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The piece's share of the gradients of q, k and v."""
        added, _ = self._added(piece)
        shape = q.shape
        q, k, v = _stacked(piece, q, k, v)
        up, output, lse = (x.reshape(*q.shape[:3], *x.shape[3:]) for x in (up, output, lse))
        dq, dk, dv = _BACKWARD(up, q, k, v, output, lse, 0.0, False, attn_mask=added, scale=self.sheet.problem.scale)
        return dq.reshape(shape), dk, dv

    def _added(self, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores (−inf where hidden), and the rows that see nothing."""
        if not (isinstance(piece, BlockBand) and piece.masked and self.sheet.shared(piece) and self.bias is None):
            return self._asked(piece)
        # Pieces of one band differ only in where they stand, unless they reach beyond the last key.
        beyond = (piece.start + piece.length) * self.sheet.block > self.sheet.problem.keys
        key = piece.start - piece.row, piece.length, piece.row if beyond else -1
        if self._last is None or self._last[0] != key:
            self._last = key, self._asked(piece)
        return self._last[1]

    def _asked(self, piece: Piece) -> tuple[Tensor | None, Tensor | None]:
        added: Tensor | None = None
        blind: Tensor | None = None
        if self.bias is not None:
            # The same for all items of a piece; the kernel reads it as numbers of the queries' type, whatever it has.
            added = self._by_sides(self.bias.tile(piece).to(self.sheet.problem.q.dtype))
        hidden = self.sheet.hidden(piece)
        if hidden is not None:
            rows = self._by_sides(hidden)
            blind = rows.all(-1)
            nothing = torch.zeros((), dtype=self.sheet.problem.q.dtype) if added is None else added
            added = nothing.masked_fill(rows, -torch.inf)
        if self.bias is not None and added is not None:
            blind = added.amax(-1) == -torch.inf  # a bias may hide a row of this piece, alone or with the mask
        return added, blind

    def _by_sides(self, tile: Tensor) -> Float[Tensor, "#sides #items rows columns"]:
        """A tile for every row that shares a key–value head; one side where all are alike."""
        batch, kv_heads, group = self.sheet.sizes
        if tile.shape[0] == tile.shape[1] == 1:
            batch = kv_heads = 1
        return tile.expand(batch, kv_heads, -1, group, -1, -1).flatten(0, 1).flatten(2, 3)


def _stacked(piece: Piece, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that see the same keys become one tall block, so that gradients of the keys are summed inside."""
    if isinstance(piece, BlockBand) and piece.step == 0 and piece.count > 1:
        return q.flatten(1, 2)[:, None], k[:, :1], v[:, :1]
    return q, k, v


def can_fuse(problem: Problem) -> bool:
    """Whether the pieces can run on PyTorch's fused CPU kernel; it has no gradient for a bias."""
    return (
        problem.q.device.type == "cpu"
        and problem.score.product
        and problem.score.softcap is None
        and isinstance(problem.normalizer, Softmax)
        and problem.dropout is None
        and problem.weight_factor is None
    )


def evened(problem: Problem) -> Problem:
    """The fused kernel wants keys and values of one width: zeros change no product, and their columns are cut off."""
    widest = max(problem.k.shape[-1], problem.v.shape[-1])
    all_three = problem.q, problem.k, problem.v
    q, k, v = (as_wide(x, widest) for x in all_three)
    return replace(problem, q=q, k=k, v=v)


def as_wide(x: Tensor, width: int) -> Tensor:
    """Fill up the last dimension with zeros."""
    return pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x
