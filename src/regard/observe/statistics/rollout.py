"""Rollout: attention followed through all layers, for one token, several, a word, or the mean of all."""

import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError, ObservationError
from regard.observe.statistics.base import Extent, Need
from regard.observe.watched_call import WatchedCall
from regard.observe.weight_rows import RowBlock
from regard.record.places import Characters, Name, Place, find_place
from regard.record.records import Record
from regard.record.statistic_axes import Axis
from regard.tensors import check_max_bytes, human_bytes

__all__ = ["Rollout"]

_MAX_BYTES = 2 * 2**30
_MEAN = "mean"

Sentence = Callable[[Record], str]
Followed = Name | Sequence[Name] | npt.NDArray[Any] | Tensor  # one, or several of them


@dataclass(frozen=True, eq=False)
class _Kept:
    """The rows of one call until the end: their mean over the heads, or the call that they are computed from."""

    start: int
    shift: int
    mean: Float[Tensor, "batch queries keys"] | None = None
    call: WatchedCall | None = None

    def blocks(self, keys: int) -> Iterator[tuple[int, slice, slice, Float[Tensor, "rows columns"]]]:
        """Yield sequence, rows and columns of the record, and the mean of the heads, up to column `keys`."""
        if self.mean is not None:
            width = min(self.mean.shape[2], keys - self.shift)
            rows, columns = slice(self.start, self.start + self.mean.shape[1]), slice(self.shift, self.shift + width)
            for batch_index, mean in enumerate(self.mean):
                yield batch_index, rows, columns, mean[:, :width]
            return
        assert self.call is not None
        for block in self.call.blocks(self.start, 1):
            first = block.key_start + self.shift
            mean = block.weights[..., : max(0, keys - first)].sum(0) / self.call.heads
            yield block.batch_index, block.rows, slice(first, first + mean.shape[1]), mean


