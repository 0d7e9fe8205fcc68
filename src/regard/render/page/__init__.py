"""One self-contained HTML page of a record, and the browser client that it shares with the server of atlases.

The page opens from a file, needs no network, and works with the keyboard. Its data are compressed base64 blobs, one per
layer, which are decoded when a layer is first shown. For short texts it has every weight (rounded to 1/65535), for long
ones the strongest keys of each query (to 4 decimals) and pooled maps.

The server sends the client's JavaScript modules as they are; in a page that is a file they are one script.
"""

import base64
from functools import cache
from pathlib import Path
from typing import Any

from regard.files import write_atomically
from regard.record.highlight import Focus
from regard.record.records import Record
from regard.render.browser_script import content_policy, inert_json, modules, one_script, one_style, package_text
from regard.render.labels import apart, check_focus, lede, visible
from regard.render.page.record_data import Packed, inline_json, pack

__all__ = ["CLIENT_FILES", "client_html", "client_text", "page", "write_page"]

_INLINE, _HTTP = "render/page/source_inline.js", "render/page/source_http.js"

# What the server sends.
CLIENT_FILES: tuple[str, ...] = ("theme.css", *(Path(name).name for name in modules(_HTTP)))


@cache
def client_text(name: str) -> str:
    """Return the text of one file of the client."""
    return package_text(f"render/page/{name}")


def client_html(**values: Any) -> str:
    """Return the page; `values` are escaped, but for those that page.html marks as safe."""
    from jinja2 import Environment

    template = Environment(autoescape=True, trim_blocks=False).from_string(client_text("page.html"))
    return template.render(**values)


def write_page(
    record: Record, focus: Focus, path: str | Path, *, title: str = "What attends to what", command: str = ""
) -> None:
    """Save `page` to a file, atomically."""
    write_atomically(Path(path), page(record, focus, title=title, command=command).encode())


def page(record: Record, focus: Focus, *, title: str = "What attends to what", command: str = "") -> str:
    """Return a record as one HTML page that opens with the heads of `focus`.

    `command` is shown to the reader as the command that computes one of its weights step by step.
    """
    check_focus(record, focus)
    packed = pack(record, focus.batch_index)
    style, script = one_style("render/page/theme.css"), one_script(_INLINE)
    return client_html(
        inline=True,
        policy=content_policy(script, style),
        title=visible(title),
        lede=_lede(record, focus),
        style=style,
        script=script,
        command=visible(command) if command else "",
        meta=inert_json(inline_json(record, focus, packed)),
        blobs=_blobs(packed),
    )


def _blobs(packed: Packed) -> list[tuple[str, str]]:
    named = [("thumbs", packed.thumbs), *((f"layer-{n}", layer.blob) for n, layer in enumerate(packed.layers))]
    return [(name, base64.b64encode(blob).decode()) for name, blob in named]


def _lede(record: Record, focus: Focus) -> str:
    """Return the main result of the page in a sentence, for readers without JavaScript too."""
    return f"In {apart(visible(record.model))}, {lede(record, focus)}" if record.model else lede(record, focus)
