"""Export the content of a record to files for other programs: PNG, SVG, CSV, .npy or .npz."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, ObservationError
from regard.files import write_atomically
from regard.record.layers import Stream, at_index, head_at
from regard.record.records import Layer, Record
from regard.record.statistic_axes import PER_KEY
from regard.render.alignment_figure import alignment_figure
from regard.render.csv_and_npz_files import Table, matrix_table, npy, npz, table_csv, top_arrays, top_table
from regard.render.figure import heads_figure, heatmap_figure, statistic_figure
from regard.render.labels import head_name, key_labels, layer_name, query_labels, visible
from regard.render.mpl_figure import write_figure
from regard.render.word_alignment import align

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["export"]

_SUFFIXES = (".csv", ".npy", ".npz", ".png", ".svg")
_MAPS = ("value_norm.mean", "value_norm.max", "gradient_x_attention.mean")


@dataclass(frozen=True, eq=False)
class _Export:
    """An exported item in its three forms; each is computed only if the file's extension requires it."""

    arrays: Callable[[], Mapping[str, npt.NDArray[Any]]] | None
    table: Callable[[], Table] | None
    figure: "Callable[[], Figure] | None"

    def form(self, form: Any, kind: str, suffix: str, head: int | None) -> Any:
        """Return the form that an extension asks for, or raise with those that there are."""
        if form is not None:
            return form
        forms = ((self.arrays, ".npz", ".npy"), (self.table, ".csv"), (self.figure, ".png", ".svg"))
        *others, last = (one for made, *found in forms if made is not None for one in found)
        written = f"{', '.join(others)} or {last}" if others else last
        more = (
            ", or name a `head`, which has all forms" if self.table is None and head is None and kind != "heads" else ""
        )
        raise InputError(f"`path` of {kind!r} cannot end in {suffix}: write {written}{more}")


def export(
    record: Record,
    path: str | os.PathLike[str],
    kind: str = "weights",
    *,
    layer: int | str | Layer | None = None,
    head: int | None = None,
    batch_index: int = 0,
    stream: Stream | None = None,
) -> None:
    """Export one item of a record to a file whose extension selects the format: .csv, .npy, .npz, .png or .svg.

    Args:
        record: The record.
        path: The file, which is written atomically.
        kind: "weights"; "map" or "map.max", pooled; "top", the strongest keys of each query; "alignment", between
            words; "heads", a figure of all; or the name of a statistic of the record, such as "entropy".
        layer: The layer's number or name; optional for "top", "alignment" and "heads".
        head: The head; without it, all heads of the layer, if the format can hold them.
        batch_index: The sequence of the batch, counted from 0; negative numbers count from the end.
        stream: The stream in which the layer is counted, if the record has several.

    Raises:
        InputError: The layer or head does not exist, or the extension is unknown, does not fit the item, or is .csv for
            an item that is too large.
        ObservationError: The item was not recorded.
    """
    if not isinstance(kind, str):
        raise InputError(f'`kind` must be "weights", "map", "top" or the name of a statistic, got {kind!r}')
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"`path` must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}, got {path.name}")
    if not record.layers:
        raise ObservationError("the record holds no attention layer, so there is nothing to export")
    seen = None if layer is None else record.layer(layer, stream)
    chosen = record.layers if seen is None else (seen,)
    batch_index = at_index("batch_index", batch_index, min(one.batch for one in chosen), "batch")
    if head is not None:
        if seen is None and kind != "top":
            raise InputError(f"`head` {head} needs a `layer` too: heads are counted within their layer")
        head = at_index("head", head, min(one.heads for one in chosen), "heads")
        for one in chosen:
            head_at(one, head)
    made = _thing(record, kind, seen, head, batch_index)
    if suffix in (".png", ".svg"):
        write_figure(made.form(made.figure, kind, suffix, head)(), path)
    elif suffix == ".csv":
        write_atomically(path, table_csv(made.form(made.table, kind, suffix, head)()))
    else:
        arrays = made.form(made.arrays, kind, suffix, head)()
        write_atomically(path, npz(arrays) if suffix == ".npz" else npy(next(iter(arrays.values()))))


def _thing(record: Record, kind: str, seen: Layer | None, head: int | None, batch_index: int) -> _Export:
    if kind == "heads":
        return _Export(None, None, lambda: heads_figure(record, batch_index=batch_index))
    if kind == "alignment":
        return _alignment(record, seen, head, batch_index)
    if kind == "top":
        return _top(record, seen, head, batch_index)
    if seen is None:
        raise InputError(f"`layer` must be given to export {kind!r}, its number or the name of its module")
    if kind in ("weights", "map", "map.max"):
        return _matrix(record, seen, kind, head, batch_index)
    return _statistic(record, seen, kind, head, batch_index)


