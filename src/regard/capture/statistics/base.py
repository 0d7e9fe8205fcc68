"""What a statistic is, and the two shapes that most of them have: a number a query, a number a key."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.capture.call_context import Around
from regard.capture.weight_rows import Rows
from regard.errors import ObservationError

__all__ = ["Extent", "Need", "PerKey", "PerQuery", "Statistic"]

Need = Literal["tokens", "gradient", "layers"]


@dataclass(frozen=True)
class Extent:
    """How far a record reaches: all rows and columns seen so far, the ones of the call that begins included.

    Row i stands at position i + `offset` among the keys: 0 where a text attends to itself from its first token on, more
    where its beginning was not watched. In cross-attention both texts begin at 0. `around` answers what else a
    statistic asks of the call: token ids, values, the output projection.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    dtype: torch.dtype
    device: torch.device
    offset: int = 0
    cross: bool = False
    site: str = ""
    around: Around | None = None

    @property
    def alone(self) -> "Extent":
        """Without what surrounds the call: to keep, as tensors of the call must not outlive it."""
        return replace(self, around=None)

    def needs(self, statistic: str) -> Around:
        """What surrounds the call, for a statistic that cannot do without."""
        if self.around is None:
            raise ObservationError(f"{statistic!r} needs the call that the rows come from: ask for it in regard.watch")
        return self.around


class Statistic(Protocol):
    """Folds blocks of rows; later calls of incremental decoding append rows to the same record.

    Write one of your own by subclassing PerQuery or PerKey, or from nothing; each call site folds into a deep copy of
    what was asked for, as it is before its first `start`. Results are arrays (batch, heads, ...), with heads 1 where
    all share them, under `name` or names that begin with it and a dot.

    A class may have two more attributes. `needs`, a frozenset, tells what has to be known beforehand. "tokens": the
    ids that the model is called with. "gradient": rows are folded during backward, when `extent.around.gradient` is
    known. "layers": one copy serves all sites of a forward pass, in the order of their calls. `sweeps` is False where
    `start` knows enough and rows need not come. `by_head` is True where rows of different heads may be folded at once,
    from several threads: a subclass of PerQuery or PerKey may say so where what it is `of` rows depends on these alone.
    """

    name: str

    def start(self, extent: Extent) -> None:
        """Make room: a call begins, with rows behind those folded before."""
        ...

    def fold(self, rows: Rows) -> None:
        """Take in one block of whole rows."""
        ...

    def finish(self, extent: Extent) -> Mapping[str, npt.NDArray[np.generic] | Any]:
        """Give what was computed, under its names."""
        ...


class PerQuery:
    """One number for each row, (batch, heads, queries), or `width` of them: a subclass says what it is `of` rows."""

    name: str = ""
    by_head = False
    needs: frozenset[Need] = frozenset()
    width: int | None = None

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._first = 0

    def start(self, extent: Extent) -> None:
        """Rows of one call are one tensor; finish joins them."""
        self.extent = extent.alone
        self._first = sum(part.shape[2] for part in self._parts)
        rows = extent.queries - self._first
        shape = (extent.batch, extent.heads, rows) + (() if self.width is None else (self.width,))
        self._parts.append(torch.zeros(shape, dtype=extent.dtype, device=extent.device))

    def fold(self, rows: Rows) -> None:
        """Fill in the numbers of some rows."""
        here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
        self._parts[-1][rows.batch_index, rows.heads, here] = self.of(rows).to(self._parts[-1].dtype)

    def of(self, rows: Rows) -> Float[Tensor, "heads rows ..."]:
        """What is kept of each row."""
        raise NotImplementedError  # each statistic defines it

    def finish(self, extent: Extent) -> Mapping[str, Any]:
        """All rows."""
        return {self.name: torch.cat(self._parts, 2).cpu().numpy()}


class PerKey:
    """One number for each key, summed over rows, (batch, heads, keys): a subclass says what rows add to columns."""

    name: str = ""
    by_head = False

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def start(self, extent: Extent) -> None:
        """Make room for new keys."""
        self.extent = extent.alone
        if self._sums is None:
            # Many rows are added to one sum: in float64, wherever there is such a thing, it loses none of them.
            wide = extent.dtype if extent.device.type == "mps" else torch.float64
            self._sums = torch.zeros(extent.batch, extent.heads, extent.keys, dtype=wide, device=extent.device)
        elif (more := extent.keys - self._sums.shape[2]) > 0:
            # Decoding adds a key a call: leave room, so that a long generation does not copy at every step.
            self._sums = functional.pad(self._sums, (0, max(more, extent.keys // 4)))

    def fold(self, rows: Rows) -> None:
        """Add the columns of some rows."""
        assert self._sums is not None  # start comes first
        sums = self._sums[rows.batch_index, rows.heads, rows.columns]
        sums += self.of(rows)[:, : sums.shape[1]]

    def of(self, rows: Rows) -> Float[Tensor, "heads columns"]:
        """What these rows add to each of their columns."""
        raise NotImplementedError  # each statistic defines it

    def sums(self, extent: Extent) -> Float[Tensor, "batch heads keys"]:
        """The sums of the keys there are."""
        assert self._sums is not None
        return self._sums[..., : extent.keys]

    def finish(self, extent: Extent) -> Mapping[str, Any]:
        """The sums as an array."""
        return {self.name: self.sums(extent).to(extent.dtype).cpu().numpy()}
