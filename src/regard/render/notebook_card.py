"""A record as plain HTML of a few hundred kilobytes: no scripts, no global names, any background colour."""

import base64
import html
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.capture.highlight import Focus
from regard.capture.missing_attention import missing_lines
from regard.capture.records import Record
from regard.render.generated_rows import says_written
from regard.render.head_patterns import describe
from regard.render.heatmap_data import head_map
from regard.render.labels import apart, head_name, key_labels, layer_name, query_labels, source_name, visible
from regard.render.png import shaded_png

__all__ = ["card", "lede", "size"]

_MAP = 224  # cells per side
_PIXELS = 200_000  # size of the map of all heads
_SIDES = range(24, 3, -2)
_TALLEST = 480  # width in pixels of a column of heads
_SHOWN = 320  # size in pixels of a map on the screen
_BEST = 5


def card(record: Record, focus: Focus) -> str:
    """Return the main result, the strongest keys of the query word, one head's map and all heads, as one HTML
    element.
    """
    look = focus.looks[0]
    seen = record.layers[look.layer]
    one = head_map(seen, look.head, focus.batch_index, rows=_MAP, columns=_MAP)
    name = head_name(record, look.layer, look.head)
    figures = [
        _figure(one.values / (float(one.values.max(initial=0.0)) or 1.0), f"{name}: {one.caption}", _SHOWN),
        _figure(
            np.sqrt(_mosaic(record, focus.batch_index)), "all heads, layers down, heads across; root of weight", None
        ),
    ]
    missing = "; ".join(missing_lines(record.missing))
    parts = [
        f"<p><strong>{html.escape(size(record))}</strong></p>",
        f"<p>{lede(record, focus)} {html.escape(describe(record, batch_index=focus.batch_index))}</p>",
        f"<p>{html.escape(visible(f'Not seen: {missing}.'))}</p>" if missing else "",
        _strongest(record, focus),
        f'<div style="display:flex;flex-wrap:wrap;gap:1rem;align-items:flex-start">{"".join(figures)}</div>',
    ]
    return "".join(part for part in parts if part)


def size(record: Record) -> str:
    """Return a description of the record's size."""
    heads = sum(seen.heads for seen in record)
    longest = max(record, key=lambda seen: seen.queries * seen.keys)
    tokens = f"{longest.queries:,}" if longest.kind == "self" else f"{longest.queries:,} × {longest.keys:,}"
    name = f"{visible(record.model)}: " if record.model else ""
    batch = f", the first of {longest.batch} sequences" if longest.batch > 1 else ""
    written = says_written(record)
    counts = f"{_many(len(record), 'layer')}, {_many(heads, 'head')}, {tokens} tokens{batch}"
    return f"{name}{counts}{f' ({written})' if written else ''}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def lede(record: Record, focus: Focus) -> str:
    """Return the main result in a sentence, as HTML, with a note."""
    source = apart(source_name(focus))
    said = [
        f"head {look.head} of {html.escape(layer_name(record, look.layer))} looks from “{source}” to "
        f"“{apart(visible(focus.keys[look.target].text))}” with a weight of {look.weight:.2f}"
        for look in focus.looks
    ]
    joined = "; ".join(said)
    note = f" {apart(visible(focus.note))}" if focus.note else ""
    return f"{joined[:1].upper()}{joined[1:]}.{note}"


def _strongest(record: Record, focus: Focus) -> str:
    """Return the strongest keys of the query word as a table."""
    rows = []
    for look in focus.looks:
        seen = record.layers[look.layer]
        queries, keys = query_labels(record, seen, focus.batch_index), key_labels(record, seen, focus.batch_index)
        query = focus.queries[focus.word].pieces[0]
        best = record.top(layer=seen, head=look.head, query=query, batch_index=focus.batch_index)[:_BEST]
        to = ", ".join(f"{apart(keys[key].text)} {weight:.2f}" for key, weight in best)
        name = html.escape(head_name(record, look.layer, look.head))
        rows.append((name, apart(queries[query].text), f"→ {to}"))
    cells = "".join(f"<tr>{''.join(f'<td style={_CELL}>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table style="border-collapse:collapse;margin:0.4rem 0">{cells}</table>'


_CELL = '"padding:0.1rem 0.8rem 0.1rem 0;text-align:left;background:none;border:none"'


def _figure(values: npt.NDArray[np.floating], caption: str, side: int | None) -> str:
    encoded = base64.b64encode(shaded_png(values)).decode()
    height, width = values.shape
    shown = f"width:{side}px;height:{max(8, round(side * height / width))}px;" if side else ""
    return (
        f'<figure style="margin:0"><img alt="{html.escape(caption)}" src="data:image/png;base64,{encoded}" '
        f'style="{shown}max-width:100%;image-rendering:pixelated;border:1px solid #8886">'
        f'<figcaption style="font-size:0.85em;opacity:0.8">{html.escape(caption)}</figcaption></figure>'
    )


def _mosaic(record: Record, batch_index: int) -> npt.NDArray[np.float32]:
    """Return all heads as small maps with white gaps, as large as the available size permits."""
    heads = max(seen.heads for seen in record)
    side = next((side for side in _SIDES if _fits(side + 2, len(record), heads)), _SIDES[-1])
    rows = [_row([head_map(seen, head, batch_index, rows=side, columns=side).values for head in range(seen.heads)],
                 side, heads) for seen in record]  # fmt: skip
    return np.concatenate(rows)


def _fits(side: int, layers: int, heads: int) -> bool:
    return side * side * heads * layers <= _PIXELS and side * layers <= _TALLEST


def _row(maps: Sequence[npt.NDArray[np.float32]], side: int, heads: int) -> npt.NDArray[np.float32]:
    row = np.zeros((side + 2, heads * (side + 2)), dtype=np.float32)
    for number, values in enumerate(maps):
        down, across = (np.arange(side) * count // side for count in values.shape)
        row[1 : side + 1, number * (side + 2) + 1 : (number + 1) * (side + 2) - 1] = values[down][:, across]
    return row
