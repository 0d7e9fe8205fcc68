"""The common frame of HTML pages of measurements: one file without scripts or external resources."""

import html
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from regard_lab.charts import Chart
from regard_lab.drawing import INK, PAPER, RULE, SERIES, SOFT, svg_of

__all__ = ["document", "figure", "made_on"]

# Colours of figures are replaced by the page's variables, which differ in dark mode.
_COLOURS = {
    **{colour: f"var(--c{at})" for at, colour in enumerate(SERIES)},
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    RULE: "var(--rule)",
    PAPER: "var(--page)",
}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def document(title: str, lede: str, body: Iterable[str], foot: str) -> str:
    """Return a complete page of finished HTML parts; `title` is plain text."""
    style = (resources.files("regard_lab") / "page.css").read_text(encoding="utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body>",
        f"<header><h1>{html.escape(title)}</h1>",
        f"<p class=lede>{lede}</p></header>",
        "<main>",
        *body,
        "</main>",
        f"<footer>{foot}</footer>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def figure(chart: Chart, name: str) -> str:
    """Return a chart with its caption as HTML; `name` makes its ids unique on the page."""
    caption = html.escape(chart.caption)
    picture = re.sub("|".join(_COLOURS), lambda found: _COLOURS[found[0]], svg_of(chart, name))
    picture = picture.replace("<svg ", f'<svg role="img" aria-label="{caption}" ', 1)
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def made_on(about: Mapping[str, Any]) -> str:
    """Return when, where and with which versions a measurement was made, from `machine.here`."""
    machine, versions = about["machine"], ", ".join(f"{name} {one}" for name, one in about["versions"].items())
    where = f"{machine['cpu']}, {machine['cores']} cores ({about['threads']} threads used)"
    return html.escape(f"Made {about['made']} on {where}; {versions}.")
