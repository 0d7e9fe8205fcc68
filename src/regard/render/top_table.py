"""The strongest keys of each query as a table with one row per key, and as arrays."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from regard.capture.layer_selection import several_streams
from regard.capture.records import Record
from regard.render.csv_table import Table
from regard.render.labels import key_labels, query_labels

__all__ = ["top_arrays", "top_table"]


def top_table(record: Record, layers: Sequence[int], head: int | None, batch_index: int) -> Table:
    """Return rows for these layers, strongest key first: layer, head, query and key by position and by token,
    weight.
    """
    header = ["layer", "head", "query", "from", "rank", "key", "to", "weight"]
    parts = [record.layers[index] for index in layers]
    count = sum((seen.heads if head is None else 1) * seen.queries * seen.top_keys.shape[-1] for seen in parts)
    return Table(header, count, (row for index in layers for row in _rows(record, index, head, batch_index)))


def _rows(record: Record, index: int, head: int | None, batch_index: int) -> Iterator[Sequence[Any]]:
    seen = record.layers[index]
    queries, keys = query_labels(record, seen, batch_index), key_labels(record, seen, batch_index)
    name = _name(record, index)
    for one in range(seen.heads) if head is None else [head]:
        for query in range(seen.queries):
            best = record.top(layer=seen, head=one, query=query, batch_index=batch_index)
            for rank, (key, weight) in enumerate(best, start=1):
                yield name, one, query, queries[query].text, rank, key, keys[key].text, weight


def top_arrays(
    record: Record, layers: Sequence[int], head: int | None, batch_index: int
) -> Mapping[str, npt.NDArray[Any]]:
    """Return keys and weights, strongest first, of shape (heads, queries, k), or (queries, k) for one head; for
    several layers by number.
    """
    which = slice(None) if head is None else head
    found: dict[str, npt.NDArray[Any]] = {}
    for index in layers:
        seen, ending = record.layers[index], f".{_name(record, index)}" if len(layers) > 1 else ""
        found[f"keys{ending}"] = seen.top_keys[batch_index, which]
        found[f"weights{ending}"] = seen.top_weights[batch_index, which]
    return found


def _name(record: Record, index: int) -> int | str:
    """Return the layer's number, or its module's name if several streams have this number."""
    layer = record.layers[index]
    return layer.name if several_streams(record.layers) else record.number(layer)