def _matrix(record: Record, seen: Layer, kind: str, head: int | None, batch_index: int) -> _Export:
    def values(one: int) -> npt.NDArray[Any]:
        if kind == "weights":
            return np.asarray(record.weights(layer=seen, head=one)[batch_index])
        pool: Literal["mean", "max"] = "max" if kind == "map.max" else "mean"
        return np.asarray(record.heatmap(layer=seen, head=one, pool=pool)[batch_index])

    bins = (1, 1) if kind == "weights" else (seen.query_bin, seen.key_bin)
    rows = _binned(_names(query_labels(record, seen, batch_index)), bins[0])
    columns = _binned(_names(key_labels(record, seen, batch_index)), bins[1])

    def arrays() -> Mapping[str, npt.NDArray[Any]]:
        found = np.stack([values(one) for one in seen.recorded_heads]) if head is None else values(head)
        return {kind: found, "queries": np.array(rows), "keys": np.array(columns)}

    if head is None:
        return _Export(arrays, None, None)
    return _Export(
        arrays,
        lambda: matrix_table("query", rows, columns, values(head)),
        lambda: heatmap_figure(record, layer=seen, head=head, batch_index=batch_index),
    )


def _statistic(record: Record, seen: Layer, kind: str, head: int | None, batch_index: int) -> _Export:
    index = record.layers.index(seen)
    found = record.statistic(kind, layer=seen)[batch_index]  # (recorded heads, ...)
    shared = found.shape[0] == 1 and len(seen.recorded_heads) > 1
    heads = [head] if head is not None else [0] if shared else list(seen.recorded_heads)
    chosen = found[[0 if shared else seen.recorded_heads.index(one) for one in heads]]
    rows = [f"{layer_name(record, index)}, all heads" if shared else head_name(record, index, one) for one in heads]
    if chosen.ndim == 1:
        chosen = chosen[:, None]
    *above, names = _names_of_axes(record, seen, kind, chosen.shape[1:], batch_index)
    arrays = {kind: chosen if head is None else chosen[0]}
    arrays.setdefault("positions", np.array(names))  # a statistic may have any name
    if above:
        arrays.setdefault("row_positions", np.array(above[-1]))
    if chosen.ndim == 2:
        heading = f"{visible(record.model)}: {kind}" if record.model else kind
        return _Export(
            lambda: arrays,
            lambda: matrix_table(kind, names, rows, chosen.T),
            lambda: statistic_figure(heading, rows, names, chosen),
        )
    if head is None or chosen.ndim > 3:
        return _Export(lambda: arrays, None, None)
    return _Export(
        lambda: arrays,
        lambda: matrix_table(kind, above[0], names, chosen[0]),
        lambda: statistic_figure(f"{kind}, {rows[0]}", above[0], names, chosen[0]),
    )


def _top(record: Record, seen: Layer | None, head: int | None, batch_index: int) -> _Export:
    layers = range(len(record)) if seen is None else [record.layers.index(seen)]
    return _Export(
        lambda: top_arrays(record, layers, head, batch_index),
        lambda: top_table(record, layers, head, batch_index),
        None,
    )


def _alignment(record: Record, seen: Layer | None, head: int | None, batch_index: int) -> _Export:
    heads: Any = "mean"
    if seen is not None:
        heads = [(seen, one) for one in (seen.recorded_heads if head is None else [head])]
    found = align(record, heads, batch_index=batch_index)
    rows, columns = [word.text for word in found.target], [word.text for word in found.source]
    return _Export(
        lambda: {"weights": found.weights, "target": np.array(rows), "source": np.array(columns)},
        lambda: matrix_table("target", rows, columns, found.weights),
        lambda: alignment_figure(record, heads, batch_index=batch_index),
    )


def _names(tokens: Sequence[Any]) -> list[str]:
    return [token.text for token in tokens]


def _binned(names: Sequence[str], size: int) -> list[str]:
    """Return a name for each bin of the map: its positions, counted from 0."""
    if size == 1:
        return list(names)
    return [f"{start}:{min(start + size, len(names))}" for start in range(0, len(names), size)]


def _names_of_axes(
    record: Record, seen: Layer, kind: str, shape: Sequence[int], batch_index: int
) -> list[Sequence[str]]:
    """Return the names along each axis of a statistic, or numbers if it is unknown what the axis is."""
    queries, keys = (_names(of(record, seen, batch_index)) for of in (query_labels, key_labels))
    if kind in seen.axes:
        known = {"queries": queries, "keys": keys, "names": []}
        return [_chosen(known[of], which) for of, which in seen.axes[kind]]
    if kind in _MAPS:
        return [_binned(queries, seen.query_bin), _binned(keys, seen.key_bin)]
    if len(shape) == 1 and shape[0] in (len(queries), len(keys)):
        return [keys if kind in PER_KEY or shape[0] != len(queries) else queries]
    return [[str(number) for number in range(size)] for size in shape]


def _chosen(names: Sequence[str], which: Sequence[int] | Sequence[str] | None) -> Sequence[str]:
    if which is None:
        return names
    return [visible(one) if isinstance(one, str) else names[one] if one < len(names) else str(one) for one in which]
