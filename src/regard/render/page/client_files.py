"""The browser client: HTML, style and JavaScript modules that the page as a file and the server share.

The server sends the modules as they are. In a page that is a file they are one script: each module becomes a function
that returns its exports, in the order in which they import each other.
"""

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["CLIENT_FILES", "client_html", "client_script", "client_text", "content_policy"]

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
    """Return the modules of a page that is a file as one script."""
    return f'"use strict";\n{"".join(map(_wrapped, _modules(_INLINE)))}'


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
