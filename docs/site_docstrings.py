"""Docstrings as mkdocstrings shows them: doctests and formulas become blocks of code (a Griffe extension)."""

import re
from typing import Any

import griffe

__all__ = ["Blocks"]

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
_FORMULA = re.compile(r"^Formula: (.+(?:\n.+)*)", re.MULTILINE)


class Blocks(griffe.Extension):
    """Fence the doctests, which end at an empty line, and the paragraph `Formula: …` of each docstring."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Rewrite the text of one docstring."""
        if obj.docstring:
            text = _DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = _FORMULA.sub(lambda found: f"```text\n{found[1]}\n```", text)
