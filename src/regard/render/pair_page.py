"""One head over two texts as HTML: sentences, numbers, and the two pages side by side."""

import dataclasses
import html
from pathlib import Path

from regard.files import write_atomically
from regard.heads.change_loss_and_pairs import HeadChange
from regard.record.highlight import Focus
from regard.record.minimal_pair import MinimalPair, Moved
from regard.render.labels import apart, head_name, source_name, visible
from regard.render.notebook import card
from regard.render.page import page
from regard.render.pair_text import (
    CAUTION,
    change_sentence,
    flip_sentence,
    flip_text,
    head_sentence,
    moved_rows,
)

__all__ = ["pair_card", "pair_page", "write_pair_page"]

_STYLE = (
    "body{margin:1rem;font:15px/1.5 system-ui,sans-serif;background:Canvas;color:CanvasText}"
    ".pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34rem),1fr));gap:0.8rem}"
    "iframe{width:100%;height:60rem;border:1px solid #8886;border-radius:6px}.says{max-width:60rem}"
)
_CELL = "padding:0.1rem 0.8rem 0.1rem 0;text-align:left;background:none;border:none"
_NUMBER = (
    "padding:0.1rem 0.8rem 0.1rem 0;text-align:right;font-variant-numeric:tabular-nums;background:none;border:none"
)


def write_pair_page(pair: MinimalPair, change: HeadChange, path: str | Path, *, titles: tuple[str, str]) -> None:
    """Save `pair_page` to a file, atomically."""
    write_atomically(Path(path), pair_page(pair, change, titles=titles).encode())


def pair_page(pair: MinimalPair, change: HeadChange, *, titles: tuple[str, str]) -> str:
    """Return both texts as one HTML page: the page of each, opened with the same head, in a frame next to the other."""
    frames = "".join(
        f'<iframe sandbox="allow-scripts" title="{html.escape(visible(title))}" '
        f'srcdoc="{html.escape(page(record, _one_head(focus), title=title))}"></iframe>'
        for record, focus, title in zip(pair.records, pair.highlights, titles, strict=True)
    )
    title = f"{head_name(pair.records[0], *pair.head)} in two texts"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><link rel="icon" href="data:,"><style>{_STYLE}</style></head><body>'
        f'<h1>{html.escape(title)}</h1><div class="says">{_says(pair, change)}</div>'
        f'<div class="pair">{frames}</div></body></html>'
    )


def pair_card(pair: MinimalPair, change: HeadChange) -> str:
    """Return the HTML for a notebook: one element without scripts, of a few hundred kilobytes."""
    cards = "".join(
        f'<div style="flex:1 1 24rem;min-width:0">{card(record, _one_head(focus))}</div>'
        for record, focus in zip(pair.records, pair.highlights, strict=True)
    )
    return (
        f'<div style="max-width:76rem;margin:0.3rem 0">{_says(pair, change)}'
        f'<div style="display:flex;flex-wrap:wrap;gap:1rem">{cards}</div></div>'
    )


def _one_head(focus: Focus) -> Focus:
    """Return the focus with one head instead of two equal ones."""
    return dataclasses.replace(focus, looks=focus.looks[:1])


def _says(pair: MinimalPair, change: HeadChange) -> str:
    """Return the sentences, the head's row in both texts, and the heads that flip, as HTML."""
    flips = (
        ""
        if pair.is_untouched
        else "".join(f"<li>{apart(flip_text(one, pair.words))}</li>" for one in pair.flips.flips)
    )
    sentences = [change_sentence(change), CAUTION]
    return (
        f"<p>{apart(head_sentence(pair))}</p>{_table(pair)}<p>{apart(flip_sentence(pair))}</p><ul>{flips}</ul>"
        + "".join(f"<p>{html.escape(one)}</p>" for one in sentences if one)
    )


def _table(pair: MinimalPair) -> str:
    heads = ("", "text 1", "text 2", "change")
    top = "".join(f'<th scope="col" style="{_NUMBER if at else _CELL}">{head}</th>' for at, head in enumerate(heads))
    rows = "".join(_line(one) for one in moved_rows(pair))
    caption = f"Weights from {apart(source_name(pair.highlights[0]))}"
    return f'<table style="border-collapse:collapse"><caption>{caption}</caption><tr>{top}</tr>{rows}</table>'


def _line(one: Moved) -> str:
    words = dict.fromkeys((visible(one.before_word), visible(one.after_word)))
    word = " / ".join(apart(each) for each in words)
    name = f"<strong>{word}</strong>" if one.compared is not None else word
    numbers = (f"{one.before:.2f}", f"{one.after:.2f}", f"{round(one.change, 2) + 0.0:+.2f}")
    cells = "".join(f'<td style="{_NUMBER}">{number}</td>' for number in numbers)
    return f'<tr><th scope="row" style="{_CELL};font-weight:normal">{name}</th>{cells}</tr>'
