"""JavaScript modules of this package as the one script of a page that opens from a file, and what keeps it closed.

Each module becomes a function that returns its exports, in the order in which they import each other.
"""

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["content_policy", "inert_json", "modules", "one_script", "one_style", "package_text"]

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[\w./]*)";\n', re.MULTILINE)
_COMMENT = re.compile(r"\s// [^\"'`]*$")  # behind code; where a quote follows, it may stand in a text
_STYLE_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_EXPORT = re.compile(r"^export const (\w+)", re.MULTILINE)


@cache
def package_text(name: str) -> str:
    """Return the text of a file of the package, such as "render/page/theme.css"."""
    return (resources.files("regard") / name).read_text(encoding="utf-8")


@cache
def modules(entry: str) -> tuple[str, ...]:
    """Return the modules that a module needs, each after those that it imports, itself last."""
    needed: dict[str, None] = {}
    for _, name in _IMPORT.findall(package_text(entry)):
        needed |= dict.fromkeys(modules(_beside(entry, name)))
    return (*needed, entry)


def one_script(entry: str) -> str:
    """Return a module and all that it needs as one script, without comments and indentation."""
    names = {name: f"m{number}" for number, name in enumerate(modules(entry))}
    lines = (_COMMENT.sub("", line).strip() for name in names for line in _wrapped(name, names).splitlines())
    return "\n".join(['"use strict";', *(line for line in lines if line and not line.startswith("//"))])


def one_style(*names: str) -> str:
    """Return style sheets as one, without comments and indentation."""
    text = _STYLE_COMMENT.sub("", "\n".join(map(package_text, names)))
    return "\n".join(line for line in map(str.strip, text.splitlines()) if line)


def content_policy(script: str, style: str) -> str:
    """Return a policy that allows this script and this style by their hashes, and loads nothing."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def inert_json(value: Any) -> str:
    """Return JSON for an element of a page that no text in it can end."""
    hidden: dict[str, str | int | None] = {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(str.maketrans(hidden))


def _beside(name: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), relative))


def _wrapped(name: str, names: Mapping[str, str]) -> str:
    text = package_text(name)
    exports = ",".join(_EXPORT.findall(text))
    inner = _IMPORT.sub(lambda line: f"const {{{_short(line[1])}}} = {names[_beside(name, line[2])]};\n", text)
    inner = inner.replace("\nexport ", "\n")
    return f"const {names[name]} = (() => {{\n{inner}return {{ {exports} }};\n}})();\n"


def _short(imports: str) -> str:
    return ",".join(name.strip() for name in imports.split(",") if name.strip())
