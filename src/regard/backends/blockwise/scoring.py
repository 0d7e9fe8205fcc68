"""Scores of a tile and sums of its values, with their gradients: in closed form for products, else by autograd."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.backends.blockwise.block_layout import BlockBand, Piece, Sheet
from regard.scores.base import score_tile, value_term_tile
from regard.values import flatten, unflatten

if TYPE_CHECKING:
    from regard.backends.blockwise.autograd_function import Gradients

__all__ = ["Scoring", "traced"]

Tile = Float[Tensor, "batch kv_heads items group rows columns"]


class Scoring:
    """score(q, k) · scale, and weights · v, over the pieces of a sheet."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self.product = sheet.problem.score.product
        self.held, self._form = flatten(sheet.problem.score)
        self._back: Callable[[Tensor], tuple[Tensor | None, ...]] | None = None

    def scores(self, piece: Piece, q: Tensor, k: Tensor, *, trace: bool = False) -> Tile:
        """Scores of a piece, a new tensor; with `trace` what `back` needs is kept."""
        if self.product:
            flat_q, flat_k = _flat(piece, q, k)
            return self._tile(self._times(flat_q, flat_k.transpose(1, 2)), piece)
        if not trace:
            return self._own(piece, q, k, *self.held)
        result, self._back = traced(lambda *new: self._own(piece, *new), q, k, *self.held)
        return result.clone()

    def back(self, piece: Piece, q: Tensor, k: Tensor, up: Tile, into: "Gradients") -> tuple[Tensor, Tensor]:
        """Gradients of the q and k of a piece, given those of its scores."""
        if self.product:
            flat_q, flat_k = _flat(piece, q, k)
            d_scores = up.reshape(*flat_q.shape[:2], -1)
            dq, dk = self._times(d_scores, flat_k), self._times(d_scores.transpose(1, 2), flat_q)
            return dq.view(q.shape), dk.unflatten(0, (len(q), -1))
        assert self._back is not None
        shares, self._back = self._back(up), None
        into.add(self.held, shares[2:])
        dq, dk = (torch.zeros_like(x) if share is None else share for x, share in zip((q, k), shares, strict=False))
        return dq, dk

    def weighted(self, piece: Piece, weights: Tile, v: Tensor) -> Float[Tensor, "sides items rows value_dim"]:
        """Σ weights · v, and the term of the pair where the score adds one to the value."""
        flat_weights, flat = _flat(piece, weights.flatten(0, 1).flatten(2, 3), v)
        output = torch.bmm(flat_weights, flat)
        batch, kv_heads, items, group, rows, _ = weights.shape
        output = output.view(batch * kv_heads, items, group * rows, -1)
        if not self.product and (term := self._term(piece, weights, *self.held)) is not None:
            output = output + term
        return output

    def weighted_back(
        self, piece: Piece, weights: Tile, v: Tensor, up: Tensor, into: "Gradients"
    ) -> tuple[Tile, Tensor]:
        """Gradients of the weights and the v of a piece, given that of its output."""
        flat_up, flat = _flat(piece, up, v)
        flat_weights, _ = _flat(piece, weights.flatten(0, 1).flatten(2, 3), v)
        d_weights = self._tile(torch.bmm(flat_up, flat.transpose(1, 2)), piece)
        dv = torch.bmm(flat_weights.transpose(1, 2), flat_up)
        if not self.product:
            term, back = traced(lambda *new: self._term_or_number(piece, *new), weights, *self.held)
            if term.ndim:
                shares = back(up)
                into.add(self.held, shares[1:])
                if shares[0] is not None:
                    d_weights.add_(shares[0])
        return d_weights, dv.unflatten(0, (len(v), -1))

    def _times(self, a: Tensor, b: Tensor) -> Tensor:
        """scale · a · b"""
        return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=self.sheet.problem.scale)

    def _own(self, piece: Piece, q: Tensor, k: Tensor, *held: Tensor) -> Tile:
        """A score of one's own, of real rows and columns only; zeros where blocks are filled up."""
        rows, columns = self.sheet.real(piece)
        batch, kv_heads, group = self.sheet.sizes
        q = q.reshape(batch, kv_heads * group, self.sheet.block, -1)[:, :, : rows.stop - rows.start]
        k = k.reshape(batch, kv_heads, k.shape[2], -1)[:, :, : columns.stop - columns.start]
        k = k.repeat_interleave(group, 1) if group > 1 else k
        problem, score = self.sheet.problem, unflatten(self._form, held)
        tile = problem.scale * score_tile(score, q, k, *self._place(rows, columns))
        block = self.sheet.block
        tile = pad(tile, (0, -tile.shape[3] % block, 0, -tile.shape[2] % block))
        spaced: Tensor = tile.unflatten(1, (kv_heads, group))[:, :, None]
        return spaced

    def _place(self, rows: slice, columns: slice) -> tuple[slice, slice, Tensor, Tensor, tuple[int, int]]:
        """Which sequences, heads, queries and keys a tile is of, and how many sequences and heads there are."""
        problem = self.sheet.problem
        sizes = problem.batch, problem.heads
        return self.sheet.batch, self.sheet.heads, problem.i(rows), problem.j(columns), sizes

    def _term(self, piece: Piece, weights: Tile, *held: Tensor) -> Tensor | None:
        rows, columns = self.sheet.real(piece)
        part = weights[:, :, 0].flatten(1, 2)[..., : rows.stop - rows.start, : columns.stop - columns.start]
        score = unflatten(self._form, held)
        term = value_term_tile(score, part, *self._place(rows, columns), self.sheet.problem.v.shape[-1])
        if term is None:
            return None
        term = pad(term, (0, 0, 0, -term.shape[2] % self.sheet.block))
        batch, kv_heads, _ = self.sheet.sizes
        return term.reshape(batch * kv_heads, 1, -1, term.shape[-1])

    def _term_or_number(self, piece: Piece, weights: Tile, *held: Tensor) -> Tensor:
        """The term, or a 0 that comes of the weights where the score adds none."""
        term = self._term(piece, weights, *held)
        return weights[..., :0].sum() if term is None else term

    def _tile(self, flat: Tensor, piece: Piece) -> Tile:
        """Any flat layout of a piece's pairs as a tile; all have the same order in memory."""
        batch, kv_heads, group = self.sheet.sizes
        return flat.view(batch, kv_heads, piece.count, group, self.sheet.block, flat.shape[-1])


def _flat(piece: Piece, by_rows: Tensor, by_keys: Tensor) -> tuple[Tensor, Tensor]:
    """What belongs to rows and what belongs to keys, for one batched product.

    Rows that see the same keys become one tall matrix: the keys are read once and their gradients summed inside.
    """
    if isinstance(piece, BlockBand) and (piece.step == 0 or piece.count == 1):
        return by_rows.flatten(1, 2), by_keys[:, 0]
    return by_rows.flatten(0, 1), by_keys.flatten(0, 1)


def traced(
    compute: Callable[..., Tensor], *inputs: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor | None, ...]]]:
    """Compute with a graph of its own, whatever the mode around it; and give what finds the gradients of the inputs."""
    if torch.is_grad_enabled():  # the backward is differentiated in its turn, or runs inside torch.func
        return torch.func.vjp(compute, *inputs)  # type: ignore[return-value]
    with torch.enable_grad():
        leaves = tuple(one.detach().requires_grad_() for one in inputs)
        result = compute(*leaves)
    return result.detach(), lambda up: torch.autograd.grad(result, leaves, up, allow_unused=True)