class Rollout:
    """Rows or columns of R = Π_l (½ A_l + ½ I), with the last layer leftmost and A_l the mean of layer l's heads.

    Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers" (https://arxiv.org/abs/2005.00928, section 3).
    Either of two, both with O(positions) numbers a layer instead of positions²:

        Rollout(query=…)  where the output there comes from: a row of R_L ⋯ R_l before each layer, from the last layer
                          to the first. The whole rollout is that of layer=0.
        Rollout(key=…)    where the input there has gone: a column of R_l ⋯ R_1 after each layer, from the first layer
                          to the last. The whole rollout is that of layer=-1.

    What stands for … is one of

        5, -1             an index; a key is counted from 0.
        "it", ("it", 2)   a word of each text, and its second occurrence, as in `rank_heads` (regard.record.places);
                          slice(3, 6), positions as one. Of several tokens a query is the mean of their rows and a key
                          the sum of their columns (Clark et al. 2019, https://arxiv.org/abs/1906.04341, section 4.1).
        "mean"            the mean of all queries but padding, which is what a model without a class token pools; it
                          is no key. The word is ("mean", 1).
        [5, "it"]         several of these: a list, range or array. In a list range(3, 6) is one, as slice(3, 6).

    An array (batch, 1, positions) a layer, as all heads share it; of several (batch, 1, number, positions). NaN if a
    text has no such position or word. If there is a word, "mean" or a slice among them, the statistic "rollout.query"
    or "rollout.key" has what was meant: the share of each position in it, of the same shape. Words need the tokens of
    the text, which are known to a watch with `tokenizer=` or `tokens=`.

    Layers are taken in the order of their calls, and each must attend to its own text; also those that `layers=` leaves
    out. A row with a sink sums to less than 1, and stays. An index as key is followed on the way. For all others the
    mean of the heads' weights of each call, or its q and k where these are fewer numbers, are kept until the end, at
    most `max_bytes` of them.

    Raises:
        InputError: Not exactly one of the two is given, it names no place, or no text has the word.
        ObservationError: At the end of the `with` block, where it costs nothing else in the record: cross-attention,
            pooled keys, windows, layers of different lengths or streams, layers or a beginning that were not recorded,
            words without known tokens, or more bytes than `max_bytes`.
    """

    name = "rollout"

    def __init__(
        self,
        *,
        query: Followed | None = None,
        key: Followed | None = None,
        max_bytes: int = _MAX_BYTES,
        name: str = "rollout",
    ) -> None:
        if (query is None) == (key is None):
            raise InputError(
                "`Rollout` follows one token, several or their mean: pass query= (what its output draws from) or key= "
                "(where its input goes)"
            )
        check_max_bytes(max_bytes)
        self.name = name
        self._side: Literal["query", "key"] = "query" if key is None else "key"
        self._names, self._is_single = _names(self._side, query if key is None else key)
        self._left = self._max_bytes = max_bytes
        self.needs: frozenset[Need] = frozenset({"layers"})
        self.sweeps = key is not None and all(isinstance(one, int) for one in self._names)  # followed on the way
        self.axes: tuple[Axis, ...] | None = None
        # Vectors of the sites, in the order of their first calls: (batch, number, positions).
        self._vectors: dict[str, Tensor] = {}
        self._kept: dict[str, list[_Kept]] = {}
        self._lengths: dict[str, tuple[int, int]] = {}
        self._refusal: Sentence | None = None
        self._beginning: Tensor | None = None
        self._unknown: Bool[Tensor, "batch number"] | None = None
        self._extent: Extent | None = None
        self._site = ""
        self._inputs: Tensor | None = None

    def start(self, extent: Extent, /) -> None:
        """Begin a layer's call."""
        around = extent.needs(self.name)
        self._refusal = self._refusal or self._why_not(extent, around)
        if self._refusal is not None:  # raised at the end, when everything else has been recorded
            self._vectors, self._kept = {}, {}
            return
        self._extent, self._site = extent.alone, around.site
        self._lengths[around.site] = extent.queries, extent.keys
        if not self.sweeps:
            self._keep(extent, around)
            return
        before = self._before(extent)
        old = self._vectors.get(self._site, before[..., :0])
        self._inputs = before
        self._vectors[self._site] = torch.cat([old, before[..., old.shape[2] : extent.queries] / 2], 2)

    def fold(self, rows: RowBlock) -> None:
        """Multiply the columns by some rows."""
        if self._refusal is not None or self._inputs is None:  # refused, or multiplied at the end
            return
        assert self._extent is not None
        inputs = self._inputs[rows.batch_index, :, rows.columns]
        summed = inputs @ rows.weights[..., : inputs.shape[1]].sum(0).T
        self._vectors[self._site][rows.batch_index, :, rows.rows] += summed / (2 * self._extent.heads)

    def conclude(self, record: Record) -> None:
        """Find what was named, and multiply by the layers that were kept until now.

        Raises:
            InputError: No text has a word.
            ObservationError: The layers cannot be followed.
        """
        self._check(record)
        assert self._extent is not None
        queries, keys = next(iter(self._lengths.values()))
        beginning, self._unknown = self._find(record, queries)
        beginning = beginning.to(self._extent.device, self._extent.dtype)
        if not self.sweeps:
            vector = functional.pad(beginning, (0, keys - queries))
            order = list(self._kept) if self._side == "key" else list(self._kept)[::-1]
            found = {}
            for site in order:
                found[site] = vector = self._through(self._kept.pop(site), vector)
            self._vectors = {site: found[site] for site in self._lengths}
        if not all(isinstance(one, int) for one in self._names):
            self._beginning = beginning
        self.axes = self._axes(queries)

    def finish(self, extent: Extent, /) -> Mapping[str, Any]:
        """Return the vectors of one layer."""
        if self._unknown is None:
            raise ObservationError(
                f"{self.name!r} follows tokens through the layers of a model: ask for it in regard.watch"
            )
        found = {self.name: self._vectors[extent.site]}
        if self._beginning is not None:
            found[f"{self.name}.{self._side}"] = self._beginning
        unknown = self._unknown[..., None]
        arrays = {}
        for name, vector in found.items():
            whole = functional.pad(vector, (0, extent.keys - vector.shape[2])).cpu().masked_fill(unknown, torch.nan)
            arrays[name] = (whole if self._is_single else whole[:, None]).numpy()
        return arrays

    # --- what cannot be followed

    def _why_not(self, extent: Extent, around: WatchedCall) -> Sentence | None:
        """Return why a call is no layer of the text that was followed up to now."""
        site = around.site or "this call"
        first = self._extent
        length = next(iter(self._lengths.values()), (0, 0))[1]
        if extent.cross:
            name = around.site
            return lambda record: self._apart(site, _crossing(record, name))
        if around.apart is not None or (first is not None and extent.batch != first.batch):
            why = around.apart
            if why is None and first is not None:
                before = self._site or "another"
                why = f"{site} attends in a batch of {extent.batch}, and {before} in one of {first.batch}"
            return lambda _: self._apart(
                "",
                f"{why}: windows or groups are texts of their own, from which nothing leads to the next layer; each "
                "layer has its own weights in the record",
            )
        if extent.offset and not (around.site in self._lengths or not self._lengths or extent.keys != length):
            rows, sites = extent.queries, list(self._lengths)
            return lambda record: self._apart(
                site,
                f"has rows of {rows} of its {length} positions only, and it is not known which: "
                f"{_watch(record, sites, 'the layers before it alone')}",
            )
        if extent.offset:
            offset = extent.offset
            return lambda _: self._apart(
                "", f"the first {offset} positions were not watched: let the `with` block begin before them"
            )
        if not self.sweeps and min(_bytes_of_mean(extent, around), around.nbytes) > self._left:
            needed = min(_bytes_of_mean(extent, around), around.nbytes)
            return lambda _: (
                f"{self.name!r} keeps weights, or q and k, of all layers until the end, and {human_bytes(needed)} more "
                f"at {site} are beyond its limit of {human_bytes(self._max_bytes)}: raise `max_bytes`, or follow an "
                "index forwards with Rollout(key=5), which keeps none"
            )
        return None

    def _apart(self, site: str, why: str) -> str:
        return f"{self.name!r} follows one text through all layers, and {site}{site and ' '}{why}"

    def _check(self, record: Record) -> None:
        """Raise unless all layers of the pass are known, and are of one text."""
        if self._refusal is not None:
            raise ObservationError(self._refusal(record))
        if record.missing:
            one = record.missing[0]
            why = "was not recorded, so what goes through it is unknown"
            raise ObservationError(self._apart(one.module or "attention of the model", f"{why} ({one.reason})"))
        streams = {one.name: one.query_tokens for one in record.layers}
        sites, names = list(self._lengths), list(dict.fromkeys(streams.values()))
        length = self._lengths[sites[0]]
        other = next((site for site in sites if self._lengths[site] != length), None)
        if (
            other is None or len({name.rstrip(" 0123456789") for name in names}) > 1
        ):  # not one that is cropped or pooled
            if len(names) > 1:
                first = [name for name, stream in streams.items() if stream == names[0]]
                listed = " and ".join(map(repr, names))
                if {name.partition("#")[0] for name in streams} == set(first):
                    way = f"{_watch(record, first, 'these alone')}, whose calls are passes with a rollout each"
                    why = f"these layers run several times, over one text or several ({listed}): {way}"
                else:
                    why = f"these layers have several, {listed}: {_watch(record, first, 'one of them')}"
                raise ObservationError(self._apart("", why))
            return
        way = _watch(record, [site for site in sites if self._lengths[site] == length], "one stack")
        raise ObservationError(
            f"{self.name!r} needs layers of one length, and these are of several ({sites[0]} {length[1]}, {other} "
            f"{self._lengths[other][1]} positions): {way}"
        )

    # --- which tokens

    def _find(self, record: Record, length: int) -> tuple[Tensor, Tensor]:
        """Return the shares of each position in what was named (batch, number, positions), and what no text has
        (batch, number).
        """
        assert self._extent is not None
        shares = torch.zeros(self._extent.batch, len(self._names), length, device="cpu", dtype=torch.float64)
        unknown = torch.zeros(shares.shape[:2], device="cpu", dtype=torch.bool)
        for number, name in enumerate(self._names):
            refusals = []
            for batch_index, share in enumerate(shares[:, number]):
                try:
                    share[self._positions(name, record, batch_index, length)] = 1
                except InputError as refusal:
                    refusals.append(refusal)
                    unknown[batch_index, number] = True
            if len(refusals) == len(shares) and not isinstance(name, int):
                raise refusals[0]
        if self._side == "query":
            shares /= shares.sum(-1, keepdim=True).clamp_min(1)
        return shares, unknown

    def _positions(self, name: Name, record: Record, batch_index: int, length: int) -> list[int]:
        """Return the positions of what is named in one sequence.

        Raises:
            InputError: There are none.
        """
        if name == _MEAN:
            return _unpadded(record, batch_index, length)
        if isinstance(name, int | slice | range):
            places = range(length)
            known = [places[name]] if isinstance(name, int) and name in range(-length, length) else []
            known += places[name] if isinstance(name, slice) else name if isinstance(name, range) else ()
            if not known or known[-1] not in places:
                raise InputError(f"`{self._side}` must be within the {length} positions, got {name!r}")
            return known
        tokens = record.tokens.get(record.layers[0].query_tokens, ())
        if len(tokens) <= batch_index or len(tokens[batch_index]) != length:
            raise ObservationError(
                f"{self.name!r} looks for {name!r} among the tokens of the text, which are not known: pass "
                "`tokenizer=` or `tokens=` to regard.watch, or an index"
            )
        return list(find_place(tokens[batch_index], name, what=self._side).positions)

    def _axes(self, length: int) -> tuple[Axis, ...]:
        other: Axis = ("keys" if self._side == "query" else "queries", None)
        if self._is_single:
            return (other,)
        indices = [one for one in self._names if isinstance(one, int) and -length <= one < length]
        if len(indices) == len(self._names):
            return ("queries" if self._side == "query" else "keys", tuple(one % length for one in indices)), other
        return ("names", tuple(map(_shown, self._names))), other

    # --- products

    def _before(self, extent: Extent) -> Float[Tensor, "batch number keys"]:
        """Return the input of this layer: the vectors of the previous layer, or the tokens themselves."""
        sites = list(self._vectors)
        at = sites.index(self._site) if self._site in sites else len(sites)
        if at:
            vectors = self._vectors[sites[at - 1]]
            return functional.pad(vectors, (0, max(0, extent.keys - vectors.shape[2])))
        places = torch.arange(extent.keys, device=extent.device)
        chosen = torch.tensor(self._names, device=extent.device)
        return places.eq(chosen[:, None]).to(extent.dtype).repeat(extent.batch, 1, 1)

    def _keep(self, extent: Extent, around: WatchedCall) -> None:
        """Keep the rows of a call, in memory of its own: a static cache writes on in that of the model."""
        start = extent.queries - around.queries
        mean = None
        if (needed := _bytes_of_mean(extent, around)) <= around.nbytes:
            mean = torch.zeros(
                *(around.batch, around.queries, around.keys), dtype=extent.dtype, device=extent.device
            )  # fmt: skip
            for rows in around.blocks(start, 1):
                here = slice(rows.start - start, rows.rows.stop - start)
                mean[rows.batch_index, here, rows.columns] += rows.weights.sum(0) / around.heads
        self._left -= min(needed, around.nbytes)
        call = around.copied() if mean is None else None
        self._kept.setdefault(around.site, []).append(_Kept(start, around.shift, mean, call))

    def _through(self, kept: Sequence[_Kept], vector: Tensor) -> Float[Tensor, "batch number keys"]:
        """Multiply the vectors by one layer: rows from the left, columns from the right."""
        through = vector / 2
        for call in kept:
            for batch_index, rows, columns, mean in call.blocks(vector.shape[2]):
                if self._side == "query":
                    through[batch_index, :, columns] += vector[batch_index, :, rows] @ mean / 2
                else:
                    through[batch_index, :, rows] += vector[batch_index, :, columns] @ mean.T / 2
        return through


