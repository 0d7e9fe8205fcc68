"""The statistics of every record: heat map, strongest keys, entropy of each row, attention received by each key."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.observe.statistics.base import Extent, PerKey, PerQuery
from regard.observe.weight_rows import RowBlock

__all__ = ["Entropy", "HeatMap", "Received", "Top", "bin_width"]


_EXACT = 512  # up to this number of rows or columns, each has a bin of its own
_BINS = 256  # beyond, the maximum number of bins per side


def bin_width(length: int) -> int:
    """Return the number of positions per bin: 1 up to 512, else the power of two that gives at most 256 bins.

    With powers of two, a growing record can merge neighbouring bins and stays exact.

    >>> [bin_width(n) for n in (14, 512, 513, 4096, 4097)]
    [1, 1, 4, 16, 32]
    """
    width = 1
    while length > (_EXACT if width == 1 else _BINS * width):
        width *= 2
    return width


class HeatMap:
    """Mean and maximum of the weights in each bin; (batch, heads, query bins, key bins).

    Maxima keep diagonals and sink columns visible, which means blur; both are stored.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(HeatMap(), [[1.0, 0.0], [0.5, 0.5]])["mean"]
    array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)
    """

    name = "heatmap"
    by_head = True
    reads_rows_alone = True

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._max: Tensor | None = None
        self._widths = (1, 1)

    def start(self, extent: Extent, /) -> None:
        """Allocate memory, and merge neighbouring bins if the record has become too long for them."""
        widths = bin_width(extent.queries), bin_width(extent.keys)
        bins = -(-extent.queries // widths[0]), -(-extent.keys // widths[1])
        if self._sum is None or self._max is None:
            shape = extent.batch, extent.heads, *bins
            self._sum = torch.zeros(shape, dtype=extent.dtype, device=extent.device)
            # With bins of one pair the maximum is the weight itself.
            self._max = self._sum if widths == (1, 1) else torch.zeros_like(self._sum)
        elif widths != self._widths:
            steps = widths[0] // self._widths[0], widths[1] // self._widths[1]
            self._sum, self._max = _merge(self._sum, steps, bins, "sum"), _merge(self._max, steps, bins, "max")
        elif bins[0] > self._sum.shape[2] or bins[1] > self._sum.shape[3]:
            single = self._max is self._sum
            # Room for a quarter more, so that decoding does not copy at every step.
            room = [max(new, new + new // 4) - old for new, old in zip(bins, self._sum.shape[2:], strict=True)]
            pad = (0, max(0, room[1]), 0, max(0, room[0]))
            self._sum = functional.pad(self._sum, pad)
            self._max = self._sum if single else functional.pad(self._max, pad)
        self._widths = widths

    def fold(self, rows: RowBlock) -> None:
        """Pool the rows, and update sums and maxima."""
        assert self._sum is not None  # start comes first
        assert self._max is not None
        tall, broad = self._widths
        first, left = rows.rows.start // tall, rows.key_start // broad
        here, most = rows.pooled(tall, broad)
        target = self._sum[rows.batch_index, rows.heads, first : first + here.shape[1], left : left + here.shape[2]]
        target += here[:, :, : target.shape[2]]
        if self._max is not self._sum:
            target = self._max[rows.batch_index, rows.heads, first : first + most.shape[1], left : left + most.shape[2]]
            torch.maximum(target, most[:, :, : target.shape[2]], out=target)

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the map of another."""
        assert self._sum is not None
        assert self._max is not None
        single = self._max is self._sum
        self._sum = self._sum[rows]
        self._max = self._sum if single else self._max[rows]

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return maxima, and sums divided by the number of pairs in each bin."""
        assert self._sum is not None
        assert self._max is not None
        tall, broad = self._widths
        bins = -(-extent.queries // tall), -(-extent.keys // broad)
        total = self._sum[..., : bins[0], : bins[1]]
        most = self._max[..., : bins[0], : bins[1]].cpu().numpy()
        if self._widths == (1, 1):
            return {"mean": most, "max": most, "query_bin": 1, "key_bin": 1}
        high = torch.full((bins[0], 1), float(tall), device=total.device)
        wide = torch.full((bins[1],), float(broad), device=total.device)
        high[-1], wide[-1] = extent.queries - (bins[0] - 1) * tall, extent.keys - (bins[1] - 1) * broad
        mean = (total / (high * wide).to(total.dtype)).cpu().numpy()
        return {"mean": mean, "max": most, "query_bin": tall, "key_bin": broad}


def _merge(x: Tensor, steps: tuple[int, int], bins: tuple[int, int], how: str) -> Tensor:
    """Merge neighbouring bins and allocate memory for all bins of the new width."""
    for dim, step in ((2, steps[0]), (3, steps[1])):
        if step > 1:
            shape = list(x.shape)
            pad = -shape[dim] % step
            x = functional.pad(x, (0, pad) if dim == 3 else (0, 0, 0, pad))
            shape = [*x.shape[:dim], x.shape[dim] // step, step, *x.shape[dim + 1 :]]
            x = x.reshape(shape).sum(dim + 1) if how == "sum" else x.reshape(shape).amax(dim + 1)
    room = (0, max(0, bins[1] - x.shape[3]), 0, max(0, bins[0] - x.shape[2]))
    return functional.pad(x, room)


class Top:
    """The `k` largest weights of each row and their keys, the largest first; key −1 if there are fewer.

    It is exact without sorting rows, see `RowBlock.strongest`.

    Raises:
        InputError: `k` is not an integer of at least 1.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Top(1), [[1.0, 0.0], [0.25, 0.75]])["top_keys"]
    array([[0],
           [1]], dtype=int32)
    """

    name = "top"
    by_head = True
    reads_rows_alone = True

    def __init__(self, k: int = 8) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"`k` must be a number of keys from 1 on, got {k!r}: such as Top(8)")
        self.k = k
        self._keys: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._first = 0

    def start(self, extent: Extent, /) -> None:
        """Allocate one tensor for the rows of the call; `finish` joins them."""
        self._first = sum(part.shape[2] for part in self._keys)
        shape = extent.batch, extent.heads, extent.queries - self._first, self.k
        self._keys.append(torch.full(shape, -1, dtype=torch.int32, device=extent.device))
        self._weights.append(torch.zeros(shape, dtype=extent.dtype, device=extent.device))

    def fold(self, rows: RowBlock) -> None:
        """Store the strongest keys of some rows."""
        values, columns = rows.strongest(self.k)
        keys = (columns + rows.key_start).to(torch.int32).masked_fill(values <= 0, -1)
        here = slice(rows.rows.start - self._first, rows.rows.stop - self._first)
        self._keys[-1][rows.batch_index, rows.heads, here, : keys.shape[-1]] = keys
        self._weights[-1][rows.batch_index, rows.heads, here, : keys.shape[-1]] = values

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the rows of another."""
        self._keys, self._weights = ([part[rows] for part in parts] for parts in (self._keys, self._weights))

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return all rows, with at most as many columns as there are keys."""
        count = min(self.k, extent.keys)
        keys, weights = torch.cat(self._keys, 2), torch.cat(self._weights, 2)
        return {"top_keys": keys[..., :count].cpu().numpy(), "top_weights": weights[..., :count].cpu().numpy()}


class Entropy(PerQuery):
    """−Σ_j p_ij ln p_ij in nats: 0 if one key has all weight, ln(keys) if all are equal; (batch, heads, queries).

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Entropy(), [[1.0, 0.0], [0.5, 0.5]])["entropy"].round(3)
    array([0.   , 0.693], dtype=float32)
    """

    name = "entropy"
    by_head = True
    reads_rows_alone = True

    def of(self, rows: RowBlock) -> Float[Tensor, "heads rows"]:
        """Return the entropy of some rows."""
        return rows.entropy


class Received(PerKey):
    """c_j = Σ_i p_ij, the sum of each column; (batch, heads, keys). Sinks stand out in it. Rows of padding count not.

    >>> from regard.observe.statistics import of_weights
    >>> of_weights(Received(), [[1.0, 0.0], [0.5, 0.5]])["received"]
    array([1.5, 0.5], dtype=float32)
    """

    name = "received"
    by_head = True
    reads_rows_alone = True

    def of(self, rows: RowBlock) -> Float[Tensor, "heads columns"]:
        """Return the sums of some rows."""
        return rows.column_sums
