"""One head's matrix for the page: tiles, rows, columns and single weights, with or without sinks.

Without sinks the matrix is p′ = p / (1 − s), where s is the weight that a row gives to sinks, and 0 in their columns.
Cells of several positions pool p′ if single weights are available. Otherwise the rows of a cell are divided by the
mean of their 1 − s, in which a sink beyond the strongest keys of its row counts 0, and the largest weight of a cell
that contains a sink is unknown and returned as NaN. Single weights of a row with such a sink are unknown without the
sinks.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.heads.patterns import find_sinks
from regard.record.records import Layer
from regard.record.tiles import Matrix, Pool, cell_areas, pooled
from regard.record.weights_on import weights_on

__all__ = ["TILE", "HeadTiles"]

TILE = 256  # cells per side
_COMPUTED = 512  # positions per side of a tile computed from queries and keys, so that each takes little time
_DENSE = 2**22  # maximum number of weights of which p′ is computed one by one
_NOTHING = 1e-6  # remaining weight of a row that gives all its weight to sinks
Array = npt.NDArray[np.floating[Any]]


class HeadTiles:
    """One head of one sequence.

    Args:
        layer: The layer of the head.
        head: The head, counted from 0.
        batch_index: The sequence of the batch, counted from 0; negative numbers count from the end.
    """

    def __init__(self, layer: Layer, head: int, batch_index: int = 0) -> None:
        self.matrix = Matrix(layer, head, batch_index)
        self.layer, self.head, self.batch_index = layer, head, batch_index
        self.found = find_sinks(layer, batch_index)
        self.sinks = np.array([sink.key for sink in self.found], dtype=np.intp)

    @cached_property
    def taken(self) -> Array:
        """The weight that each query gives to each sink (queries, sinks), NaN where it is unknown."""
        return self._on(range(self.matrix.queries), self.sinks.tolist())

    def _on(self, queries: Sequence[int], keys: Sequence[int] | None = None) -> Array:
        on: Array = weights_on(self.layer, self.batch_index, [self.head], queries, keys)[0]
        return on

    @cached_property
    def remaining(self) -> npt.NDArray[np.float64]:
        """1 − s of each query, or infinity if nothing remains, so that its row becomes 0; NaN where s is unknown."""
        rest = 1 - self.taken.astype(np.float64).sum(1)
        return np.where(rest <= _NOTHING, np.inf, rest)

    def side(self, step: int) -> int:
        """Return the number of cells per side of a tile with this step; the page computes the same."""
        kept = self.layer.exact is not None or step >= max(self.layer.query_bin, self.layer.key_bin)
        return TILE if kept else min(TILE, max(1, _COMPUTED // step))

    def tile(self, rows: slice, columns: slice, step: int, pool: Pool, *, sinks: bool = True) -> Array:
        """Return a rectangle of cells, as `Matrix.tile` does, with or without sinks."""
        if sinks or not len(self.sinks):
            return self.matrix.tile(rows, columns, step=step, pool=pool)
        positions = (rows.stop - rows.start) * (columns.stop - columns.start)
        if self.matrix.finest > 1 or positions > _DENSE:
            return self._together(rows, columns, step, pool)
        # The matrix checks the rectangle and the step; the cells are then computed from single weights.
        self.matrix.tile(slice(rows.start, rows.start + 1), slice(columns.start, columns.start + 1), step=step)
        weights = self._renormalized(self.matrix.tile(rows, columns), rows, columns)
        return pooled(weights, step, step, pool)

    def _renormalized(self, weights: Array, rows: slice, columns: slice) -> Array:
        kept = np.ones(columns.stop - columns.start, dtype=np.bool_)
        kept[self._inside(columns) - columns.start] = False
        return np.asarray(np.where(kept, weights, 0) / self.remaining[rows, None], dtype=np.float32)

    def _inside(self, columns: slice) -> npt.NDArray[np.intp]:
        found: npt.NDArray[np.intp] = self.sinks[(self.sinks >= columns.start) & (self.sinks < columns.stop)]
        return found

    def _together(self, rows: slice, columns: slice, step: int, pool: Pool) -> Array:
        """Return cells whose rows are divided by a common mean."""
        cells = self._plain(rows, columns, step, pool).astype(np.float64)
        starts = np.arange(0, rows.stop - rows.start, step)
        heights = np.diff([*starts, rows.stop - rows.start])
        sunk = (self._inside(columns) - columns.start) // step
        if pool == "mean":
            given = np.add.reduceat(np.nan_to_num(self.taken[rows]).astype(np.float64), starts, axis=0)
            for sink, key in enumerate(self.sinks):
                if columns.start <= key < columns.stop:
                    cell = (key - columns.start) // step
                    width = min(step, columns.stop - columns.start - cell * step)
                    cells[:, cell] -= given[:, sink] / (heights * width)
        else:
            cells[:, sunk] = np.nan
        left = 1 - np.nan_to_num(self.taken[rows]).astype(np.float64).sum(1)  # of a map, what is unknown is little
        rest = np.add.reduceat(np.where(left > _NOTHING, left, 0), starts) / heights
        rest = np.where(rest > _NOTHING, rest, np.inf)
        return np.asarray(np.clip(cells / rest[:, None], 0, 1), dtype=np.float32)

    def _plain(self, rows: slice, columns: slice, step: int, pool: Pool) -> Array:
        """Return cells with sinks, or the stored map if its resolution is requested."""
        layer, matrix = self.layer, self.matrix
        whole = (rows, columns) == (slice(0, matrix.queries), slice(0, matrix.keys))
        if whole and layer.query_bin == layer.key_bin == step:
            return np.asarray((layer.mean if pool == "mean" else layer.max)[self.batch_index, self.head])
        return matrix.tile(rows, columns, step=step, pool=pool)

    def line(self, axis: str, at: int, *, sinks: bool = True) -> Array:
        """Return one full row or column, with NaN for weights that are unknown because only the strongest were
        recorded.
        """
        row = axis == "row"
        found = self._on([at])[0] if row else self._on(range(self.matrix.queries), [at])[:, 0]
        line = found.astype(np.float32)
        if sinks or not len(self.sinks):
            return line
        rest = self.remaining[at] if row else self.remaining
        line = np.asarray(line / rest, dtype=np.float32)
        if row:
            line[self.sinks] = 0
        elif at in self.sinks:
            line[:] = 0
        return line

    def weight(self, query: int, key: int) -> dict[str, Any]:
        """Return one weight, with and without sinks; for an unknown weight, its upper bound."""
        known = float(self._on([query], [key])[0, 0])
        weight = None if np.isnan(known) else known
        least = float(self.layer.top_weights[self.batch_index, self.head, query, -1])
        without = None
        if weight is not None and len(self.sinks):
            rest = float(self.remaining[query])
            without = 0.0 if key in self.sinks else None if np.isnan(rest) else weight / rest
        return {"weight": weight, "without": without, "below": least if weight is None else None}

    def tops(self, *, sinks: bool = True) -> dict[Pool, dict[int, float]]:
        """Return the largest cell at each step, for a colour scale that does not change when the map is moved.

        Where single weights are computed, or are too many, the values between them and the cells of the stored map,
        whose largest values are known, are interpolated.
        """
        return {"mean": self._tops("mean", sinks), "max": self._tops("max", sinks)}

    def _tops(self, pool: Pool, sinks: bool) -> dict[int, float]:
        matrix, step = self.matrix, max(self.layer.query_bin, self.layer.key_bin)
        if self.layer.exact is not None and matrix.queries * matrix.keys <= _DENSE:
            step = 1
        everything = slice(0, matrix.queries), slice(0, matrix.keys)
        cells = self._plain(*everything, step, pool) if sinks else self.tile(*everything, step, pool, sinks=False)
        tops, base = {step: _largest(cells)}, step
        areas: Array = cell_areas(*everything, step)
        while step < max(matrix.queries, matrix.keys):
            step *= 2
            known = np.nan_to_num(cells)
            if pool == "max":
                cells = pooled(known, 2, 2, "max")
            else:
                sums, areas = pooled(known * areas, 2, 2, "sum"), pooled(areas, 2, 2, "sum")
                cells = sums / areas
            tops[step] = _largest(cells)
        if matrix.finest == 1 and base > 1:
            tops[1] = self._tops("max", sinks)[base] if pool == "mean" else tops[base]
            finer, levels = 2, base.bit_length() - 1
            while finer < base:
                share = (finer.bit_length() - 1) / levels
                tops[finer] = tops[1] ** (1 - share) * tops[base] ** share
                finer *= 2
        return tops


def _largest(cells: Array) -> float:
    known = cells[np.isfinite(cells)]
    return float(known.max(initial=0.0))
