"""What a statistic is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from regard.observe.rows import Rows

__all__ = ["Extent", "Statistic"]


@dataclass(frozen=True)
class Extent:
    """How far a record reaches: all rows and columns seen so far, the ones of the call that begins included."""

    batch: int
    heads: int
    queries: int
    keys: int
    dtype: torch.dtype
    device: torch.device


class Statistic(Protocol):
    """Folds blocks of rows; later calls of incremental decoding append rows to the same record."""

    def start(self, extent: Extent) -> None:
        """Make room: a call begins, with rows behind those folded before."""
        ...

    def fold(self, rows: Rows) -> None:
        """Take in one block of whole rows."""
        ...

    def finish(self, extent: Extent) -> Mapping[str, npt.NDArray[np.generic] | Any]:
        """Give what was computed, under the names of the fields of `Layer`."""
        ...
