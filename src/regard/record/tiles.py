"""One head's matrix at any resolution: single weights, whole rows, and tiles whose cells span 1, 2, 4, … positions.

Coarse cells are computed exactly from the stored map by merging bins. Cells finer than its bins need every weight, or
the recorded queries and keys (`keep="qk"`).
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, ObservationError
from regard.record.layers import Layer, head_at

__all__ = ["Matrix", "Pool", "cell_areas", "pooled"]

_CELLS = 2**22  # maximum size of one computed tile
_PAIRS = 2**20

Pool = Literal["mean", "max"]
Array = npt.NDArray[np.floating]


class Matrix:
    """The weights of one head of one sequence.

    Args:
        layer: The layer of the head.
        head: The head, counted from 0; one that was recorded.
        batch_index: The sequence of the batch, counted from 0; negative numbers count from the end.

    Raises:
        InputError: The head or sequence does not exist, or the head was not chosen for recording.
    """

    def __init__(self, layer: Layer, head: int, batch_index: int = 0) -> None:
        for name, value, count in (("head", head, layer.heads), ("batch_index", batch_index, layer.batch)):
            if not 0 <= value < count:
                raise InputError(f"`{name}` must be from 0 to {count - 1}, got {value}")
        self.layer, self.head, self.batch_index = layer, head_at(layer, head), batch_index
        self.queries, self.keys = layer.queries, layer.keys

    @property
    def finest(self) -> int:
        """The number of positions that the smallest available cell spans; 1 means single weights."""
        return (
            1
            if self.layer.exact is not None or self.layer.qk is not None
            else max(self.layer.query_bin, self.layer.key_bin)
        )

    def weight(self, query: int, key: int) -> float:
        """Return one exact weight."""
        return float(self.tile(slice(query, query + 1), slice(key, key + 1))[0, 0])

    def row(self, query: int) -> Array:
        """Return the weights of one query, of shape (keys,)."""
        row: Array = self.tile(slice(query, query + 1), slice(0, self.keys))[0]
        return row

    def column(self, key: int) -> Array:
        """Return the weights on one key, of shape (queries,)."""
        column: Array = self.tile(slice(0, self.queries), slice(key, key + 1))[:, 0]
        return column

    def tile(self, rows: slice, columns: slice, *, step: int = 1, pool: Pool = "mean") -> Array:
        """Return a rectangle with one cell per `step` × `step` positions: their mean, or their largest weight.

        Args:
            rows, columns: The ranges of positions; both begin at a multiple of `step` and end within the
                matrix. The last cells may span fewer positions, and their mean is over those.
            step: A power of two.
            pool: "mean" or "max".

        Raises:
            InputError: The rectangle is outside the matrix, or the step is not a power of two.
            ObservationError: The cells are finer than the recorded data.
        """
        self._check(rows, columns, step)
        if (exact := self.layer.exact) is not None:
            return pooled(exact[self.batch_index, self.head, rows, columns], step, step, pool)
        if step < max(self.layer.query_bin, self.layer.key_bin):
            return self._computed(rows, columns, step, pool)
        return self._merged(rows, columns, step, pool)

    def _computed(self, rows: slice, columns: slice, step: int, pool: Pool) -> Array:
        """Return cells finer than the map, computed from queries and keys in bands of rows and pooled."""
        kept = self.layer.qk
        if kept is None:
            raise ObservationError(
                f"of layer {self.layer.name} only a map of {self.layer.query_bin} × {self.layer.key_bin} positions a "
                'cell was kept: watch with keep="qk" for single weights of a long text'
            )
        cells = -(-(rows.stop - rows.start) // step) * -(-(columns.stop - columns.start) // step)
        if cells > _CELLS:
            raise InputError(
                f"a tile that is computed must have at most {_CELLS:,} cells, got {cells:,}: ask for a part of it, or "
                "for a larger `step`"
            )
        tall = max(1, _PAIRS // (columns.stop - columns.start) // step) * step  # computed at a time
        bands = [slice(top, min(top + tall, rows.stop)) for top in range(rows.start, rows.stop, tall)]
        parts = [pooled(kept.tile(self.batch_index, self.head, band, columns), step, step, pool) for band in bands]
        return np.concatenate(parts).astype(self._dtype, copy=False)

    def _merged(self, rows: slice, columns: slice, step: int, pool: Pool) -> Array:
        """Return merged bins of the stored map; a mean weights each bin by its number of positions."""
        layer = self.layer
        bins = [
            slice(along.start // width, -(-along.stop // width))
            for along, width in ((rows, layer.query_bin), (columns, layer.key_bin))
        ]
        stored = layer.mean if pool == "mean" else layer.max
        part = np.asarray(stored[self.batch_index, self.head, bins[0], bins[1]])
        steps = step // layer.query_bin, step // layer.key_bin
        if pool == "max":
            return pooled(part, *steps, "max")
        heights = _spans(rows, layer.query_bin, self.queries)
        widths = _spans(columns, layer.key_bin, self.keys)
        areas = heights[:, None] * widths
        sums = pooled(part * areas, *steps, "sum")
        return np.asarray(sums / pooled(areas, *steps, "sum"), dtype=self._dtype)

    @property
    def _dtype(self) -> npt.DTypeLike:
        """float64 if the model computed in float64, else float32."""
        return self.layer.entropy.dtype

    def _check(self, rows: slice, columns: slice, step: int) -> None:
        if isinstance(step, bool) or not isinstance(step, int) or step < 1 or step & (step - 1):
            raise InputError(f"`step` must be a power of two, got {step!r}")
        for name, along, count in (("rows", rows, self.queries), ("columns", columns, self.keys)):
            ends = along.start, along.stop
            if any(not hasattr(end, "__index__") for end in ends) or along.step not in (None, 1):
                raise InputError(f"`{name}` must be a slice with a start and an end, such as slice(0, 10), got {along}")
            if not 0 <= along.start < along.stop <= count or along.start % step:
                raise InputError(
                    f"`{name}` must be a range within 0 to {count} that begins at a multiple of {step}, got "
                    f"{along.start} to {along.stop}"
                )


def pooled(part: npt.NDArray[np.floating], tall: int, broad: int, pool: Literal["mean", "max", "sum"]) -> Array:
    """Return cells of the last two axes merged in groups of `tall` rows and `broad` columns; the last may be smaller.

    >>> pooled(np.arange(6, dtype=np.float32).reshape(2, 3), 2, 2, "max")
    array([[4., 5.]], dtype=float32)
    """
    dtype = np.float64 if part.dtype == np.float64 else np.float32
    if (tall, broad) != (1, 1):
        reduce = np.maximum if pool == "max" else np.add
        height, width = part.shape[-2:]
        rows, columns = np.arange(0, height, tall), np.arange(0, width, broad)
        counts = np.diff([*rows, height])[:, None] * np.diff([*columns, width])
        part = reduce.reduceat(reduce.reduceat(part, rows, axis=-2), columns, axis=-1)
        part = part / counts if pool == "mean" else part
    return np.asarray(part, dtype=dtype)


def cell_areas(rows: slice, columns: slice, step: int) -> npt.NDArray[np.float64]:
    """Return the number of pairs of each cell of a rectangle, which the last cells may span fewer of."""
    return _spans(rows, step, rows.stop)[:, None] * _spans(columns, step, columns.stop)


def _spans(along: slice, width: int, count: int) -> npt.NDArray[np.float64]:
    """Return the number of positions of each bin of a range; the last bin may be smaller."""
    starts = np.arange(along.start // width, -(-along.stop // width)) * width
    return np.asarray(np.minimum(starts + width, count) - starts, dtype=np.float64)
