"""One self-contained HTML page of a record: it opens from a file, needs no network, and works with the keyboard.

The data are stored as compressed base64 blobs, one per layer, which are decoded when a layer is first shown. For short
texts the page has every weight (rounded to 1/65535), for long ones the strongest keys of each query (to 4 decimals)
and pooled maps.
"""

import base64
import json
from pathlib import Path

from regard.capture.highlight import Focus
from regard.capture.records import Record
from regard.files import write_atomically
from regard.render.labels import apart, check_focus, visible
from regard.render.notebook_card import lede
from regard.render.page.client_files import client_html, client_script, client_text, content_policy
from regard.render.page.pack import Packed, pack
from regard.render.page.record_json import inline_json

__all__ = ["page", "write_page"]


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
    style, script = client_text("theme.css"), client_script()
    return client_html(
        inline=True,
        policy=content_policy(script, style),
        title=visible(title),
        lede=_lede(record, focus),
        style=style,
        script=script,
        command=visible(command) if command else "",
        meta=_inert(json.dumps(inline_json(record, focus, packed), ensure_ascii=False, separators=(",", ":"))),
        blobs=_blobs(packed),
    )


def _inert(text: str) -> str:
    """Return JSON in an element that no token can end."""
    hidden: dict[str, str | int | None] = {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
    return text.translate(str.maketrans(hidden))


def _blobs(packed: Packed) -> list[tuple[str, str]]:
    named = [("thumbs", packed.thumbs), *((f"layer-{n}", layer.blob) for n, layer in enumerate(packed.layers))]
    return [(name, base64.b64encode(blob).decode()) for name, blob in named]


def _lede(record: Record, focus: Focus) -> str:
    """Return the main result of the page in a sentence, for readers without JavaScript too."""
    found = lede(record, focus)
    model = f"In {apart(visible(record.model))}" if record.model else "Here"
    return f"{model}, {found[:1].lower()}{found[1:]}"
