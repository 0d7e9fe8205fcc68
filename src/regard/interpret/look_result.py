"""LookResult, what `regard.look` and `seen.look` return: a record, and the word and heads that are shown of it."""

from dataclasses import dataclass
from typing import Any

from regard.lessons.lesson import Lesson
from regard.lessons.recorded_heads import lesson_of_record
from regard.lessons.text_words import Language
from regard.record.headline import head_lines, headline
from regard.record.highlight import Focus
from regard.record.layers import stream_of
from regard.record.records import Record
from regard.render.notebook import record_html

__all__ = ["LookResult"]


@dataclass(frozen=True, eq=False, repr=False)
class LookResult:
    """The result of look(): the record of a text, the heads and the row that figures show, and notes.

    `print` shows a line for each head, such as "layer 13 head 8: it → animal 0.75", and the remark on the choice, as
    terminal, page and figure do.
    """

    record: Record
    highlight: Focus
    model: str
    warning: str | None = None

    def __repr__(self) -> str:
        """Return the model and the lines of the heads, in one line."""
        return f"LookResult({self.model!r}: {'; '.join(map(str, head_lines(self.record, self.highlight)))})"

    def __str__(self) -> str:
        """Return the lines of the heads, and the remark on the choice."""
        return headline(self.record, self.highlight)

    def lesson(self, *, lang: Language = "en") -> Lesson:
        """Return a lesson that opens with the first head and word shown, each step from its queries, keys and values.

        Raises:
            InputError: The text is longer than 256 tokens, or the weights are no softmax of products.
            ObservationError: The record keeps no queries and keys: `regard.look(text, keep="qkv")` does.
        """
        shown, look = self.highlight, self.highlight.looks[0]
        layer = self.record.layers[look.layer]
        chosen: dict[str, Any] = {"layer": layer.name, "head": look.head, "stream": stream_of(layer)}
        first = shown.queries[shown.word].pieces
        return lesson_of_record(
            self.record, token=range(first[0], first[-1] + 1), batch_index=shown.batch_index, **chosen, lang=lang
        )

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays, of at most 300 kB."""
        return record_html(self.record, self.highlight)
