"""The heat map of one head, pooled to the resolution of a figure: each cell is the largest weight among its pairs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.record.records import Layer
from regard.record.tiles import pooled

__all__ = ["HeadMap", "head_map"]


@dataclass(frozen=True, eq=False)
class HeadMap:
    """`values` is (rows, columns); a cell spans `query_bin` × `key_bin` tokens. With bins of 1 a cell is a single
    weight.

    The maximum is used instead of the mean, so that a single strong weight among 16 × 16, diagonals and sink columns
    stay visible.
    """

    values: npt.NDArray[np.floating]
    query_bin: int
    key_bin: int

    @property
    def exact(self) -> bool:
        """Whether every cell is a single weight."""
        return self.query_bin == self.key_bin == 1

    @property
    def caption(self) -> str:
        """The description of a cell."""
        if self.exact:
            return "each cell is one weight"
        return f"each cell is {self.query_bin} × {self.key_bin} tokens, largest weight"


def head_map(layer: Layer, head: int, batch_index: int, *, rows: int, columns: int) -> HeadMap:
    """Return the map of one head in at most `rows` × `columns` cells, which are square for self-attention."""
    if layer.exact is not None:
        values, query_bin, key_bin = layer.exact[batch_index, head], 1, 1
    else:
        values, query_bin, key_bin = layer.max[batch_index, head], layer.query_bin, layer.key_bin
    down, across = -(-values.shape[0] // rows), -(-values.shape[1] // columns)
    if layer.kind == "self":
        down = across = max(down, across)
    return HeadMap(pooled(values, down, across, "max"), query_bin * down, key_bin * across)
