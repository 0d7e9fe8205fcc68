"""The interface of statistics, two base classes for most of them (one number per query, one number per key), and a
function to try one out.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError, ObservationError
from regard.observe.call_kinds import CallFromWeights
from regard.observe.padding import Padding
from regard.observe.watched_call import Ids, WatchedCall
from regard.observe.weight_rows import RowBlock
from regard.record.statistic_axes import Axis

__all__ = ["Extent", "Need", "PerKey", "PerQuery", "Statistic", "of_weights"]


Need = Literal["tokens", "gradient", "layers"]


@dataclass(frozen=True)
class Extent:
    """The size of a record: all rows and columns so far, including those of the call that begins.

    Row i is at position i + `offset` among the keys: the offset is 0 for self-attention from the first token on, and
    larger if the beginning was not recorded. In cross-attention both texts begin at 0, and so do queries and pooled
    keys of one image (Segformer). `padding` marks the rows and columns that are no tokens; None if there are none.
    `around` provides further data of the call: token ids, values, the output projection.
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
    around: WatchedCall | None = None
    padding: Padding | None = None

    @property
    def alone(self) -> "Extent":
        """The extent without the context of the call, to be stored, since tensors of the call must not be kept
        alive.
        """
        return replace(self, around=None)

    def needs(self, statistic: str) -> WatchedCall:
        """Return the context of the call, for a statistic that requires it."""
        if self.around is None:
            raise ObservationError(f"{statistic!r} needs the call that the rows come from: ask for it in regard.watch")
        return self.around


class Statistic(Protocol):
    """A statistic of blocks of rows; later calls of incremental decoding append rows to the same record.

    To define one of your own, subclass PerQuery or PerKey, or implement the three methods. Each call site uses a deep
    copy of the requested statistic, made before its first `start`. Results are arrays (batch, heads, ...), with heads
    1 if all heads share them, under `name` or names that begin with it and a dot.

    A class may have further attributes. `needs` is a frozenset of prerequisites: "tokens" for the ids of the model's
    input; "gradient" to process rows during backward, when `extent.around.gradient` is known; "layers" to use one copy
    for all sites of a forward pass, in the order of their calls. `sweeps` is False if `start` is sufficient and rows
    are not needed. `by_head` is True if the results of a head depend on its own rows only, and rows of different heads
    may be processed concurrently in several threads, which a subclass of PerQuery or PerKey may set if the result of
    `of` depends only on the rows. Of a sequence that is sharded over ranks, each rank then gets the rows of some heads;
    otherwise each rank gets all rows.

    `conclude(record)`, if there is one, is called for a statistic with `needs` "layers" once a pass, before its first
    `finish`: with the record of the pass, all of its layers (also those that `layers=` leaves out), tokens, and what is
    missing. An error there, or in `finish`, is raised at the end of the `with` block, and costs nothing but this
    statistic.

    `reorder(rows)`, if there is one, lets each sequence of the batch go on from another one's results, as beam search
    reorders them; without it, reordered sequences are refused.

    `axes` tells what the axes of the array under `name` are behind (batch, heads), so that exported files can name
    them: a tuple of ("queries", None), ("keys", None), ("keys", (3, 5)) for chosen ones, or ("names", ("a", "b")).
    """

    name: str

    def start(self, extent: Extent, /) -> None:
        """Allocate memory for a call, whose rows follow the previous ones."""
        ...

    def fold(self, rows: RowBlock) -> None:
        """Process one block of whole rows."""
        ...

    def finish(self, extent: Extent, /) -> Mapping[str, npt.NDArray[np.generic] | Any]:
        """Return the results by their names."""
        ...


class PerQuery:
    """One number per row, (batch, heads, queries), or `width` numbers; a subclass defines them in `of`."""

    name: str = ""
    by_head = False
    needs: frozenset[Need] = frozenset()
    width: int | None = None
    axes: tuple[Axis, ...] | None = None

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._first = 0

    def start(self, extent: Extent, /) -> None:
        """Allocate one tensor for the rows of the call; `finish` joins them."""
        self.extent = extent.alone
        self._first = sum(part.shape[2] for part in self._parts)
        rows = extent.queries - self._first
        shape = (extent.batch, extent.heads, rows) + (() if self.width is None else (self.width,))
        self._parts.append(torch.zeros(shape, dtype=extent.dtype, device=extent.device))

    def fold(self, rows: RowBlock) -> None:
        """Store the numbers of some rows."""
        here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
        self._parts[-1][rows.batch_index, rows.heads, here] = self.of(rows)

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the numbers of another."""
        self._parts = [part[rows] for part in self._parts]

    def of(self, rows: RowBlock) -> Float[Tensor, "heads rows ..."]:
        """Return the number or numbers of each row."""
        raise NotImplementedError  # defined by each statistic

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the numbers of all rows."""
        return {self.name: torch.cat(self._parts, 2).cpu().numpy()}


