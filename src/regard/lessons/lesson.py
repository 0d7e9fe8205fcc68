"""A lesson as a value: the state that its page opens with, and the same numbers as text."""

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from regard.errors import InputError, MissingExtraError
from regard.files import write_atomically
from regard.lessons.example import example
from regard.lessons.heads import WorkedHeads, join_heads
from regard.lessons.limits import MOST_BYTES, MOST_HEADS, MOST_TOKENS
from regard.lessons.page import TITLES, lesson_html
from regard.lessons.steps import Worked
from regard.lessons.text import Steps
from regard.lessons.text_words import Language, check_language
from regard.render.labels import visible

__all__ = [
    "Lesson",
    "example_lesson",
    "lesson_of_head",
    "lesson_of_heads",
    "lesson_of_translation",
    "steps_of_heads",
]

# What single steps of the page remember, beside the fields that all of them share: a field by the step's own name
# (page/step_fields.js has their ranges).
STEP_FIELDS: Mapping[str, Any] = {
    "why": {"length": 50, "example": 0},
    "transformer": {"model": "lesson", "norm": "post", "written": 1, "head": -1},  # head −1: the mean of all
    "maskStep": {"length": 12, "random": 1, "seed": 1},
    "otherScores": {"factor": 1},
    "scoresStep": {"dim": 64, "seed": 1, "scores": [100, 1, 1]},
}
NO_MASK: Mapping[str, Any] = {"kind": "none"}

_WIDTH = 80  # columns of the text
_NAMED = 8  # tokens in a name
_LARGEST_OUTPUT = 3_000_000  # bytes of a page within a notebook
_FRAME = (
    "display:block;width:100%;height:52rem;resize:vertical;overflow:auto;border:1px solid #8886;border-radius:6px;"
    "background:none;color-scheme:normal"
)


@dataclass(frozen=True, eq=False, repr=False)
class Lesson:
    """Attention step by step, each number computed from those before it, as a page and as text.

    `start` is the state that the page opens with (lessons/page/state.js), `steps` the same numbers for a terminal, and
    `data` what is recorded of real models, over that of the package (lessons/data).
    """

    start: Mapping[str, Any]
    steps: Steps
    data: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return what it is about, in a line."""
        return f"Lesson({self.name!r})"

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    @property
    def name(self) -> str:
        """The beginning of the tokens, and the head of a real model; or a sentence with its translation."""
        if (translation := self.data.get("translation")) is not None:
            return visible(f"{translation['sentence']} → {translation['translation']}")
        tokens = " ".join(visible(token) for token in self.steps.worked.tokens[:_NAMED])
        more = " …" if len(self.steps.worked.tokens) > _NAMED else ""
        where = f"{self.steps.model}, layer {self.steps.layer}, head {self.steps.head}: " if self.steps.model else ""
        return f"{where}{tokens}{more}"

    @property
    def text(self) -> str:
        """The steps as `regard steps` prints them, in lines of 80 columns; or a translation, a token in each line.

        Raises:
            MissingExtraError: rich is not installed (the extra `cli`).
        """
        if (translation := self.data.get("translation")) is not None:
            return _translation_text(self.name, translation, self.steps.lang)
        try:
            from rich.console import Console
        except ImportError as error:
            raise MissingExtraError("rich", "cli") from error
        console = Console(file=StringIO(), width=_WIDTH, color_system=None, legacy_windows=False)
        with console.capture() as capture:
            console.print(self.steps)
        return capture.get()

    def html(self) -> str:
        """Return the page: one file that needs no network."""
        return lesson_html(self.start, self.data)

    def to_html(self, path: str | PathLike[str]) -> None:
        """Save the page, atomically.

        Raises:
            InputError: The file does not end in .html, or cannot be written.
        """
        if not isinstance(path, str | PathLike):
            raise InputError(f"`path` must be the name of a file that ends in .html, got {path!r}")
        target = Path(path).expanduser()
        if target.suffix.lower() != ".html":
            raise InputError(f"`path` must end in .html, as a lesson is a page, got {str(path)!r}")
        write_atomically(target, self.html().encode())

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for notebooks; of a page of more than 3 MB the text."""
        page = self.html()
        save = '<code>lesson.to_html("lesson.html")</code>'
        if (size := len(page.encode())) > _LARGEST_OUTPUT:
            return f"<p>The page has {size / 1e6:.1f} MB: {save} writes it.</p><pre>{html.escape(self.text)}</pre>"
        title = html.escape(TITLES[self.start["language"]])
        return (
            f'<p style="font-size:0.9em;opacity:0.85">{save} writes this page.</p>'
            '<iframe sandbox="allow-scripts allow-downloads" allow="clipboard-write" loading="lazy" '
            f'title="{title}" style="{_FRAME}" srcdoc="{html.escape(page)}"></iframe>'
        )


def example_lesson(language: Language = "en", *, row: int = 0) -> Lesson:
    """Return the lesson of 我 爱 你, with one matrix for W_Q, W_K and W_V."""
    return lesson_of_heads(join_heads([example()]), language=language, row=row)


