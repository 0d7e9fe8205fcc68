"""A lesson as a value: the numbers that it starts from."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from regard.files import write_atomically
from regard.lessons.page import lesson_html

__all__ = ["Lesson", "example_lesson"]


@dataclass(frozen=True)
class Lesson:
    """What a lesson page opens with; `start` is the state of lessons/page/state.js."""

    start: Mapping[str, Any]

    def to_html(self, path: str | PathLike[str]) -> None:
        """Save the page, atomically."""
        write_atomically(Path(path), lesson_html(self.start).encode())


def example_lesson(language: str = "en") -> Lesson:
    """我 爱 你, with one matrix for W_Q, W_K and W_V."""
    one = [[1, 0], [0, 1], [1, 0], [0, 1]]
    return Lesson(
        {
            "step": "why",
            "language": language,
            "tokens": ["我", "爱", "你"],
            "x": [[1, 0, 1, 0], [0, 2, 0, 1], [1, 1, 1, 1]],
            "heads": [{"query": one, "key": one, "value": one}],
            "output": None,
            "positions": "none",
            "score": {"kind": "dot"},
            "scale": "default",
            "temperature": 1,
            "mask": {"kind": "none"},
            "row": 0,
            "head": 0,
        }
    )
