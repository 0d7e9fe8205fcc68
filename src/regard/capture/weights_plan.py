"""Plan which rows are computed together in the second pass, and which columns they need, from the mask's blocks."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from regard.masks import EMPTY, FULL, BoundMask
from regard.masks.base import edges

__all__ = ["BLOCK_ELEMENTS", "Block", "Plan"]

BLOCK_ELEMENTS = 2**20  # maximum number of scores, and of weights: 4 MiB each in float32, which fits the cache
_COLUMNS = 128  # the columns of a block are a multiple of this; those after the last key have weight 0
_ROWS = 16  # minimum number of rows of a unit
_TALLEST = 1024


@dataclass(frozen=True)
class Block:
    """Rows [top, bottom) over columns [left, right) of a call, in indices."""

    top: int
    bottom: int
    left: int
    right: int
    cut: slice | None  # the columns in which the mask must be evaluated pair by pair
    sure: bool  # whether every row sees at least one key


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of one call. Rows are grouped in units, which do not cross the bins of the heat map.

    A block has at most BLOCK_ELEMENTS scores, but at least 16 rows: twice 4 MiB in float32 up to 65,536 keys, and
    twice 64 bytes per key beyond, independent of the number of queries.
    """

    bounds: npt.NDArray[np.int64]  # edges of the units
    kinds: npt.NDArray[np.int8] | None  # (batch, heads, units, column blocks), None if every pair is visible
    unit: int
    padded: int
    _known: dict[tuple[int, int, int], list[Block]] = field(default_factory=dict)

    @classmethod
    def of(cls, mask: BoundMask | None, queries: int, keys: int, start: int, align: int) -> "Plan":
        """Return the plan of a call whose first row is row `start` of the record, in which bins span `align` rows."""
        padded = -(-keys // _COLUMNS) * _COLUMNS
        unit = max(_ROWS, align)
        while unit > _ROWS and unit * padded > BLOCK_ELEMENTS:
            unit //= 2  # a part of a bin: for very long texts, whole bins would take hundreds of megabytes
        first = min(-start % unit or unit, queries)
        bounds = torch.tensor([0, *range(first, queries, unit), queries])
        kinds = None if mask is None else mask.blocks(bounds, edges(keys, _COLUMNS)).numpy()
        return cls(bounds.numpy(), kinds, unit, padded)

    def blocks(self, batch_index: int, heads: slice) -> list[Block]:
        """Return the blocks of some heads of one sequence: neighbouring units, joined while they fit the cache
        together.
        """
        count = heads.stop - heads.start
        batch, all_heads = self.kinds.shape[:2] if self.kinds is not None else (1, 1)
        row, which = batch_index if batch > 1 else 0, heads if all_heads > 1 else slice(0, 1)
        key = (row, which.start, count)
        if key not in self._known:
            if self.kinds is None:
                sees, full = np.ones((len(self.bounds) - 1, self.padded // _COLUMNS), np.bool_), None
            else:
                kinds = self.kinds[row, which]
                sees, full = (kinds != EMPTY).any(0), (kinds == FULL).all(0)
            self._known[key] = self._join(sees, full, count)
        return self._known[key]

    def _join(self, sees: npt.NDArray[np.bool_], full: npt.NDArray[np.bool_] | None, heads: int) -> list[Block]:
        columns = sees.shape[1]
        left = np.where(sees.any(1), sees.argmax(1), 0)
        right = np.where(sees.any(1), columns - sees[:, ::-1].argmax(1), 1)
        blocks, unit = [], 0
        while unit < len(left):
            low, high, last = left[unit], right[unit], unit + 1
            while last < len(left):
                wider = max(high, right[last]) - min(low, left[last])
                rows = self.bounds[last + 1] - self.bounds[unit]
                if rows > _TALLEST or heads * rows * wider * _COLUMNS > BLOCK_ELEMENTS:
                    break
                low, high, last = min(low, left[last]), max(high, right[last]), last + 1
            blocks.append(self._block(unit, last, int(low), int(high), full))
            unit = last
        return blocks

    def _block(self, unit: int, last: int, low: int, high: int, full: npt.NDArray[np.bool_] | None) -> Block:
        cut, sure = None, full is None
        if full is not None:
            part = full[unit:last, low:high]
            asked = np.flatnonzero(~part.all(0))
            if len(asked):
                cut = slice((low + int(asked[0])) * _COLUMNS, (low + int(asked[-1]) + 1) * _COLUMNS)
            sure = bool(part.any(1).all())
        top, bottom = int(self.bounds[unit]), int(self.bounds[last])
        return Block(top, bottom, low * _COLUMNS, high * _COLUMNS, cut, sure)