class PerKey:
    """One number per key, summed over rows, (batch, heads, keys); a subclass defines the contribution of rows
    in `of`. Rows of padding are no part of the sums: `of` gets them as 0.
    """

    name: str = ""
    by_head = False
    axes: tuple[Axis, ...] | None = (("keys", None),)

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def start(self, extent: Extent, /) -> None:
        """Allocate memory for new keys."""
        self.extent = extent.alone
        if self._sums is None:
            # Many rows are added to one sum: in float64, wherever there is such a thing, it loses none of them.
            wide = extent.dtype if extent.device.type == "mps" else torch.float64
            self._sums = torch.zeros(extent.batch, extent.heads, extent.keys, dtype=wide, device=extent.device)
        elif (more := extent.keys - self._sums.shape[2]) > 0:
            # Decoding adds a key a call: leave room, so that a long generation does not copy at every step.
            self._sums = functional.pad(self._sums, (0, max(more, extent.keys // 4)))

    def fold(self, rows: RowBlock) -> None:
        """Add the columns of some rows."""
        assert self._sums is not None  # start is called first
        shown = rows if self.extent.padding is None else self.extent.padding.visible_rows(rows)
        if shown is None:
            return
        sums = self._sums[rows.batch_index, rows.heads, rows.columns]
        sums += self.of(shown)[:, : sums.shape[1]]

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the sums of another."""
        self._sums = None if self._sums is None else self._sums[rows]

    def of(self, rows: RowBlock) -> Float[Tensor, "heads columns"]:
        """Return the contribution of these rows to each of their columns."""
        raise NotImplementedError  # defined by each statistic

    def sums(self, extent: Extent, /) -> Float[Tensor, "batch heads keys"]:
        """Return the sums of the existing keys."""
        assert self._sums is not None
        return self._sums[..., : extent.keys]

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the sums as an array."""
        return {self.name: self.sums(extent).to(extent.dtype).cpu().numpy()}


def of_weights(
    statistic: Statistic, weights: Any, *, input_ids: Sequence[int] | None = None
) -> Mapping[str, npt.NDArray[Any]]:
    """Return a statistic of one matrix of weights (queries, keys), or of (batch, heads, queries, keys).

    For one matrix, results have no batch and head dimensions. Queries are the last positions of the keys; if there are
    more, both are counted from 0. `input_ids` are the tokens of a text with self-attention.

    Raises:
        InputError: `weights` have another shape, or are no numbers.

    >>> from regard.observe.statistics import Distance
    >>> of_weights(Distance(), [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])["distance"]
    array([0. , 0.5, 1. ], dtype=float32)
    """
    try:  # A copy: those of an atlas are mapped from its file and may not be written.
        given = torch.as_tensor(np.array(weights) if isinstance(weights, np.ndarray) else weights)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(f"`weights` must be numbers in rows of one length: {problem}") from None
    if given.is_complex() or given.layout is not torch.strided or given.is_meta:
        raise InputError(f"`weights` must be real numbers, got {given.dtype}, {given.layout} on {given.device}")
    if given.ndim not in (2, 4) or not given.numel():
        raise InputError(
            f"`weights` must be (queries, keys) or (batch, heads, queries, keys), got {tuple(given.shape)}"
        )
    single = given.ndim == 2
    call = CallFromWeights(given[None, None] if single else given, site="these weights")
    known = None if input_ids is None else torch.as_tensor(input_ids).expand(call.batch, -1)
    call.ids = None if known is None else Ids(known, known, lambda _: None)
    sizes, dtype = (call.batch, call.heads, call.queries, call.keys), torch.promote_types(given.dtype, torch.float32)
    two = call.queries > call.keys  # not positions of one text
    extent = Extent(*sizes, dtype, given.device, 0 if two else call.keys - call.queries, cross=two, around=call)
    folding = copy.deepcopy(statistic)
    folding.start(extent)
    for rows in call.blocks(0, 1):
        folding.fold(rows)
    found = {name: np.asarray(array) for name, array in folding.finish(extent).items()}
    return {name: array[0, 0] for name, array in found.items() if array.ndim > 1} if single else found
