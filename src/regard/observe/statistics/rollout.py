"""Rollout: attention followed through all layers, for one token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError, ObservationError
from regard.observe.statistics.base import Extent, Need
from regard.observe.watched_call import WatchedCall
from regard.observe.weight_rows import RowBlock
from regard.tensors import check_max_bytes, human_bytes

__all__ = ["Rollout"]

_MAX_BYTES = 2 * 2**30


@dataclass(frozen=True, eq=False)
class _Kept:
    """A call whose rows are computed again at the end."""

    call: WatchedCall
    start: int


class Rollout:
    """One row or one column of R = Π_l (½ A_l + ½ I), with the last layer leftmost and A_l the mean of layer l's
    heads.

    Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers" (https://arxiv.org/abs/2005.00928, section 3).
    Either of two, both with O(positions) numbers a layer instead of positions²:

        Rollout(key=j)    where the input at j has gone: column j of R_l ⋯ R_1 after each layer, computed on the way.
                          The whole rollout is that of the last layer, layer=-1.
        Rollout(query=i)  where the output at i comes from: row i of R_L ⋯ R_l before each layer, from the last layer
                          to the first. The whole rollout is that of layer=0. It needs all layers backwards, so q and k
                          of each call (weights, where a model computes them itself) are kept until the end, at most
                          `max_bytes` of them. i may count from the end: -1 is the last token.

    An array (batch, 1, positions) a layer, as all heads share it; NaN if there is no such position. Layers are taken
    in the order of their calls, and each must attend to its own text. A row with a sink sums to less than 1, and
    stays.

    Raises:
        InputError: Not exactly one of the two is given.
        ObservationError: Cross-attention, layers of different lengths, a beginning that was not recorded, or more bytes
            than `max_bytes`.
    """

    name = "rollout"

    def __init__(
        self, *, query: int | None = None, key: int | None = None, max_bytes: int = _MAX_BYTES, name: str = "rollout"
    ) -> None:
        if (query is None) == (key is None):
            raise InputError("`Rollout` follows one token: pass query=i (what it draws from) or key=j (where it goes)")
        if key is not None and key < 0:
            raise InputError(
                f"`key` must be a position from 0 on, got {key}: text that is read in steps has no end yet"
            )
        check_max_bytes(max_bytes)
        self.name, self._query, self._key, self._left = name, query, key, max_bytes
        self._max_bytes = max_bytes
        self.needs: frozenset[Need] = frozenset({"layers"})
        self.sweeps = key is not None
        self._vectors: dict[
            str, Tensor
        ] = {}  # vectors of the sites, in the order of their first calls: (batch, positions)
        self._kept: dict[str, list[_Kept]] = {}
        self._lengths: dict[str, tuple[int, int]] = {}
        self._extent: Extent | None = None
        self._site = ""
        self._inputs: Tensor | None = None

    def start(self, extent: Extent, /) -> None:
        """Begin a layer's call."""
        around = extent.needs(self.name)
        self._check(extent, around)
        self._extent, self._site = extent.alone, around.site
        self._lengths[around.site] = extent.queries, extent.keys
        if self._query is not None:
            self._keep(extent, around)
            return
        before = self._before(extent)
        old = self._vectors.get(self._site, before[:, :0])
        self._inputs = before
        self._vectors[self._site] = torch.cat([old, before[:, old.shape[1] : extent.queries] / 2], 1)

    def fold(self, rows: RowBlock) -> None:
        """Multiply the column by some rows."""
        assert self._inputs is not None  # start comes first
        inputs = self._inputs[rows.batch_index, rows.columns]
        assert self._extent is not None
        summed = rows.weights[..., : len(inputs)].sum(0) @ inputs
        self._vectors[self._site][rows.batch_index, rows.rows] += summed / (2 * self._extent.heads)

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the vector of one layer."""
        site = extent.site
        if len(set(self._lengths.values())) > 1:
            raise ObservationError(
                f"{self.name!r} needs layers of one length, and these are of several: watch one stack"
            )
        if self._kept:
            self._go_back(extent)
        vector = functional.pad(self._vectors[site], (0, extent.keys - self._vectors[site].shape[1]))
        chosen = self._key if self._key is not None else self._query
        assert chosen is not None
        if not -extent.queries <= chosen < extent.queries:
            vector = torch.full_like(vector, float("nan"))
        return {self.name: vector[:, None].cpu().numpy()}

    def _check(self, extent: Extent, around: WatchedCall) -> None:
        if extent.cross:
            way = "watch the encoder or a decoder without one"
            why = f"{around.site or 'a call'} attends to another text or to pooled positions: {way}"
        elif extent.offset:
            why = f"the first {extent.offset} positions were not watched: let the `with` block begin before them"
        else:
            return
        raise ObservationError(f"{self.name!r} follows one text through all layers, and {why}")

    def _before(self, extent: Extent) -> Float[Tensor, "batch keys"]:
        """Return the input of this layer: the vector of the previous layer, or the token itself."""
        sites = list(self._vectors)
        at = sites.index(self._site) if self._site in sites else len(sites)
        if at:
            vector = self._vectors[sites[at - 1]]
            return functional.pad(vector, (0, max(0, extent.keys - vector.shape[1])))
        assert self._key is not None
        places = torch.arange(extent.keys, device=extent.device)
        return places.eq(self._key).to(extent.dtype).expand(extent.batch, -1)

    def _keep(self, extent: Extent, around: WatchedCall) -> None:
        needed = around.nbytes
        if needed > self._left:
            raise ObservationError(
                f"{self.name!r} of a query keeps q and k of all layers, and {human_bytes(needed)} more at "
                f"{around.site or 'this call'} are beyond its limit of {human_bytes(self._max_bytes)}: "
                "raise `max_bytes`, or follow a token forwards with Rollout(key=...), which keeps none"
            )
        self._left -= needed
        start = extent.queries - around.queries
        self._kept.setdefault(around.site, []).append(_Kept(around.alone, start))

    def _go_back(self, extent: Extent) -> None:
        """Multiply the row by the layers, from the last to the first."""
        assert self._query is not None
        vector = torch.zeros(extent.batch, extent.keys, dtype=extent.dtype, device=extent.device)
        if -extent.queries <= self._query < extent.queries:
            vector[:, self._query % extent.queries] = 1
        found = {}
        for site in reversed(self._kept):
            through = vector / 2
            for one in self._kept[site]:
                for rows in one.call.blocks(one.start, 1):
                    columns = through[rows.batch_index, rows.key_start + one.call.shift :][: rows.weights.shape[2]]
                    mean = rows.weights[..., : len(columns)].sum(0) / (2 * extent.heads)
                    columns += vector[rows.batch_index, rows.rows] @ mean
            found[site] = vector = through
        self._vectors = {site: found[site] for site in self._kept}
        self._kept = {}
