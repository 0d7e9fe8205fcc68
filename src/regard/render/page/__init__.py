"""One self-contained HTML page of a record: it opens from a file, needs no network, and works with the keyboard.

The data are stored as compressed base64 blobs, one per layer, which are decoded when a layer is first shown. For short
texts the page has every weight (rounded to 1/65535), for long ones the strongest keys of each query (to 4 decimals)
and pooled maps.
"""

import base64
import hashlib
import html
import json
from importlib import resources
from pathlib import Path
from string import Template

from regard.capture.highlight import Focus
from regard.capture.records import Record
from regard.files import write_atomically
from regard.render.labels import apart, check_focus, visible
from regard.render.notebook_card import lede
from regard.render.page.describe import description
from regard.render.page.pack import Packed, pack

__all__ = ["page", "write_page"]

_SCRIPTS = ("data.js", "ink.js", "sentence.js", "map.js", "heads.js", "main.js")


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
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in _SCRIPTS)
    return Template(_asset("template.html")).substitute(
        policy=_policy(script, style),
        title=html.escape(visible(title)),
        lede=_lede(record, focus),
        style=style,
        script=script,
        command=_command(command),
        meta=_inert(json.dumps(description(record, focus, packed), ensure_ascii=False, separators=(",", ":"))),
        blobs=_blobs(packed),
    )


def _asset(name: str) -> str:
    return (resources.files("regard.render.page") / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """Return a content security policy that permits only this script and this style, by their hashes, and no
    resources.
    """

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
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


def _blobs(packed: Packed) -> str:
    named = [("thumbs", packed.thumbs), *((f"layer-{n}", layer.blob) for n, layer in enumerate(packed.layers))]
    return "\n".join(
        f'<script type="application/octet-stream" id="{name}">{base64.b64encode(blob).decode()}</script>'
        for name, blob in named
    )


def _lede(record: Record, focus: Focus) -> str:
    """Return the main result of the page in a sentence, for readers without JavaScript too."""
    found = lede(record, focus)
    model = f"In {apart(visible(record.model))}" if record.model else "Here"
    return f"{model}, {found[:1].lower()}{found[1:]}"


def _command(command: str) -> str:
    if not command:
        return ""
    return f"<p>One of these weights, computed step by step:</p><pre><code>{html.escape(visible(command))}</code></pre>"
