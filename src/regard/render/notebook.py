"""A record as HTML for notebooks: the interactive page if it is small, else a card with the command for the rest.

Nothing is loaded from the network. The page is in a sandboxed frame, so that several pages and the notebook do not
interfere. If frames are disabled, only the sentence above it is shown. The card has no scripts and no global names, and
fits any background colour; its pictures are PNG images in sixteen shades (RFC 2083), made without a drawing library.
"""

import base64
import html
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, RegardError
from regard.record.highlight import Focus, Look, choose_focus
from regard.record.layers import has_words
from regard.record.missing_attention import missing_lines
from regard.record.records import Record
from regard.render.heatmap_data import head_map
from regard.render.labels import (
    all_heads,
    apart,
    describe,
    head_name,
    key_labels,
    lede,
    query_labels,
    shown_words,
    size,
    visible,
)
from regard.render.page import page

__all__ = ["LARGEST", "SHADES", "card", "forwards_html", "record_html", "shaded_png"]

_STOPS = ((255, 255, 255), (158, 202, 233), (0, 114, 178), (0, 32, 63))  # those of figures
_LEVELS = 16
SHADES = np.rint(
    np.stack([np.interp(np.linspace(0, 3, _LEVELS), range(4), channel) for channel in zip(*_STOPS, strict=True)], -1)
).astype(np.uint8)


def shaded_png(values: npt.NDArray[np.floating]) -> bytes:
    """Return numbers from 0 (white) to 1 (near black) as PNG, one pixel each; NaN is white."""
    height, width = values.shape
    levels = np.rint(np.clip(np.nan_to_num(values), 0, 1) * (_LEVELS - 1)).astype(np.uint8)
    even = np.pad(levels, ((0, 0), (0, width % 2)))
    packed = (even[:, ::2] << 4) | even[:, 1::2]  # two pixels per byte
    lines = np.pad(packed, ((0, 0), (1, 0)))  # each line begins with its filter type, none
    head = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)  # four bits per pixel, with a palette
    body = zlib.compress(lines.tobytes(), 9)
    parts = ((b"IHDR", head), (b"PLTE", SHADES.tobytes()), (b"IDAT", body), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


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
            np.sqrt(_mosaic(record, focus.batch_index)),
            f"{all_heads(record)}, layers down, heads across; root of weight",
            None,
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
    """Return all heads as small maps with white gaps, as large as the available size permits; heads that were not
    recorded are gaps.
    """
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


LARGEST = 300_000  # maximum number of bytes of one output
_MOST_TOKENS = 2_000
_PASSES = 50  # maximum number of passes listed
_TEXT = 80  # characters of each
_OUTER = "max-width:76rem;margin:0.3rem 0"
_FRAME = (
    "display:block;width:100%;height:46rem;resize:vertical;overflow:auto;border:1px solid #8886;border-radius:6px;"
    "background:none;color-scheme:normal"
)
_SAVE = '<code>seen.save("it.atlas")</code>, then <code>regard open it.atlas</code>'
_WHOLE = '<code>seen.to_html("it.html")</code> writes a page'


def record_html(record: Record, focus: Focus | None = None) -> str:
    """Return one record as HTML of at most 300 kB; without a focus, that of `regard look`, or the first head."""
    if not len(record):
        return _outer("<p>Nothing was seen: this record has no layers.</p>")
    focus = _focus(record) if focus is None else focus
    whole = _page(record, focus)
    if whole is not None:
        return whole
    says = (
        f"<p>Not shown here: the weights of every word and head. {_WHOLE} of them; everything that was kept is in the "
        f"atlas: {_SAVE}.</p>"
    )
    return _outer(f"{card(record, focus)}{says}")


def _focus(record: Record) -> Focus:
    """Return the focus of `regard look`; if no word attends to another word, the last row of the first head."""
    known = [seen for seen in record if has_words(seen, record.tokens)]
    lead = next((seen for seen in known or record if seen.kind == "cross"), (known or record.layers)[0])
    if known:
        try:
            return choose_focus(record)
        except InputError:
            pass
    queries = tuple(word for word, _ in shown_words(query_labels(record, lead, 0)))
    keys = tuple(word for word, _ in shown_words(key_labels(record, lead, 0)))
    layer, row = record.layers.index(lead), len(queries) - 1
    best = record.top(layer=lead, head=0, query=queries[row].pieces[0])
    key, weight = best[0] if best else (0, 0.0)
    target = next(index for index, word in enumerate(keys) if key in word.pieces)
    return Focus(queries, keys, row, (Look(layer, 0, target, weight),))


def forwards_html(records: Sequence[Record]) -> str:
    """Return the only pass as HTML, or a list of several passes with the way to show one."""
    if not records:
        return _outer("<p>Nothing has been seen yet: ask after the <code>with</code> block has ended.</p>")
    if len(records) == 1:
        return record_html(records[0])
    rows = "".join(
        f'<tr><td style="text-align:right"><code>seen[{number}]</code></td><td style="text-align:left">'
        f'{html.escape(size(record))}</td><td style="text-align:left">{apart(_text(record))}</td></tr>'
        for number, record in enumerate(records[:_PASSES])
    )
    more = f"<p>… and {len(records) - _PASSES} more.</p>" if len(records) > _PASSES else ""
    says = f"<p>{len(records)} forward passes were seen: show one with <code>seen[0]</code>. All of them: {_SAVE}.</p>"
    return _outer(f"{says}<table>{rows}</table>{more}")


def _outer(inner: str) -> str:
    return f'<div style="{_OUTER}">{inner}</div>'


def _page(record: Record, focus: Focus) -> str | None:
    """Return the page in its frame, or None if it is too large or cannot be made."""
    pairs = sum(seen.heads * seen.queries * seen.keys for seen in record)
    if pairs > LARGEST or max(max(seen.queries, seen.keys) for seen in record) > _MOST_TOKENS:
        return None
    try:
        inside = page(record, focus, title=size(record))
    except RegardError:  # with weights that are not finite, the card can still be shown
        return None
    frame = (
        f'<iframe sandbox="allow-scripts" loading="lazy" title="{html.escape(size(record))}" style="{_FRAME}" '
        f'srcdoc="{html.escape(inside)}"></iframe>'
    )
    says = f"{lede(record, focus)} {_WHOLE} of its own; the atlas: {_SAVE}."
    whole = _outer(f'<p style="font-size:0.9em;opacity:0.85">{says}</p>{frame}')
    return whole if len(whole.encode()) <= LARGEST else None


def _text(record: Record) -> str:
    """Return the beginning of the text, if it is known."""
    words: list[str] = []
    for stream in record.tokens.values():
        words += [visible(token.text) if not token.space else f" {visible(token.text)}" for token in stream[0][:_TEXT]]
    text = "".join(words).strip()
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
