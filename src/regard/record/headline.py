"""The headline: what is said of a focus, in the same words in a terminal, a page, a figure and Python."""

from dataclasses import dataclass

from regard.record.highlight import Focus
from regard.record.names import head_name, visible
from regard.record.places import numbered_name
from regard.record.records import Record
from regard.record.tokens import Word

__all__ = ["HeadLine", "head_lines", "headline", "source_name"]


@dataclass(frozen=True)
class HeadLine:
    """What is said of one head: its name, the word that looks, the word that it looks at, the weight in two digits."""

    head: str
    query: str
    key: str
    weight: str

    def __str__(self) -> str:
        """Return the line, such as "layer 13 head 8: it → animal 0.75"."""
        return f"{self.head}: {self.query} → {self.key} {self.weight}"


def head_lines(record: Record, focus: Focus) -> tuple[HeadLine, ...]:
    """Return a line for each head of a focus, with the weight and the two words that figures connect."""
    layer = record.layers[focus.looks[0].layer]
    query = source_name(focus) if focus.part else _name(record, layer.query_tokens, focus, focus.queries[focus.word])
    return tuple(
        HeadLine(
            head_name(record, look.layer, look.head),
            query,
            _name(record, layer.key_tokens, focus, focus.keys[look.target]),
            f"{look.weight:.2f}",
        )
        for look in focus.looks
    )


def _name(record: Record, stream: str, focus: Focus, word: Word) -> str:
    """Return a word as it can be named, with its number where the text has several such words."""
    texts = record.tokens.get(stream, ())
    known = texts[focus.batch_index] if focus.batch_index < len(texts) else ()
    return visible(numbered_name(known, word) if word.pieces[-1] < len(known) else word.text)


def headline(record: Record, focus: Focus) -> str:
    """Return the lines of the heads and the note below one another."""
    note = [visible(focus.note)] if focus.note else []
    return "\n".join([*map(str, head_lines(record, focus)), *note])


def source_name(focus: Focus) -> str:
    """Return the query word in visible text; for a subword, the subword and its word."""
    word = visible(focus.queries[focus.word].text)
    return f"{visible(focus.part)} (in {word})" if focus.part else word