def _bytes_of_mean(extent: Extent, around: WatchedCall) -> int:
    return extent.dtype.itemsize * around.batch * around.queries * around.keys


def _unpadded(record: Record, batch_index: int, length: int) -> list[int]:
    """Return the positions of one sequence that are no padding, as far as any layer shows it."""
    padding = [one for layer in record.layers if (one := layer.query_padding) is not None]
    return [at for at in range(length) if not any(bool(one[batch_index, at]) for one in padding)]


def _crossing(record: Record, site: str) -> str:
    """Return what a layer attends to instead of its own text, and what can be watched instead."""
    layer = next(one for one in record.layers if one.name == site)
    if layer.kind == "self":
        return (
            f"attends to another text or to pooled positions, {layer.queries} queries on {layer.keys} keys, which "
            "are not those of the next layer: each layer has its own weights in the record"
        )
    own = [one for one in record.layers if one.kind == "self"]
    before = [one.name for one in own if one.query_tokens == own[0].query_tokens]
    ends = f"{layer.query_tokens!r} on {layer.key_tokens!r}"
    what = "the layers before it alone" if before else "layers that attend to their own text"
    return f"attends to another text or with queries of its own ({ends}): {_watch(record, before, what)}"


def _watch(record: Record, sites: Collection[str], what: str) -> str:
    """Return how to watch these layers alone."""
    parts = [one.split(".") for one in sorted(sites)]
    alike = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))
    common = [level[0] for level in alike]
    if len(common) > 1 and all(one[len(common)].isdigit() for one in parts if len(one) > len(common)):
        others = {name for one in record.layers if (name := one.name.partition("#")[0]) not in sites}
        above = ".".join(common[:-1]) + "."  # the module of the list of layers
        common = common if any(name.startswith(above) for name in others) else common[:-1]
    return f"watch {what}" + (f', regard.watch(model.get_submodule("{".".join(common)}"))' if common else "")


