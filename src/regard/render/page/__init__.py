"""One self-contained HTML page of a record, and the browser client that it shares with the server of atlases.

The page opens from a file, needs no network, and works with the keyboard. Its data are compressed base64 blobs, one per
layer, which are decoded when a layer is first shown. For short texts it has every weight (rounded to 1/65535), for long
ones the strongest keys of each query (to 4 decimals) and pooled maps.

The server sends the client's JavaScript modules as they are. In a page that is a file they are one script: each module
becomes a function that returns its exports, in the order in which they import each other.
"""

import base64
import hashlib
import json
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from regard.files import write_atomically
from regard.record.highlight import Focus
from regard.record.records import Record
from regard.render.labels import apart, check_focus, lede, visible
from regard.render.page.record_data import Packed, inline_json, pack

__all__ = ["CLIENT_FILES", "client_html", "client_script", "client_text", "content_policy", "page", "write_page"]

_INLINE, _HTTP = "source_inline.js", "source_http.js"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export const (\w+)", re.MULTILINE)


@cache
def client_text(name: str) -> str:
    """Return the text of one file of the client."""
    return (resources.files("regard.render.page") / name).read_text(encoding="utf-8")


@cache
def _modules(entry: str) -> tuple[str, ...]:
    """Return the modules that a module needs, each after those that it imports, itself last."""
    needed: dict[str, None] = {}
    for _, name in _IMPORT.findall(client_text(entry)):
        needed |= dict.fromkeys(_modules(f"{name}.js"))
    return (*needed, entry)


CLIENT_FILES: tuple[str, ...] = ("theme.css", *_modules(_HTTP))  # what the server sends


def client_script() -> str:
    """Return the modules of a page that is a file as one script, without comment lines and indentation."""
    lines = (line.strip() for name in _modules(_INLINE) for line in _wrapped(name).splitlines())
    return "\n".join(['"use strict";', *(line for line in lines if line and not line.startswith("//"))])


def _wrapped(name: str) -> str:
    text = client_text(name)
    exports = ", ".join(_EXPORT.findall(text))
    inner = _IMPORT.sub(lambda found: f"const {{{found[1]}}} = module_{found[2]};\n", text).replace("\nexport ", "\n")
    return f"const module_{name.removesuffix('.js')} = (() => {{\n{inner}return {{ {exports} }};\n}})();\n"


def client_html(**values: Any) -> str:
    """Return the page; `values` are escaped, but for those that page.html marks as safe."""
    from jinja2 import Environment

    template = Environment(autoescape=True, trim_blocks=False).from_string(client_text("page.html"))
    return template.render(**values)


def content_policy(script: str, style: str) -> str:
    """Return a policy that allows this script and this style by their hashes, and loads nothing."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


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
    return f"In {apart(visible(record.model))}, {lede(record, focus)}" if record.model else lede(record, focus)
