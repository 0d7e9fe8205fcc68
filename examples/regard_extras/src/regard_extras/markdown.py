"""A renderer: the heads that a figure would show, as a table in Markdown."""

from regard import Record
from regard.record.highlight import Focus

__all__ = ["render"]


def render(record: Record, focus: Focus) -> bytes:
    """Return a row for each head: its layer, its number, the word that looks, the word that it sees, the weight."""
    word = focus.queries[focus.word].text
    head = [f"# {record.model}", "", "| layer | head | from | to | weight |", "|---:|---:|---|---|---:|"]
    rows = [
        f"| {look.layer} | {look.head} | {word} | {focus.keys[look.target].text} | {look.weight:.2f} |"
        for look in focus.looks
    ]
    return ("\n".join([*head, *rows]) + "\n").encode()