def lesson_of_heads(
    heads: WorkedHeads,
    *,
    language: Language = "en",
    row: int = 0,
    head: int = 0,
    mask: Mapping[str, Any] = NO_MASK,
    scale: Literal["default", "none"] | float = "default",
) -> Lesson:
    """Return the lesson of heads that are worked out. `mask` and `scale` are those of the state (state.js), by which
    they were worked out; `row` and `head` are looked at first.

    Raises:
        InputError: There are more tokens, heads or numbers than a page shows.
    """
    start = _start(heads, language) | {"row": row, "head": head, "mask": mask, "scale": scale}
    _check_size(heads, start)
    return Lesson(start, steps_of_heads(heads, language=language, row=row, head=head))


def steps_of_heads(heads: WorkedHeads, *, language: Language = "en", row: int = 0, head: int = 0) -> Steps:
    """Return one of the heads as text, with what comes after it where there are more, or W_O."""
    joined = heads if len(heads.heads) > 1 or heads.w_output is not None else None
    return Steps(heads.heads[head], row, language, joined=joined, head=head)


def lesson_of_head(steps: Steps, data: Mapping[str, Any], *, layer: int, head: int, query: int, key: int = 0) -> Lesson:
    """Return the lesson of a real head: the page opens with it, and the numbers to change are those of the example.

    `steps` are its steps as text, `data` what is recorded of it and of others, for the page.
    """
    real = {"step": "real", "real": {"layer": layer, "head": head, "query": query, "key": key}}
    return Lesson(_start(join_heads([example()]), steps.lang) | real, steps, data)


def lesson_of_translation(translation: Mapping[str, Any], *, language: Language = "en") -> Lesson:
    """Return the lesson that opens with a translation as it is written; the numbers to change are those of the example.

    `translation` is that of lessons/data/translation.json, whose place it takes.
    """
    heads = join_heads([example()])
    start = _start(heads, language) | {"step": "transformer"}
    return Lesson(start, steps_of_heads(heads, language=language), {"translation": translation})


def _translation_text(name: str, translation: Mapping[str, Any], language: Language) -> str:
    """Return each written token with its probability, and the source token of the largest weight (mean of heads)."""
    looks = {"en": "looks most at", "zh": "最关注"}[language]
    lines = [name, ""]
    for step in translation["steps"]:
        heads = [head for layer in step["weights"] for head in layer]
        weights = [sum(column) / len(heads) for column in zip(*heads, strict=True)]
        source = translation["source"][weights.index(max(weights))]
        token, source = visible(step["token"]), visible(source)
        lines.append(f"{token}  p = {step['probability']:.2f}  {looks} {source}  {max(weights):.2f}")
    return "\n".join(lines) + "\n"


def _start(heads: WorkedHeads, language: Language) -> dict[str, Any]:
    """Return all fields of the state, as lessons/page/state.js has them."""
    check_language(language)
    worked = heads.heads[0]
    projected = worked.x is not None
    inputs = (worked.x, worked.key_x, worked.value_x) if projected else (worked.queries, worked.keys, worked.values)
    x, key_x, value_x = (None if matrix is None else _rows(matrix) for matrix in inputs)
    projections = [_projections(head) for head in heads.heads]
    return {
        "step": "why",
        "language": language,
        "row": 0,
        "head": 0,
        "tokens": list(worked.query_tokens),
        "x": x,
        "keyTokens": None if key_x is None else list(worked.tokens),
        "keyX": key_x,
        "valueX": value_x,
        "heads": projections if projected else None,
        "output": None if heads.w_output is None else _rows(heads.w_output),
        "positions": "none",
        "score": {"kind": "dot"},
        "scale": "default",
        "temperature": 1,
        "mask": NO_MASK,
        **STEP_FIELDS,
    }


def _projections(head: Worked) -> dict[str, Any]:
    matrices = {"query": head.w_query, "key": head.w_key, "value": head.w_value}
    return {name: _rows(matrix) for name, matrix in matrices.items() if matrix is not None}


def _rows(matrix: Any) -> list[list[float]]:
    """Return a matrix as lists, with whole numbers as such: 1, not 1.0."""
    return [
        [int(value) if value.is_integer() and abs(value) < 1e15 else value for value in row] for row in matrix.tolist()
    ]


def _check_size(heads: WorkedHeads, start: Mapping[str, Any]) -> None:
    """Refuse what a page cannot show with every number to be changed."""
    way = "take fewer, or read it as text: `regard steps` without `--out`"
    worked = heads.heads[0]
    tokens = max(len(worked.queries), len(worked.keys))
    if tokens > MOST_TOKENS:
        raise InputError(f"a lesson page shows at most {MOST_TOKENS} tokens, got {tokens}: {way}")
    if len(heads.heads) > MOST_HEADS:
        raise InputError(f"a lesson page shows at most {MOST_HEADS} heads, got {len(heads.heads)}: {way}")
    size = len(json.dumps(start))
    if size > MOST_BYTES:
        raise InputError(
            f"the numbers of a lesson page have at most {MOST_BYTES:,} bytes, got {size:,}: {way}, or fewer columns"
        )
