"""A record as HTML for notebooks: the interactive page if it is small, else a static card with the command for the
rest.

Nothing is loaded from the network. The page is in a sandboxed frame, so that several pages and the notebook do not
interfere. If frames are disabled, only the sentence above it is shown.
"""

import html
from collections.abc import Sequence

from regard.capture.highlight import Focus, Look, choose_focus
from regard.capture.records import Record
from regard.errors import InputError, RegardError
from regard.render.labels import apart, key_labels, query_labels, shown_words, visible
from regard.render.notebook_card import card, lede, size
from regard.render.page import page

__all__ = ["LARGEST", "forwards_html", "record_html"]

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
    known = [seen for seen in record if {seen.query_tokens, seen.key_tokens} <= set(record.tokens)] or record.layers
    lead = next((seen for seen in known if seen.kind == "cross"), known[0])
    sides = (lead.query_tokens, lead.queries), (lead.key_tokens, lead.keys)
    if all(len(record.tokens.get(stream, ((),))[0]) == count for stream, count in sides):
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