def _names(side: str, value: Any) -> tuple[tuple[Name, ...], bool]:
    """Return what is to be followed, and whether it is a single one."""
    value = value.tolist() if hasattr(value, "tolist") else value  # an array or a tensor
    if not isinstance(value, list | range):
        return (_name(side, value),), True
    if not value:
        raise InputError(f"`{side}` must be what is followed, at least one, got none")
    return tuple(_name(side, one) for one in value), False


def _name(side: str, value: Any) -> Name:
    if hasattr(value, "__index__") and not isinstance(value, bool):
        number = operator.index(value)
        if side == "key" and number < 0:
            raise InputError(
                f"`key` must be a position from 0 on, got {number}: text that is read in steps has no end yet"
            )
        return number
    if value == _MEAN and side == "key":
        raise InputError(
            '`key` cannot be "mean": a row of a rollout sums to 1, so the mean over the keys is the same everywhere; '
            'pass query="mean", or key=("mean", 1) for the word'
        )
    occurrence = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
    span = isinstance(value, range) and value.step == 1 and 0 <= value.start < value.stop
    if occurrence or span or isinstance(value, str | slice | Characters | Place):
        return value  # type: ignore[no-any-return]
    raise InputError(
        f'`{side}` must be an index, a word of the text, an occurrence such as ("animal", 2), a slice, "mean" for all '
        f"queries, or a list of these, got {value!r}"
    )


def _shown(name: Name) -> str:
    if isinstance(name, tuple):
        return f"{name[0]}#{name[1]}"
    if isinstance(name, slice | range):
        return f"{name.start or 0}:{'' if name.stop is None else name.stop}"
    return name.text if isinstance(name, Place) else str(name)
