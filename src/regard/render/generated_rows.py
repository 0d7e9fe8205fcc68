"""Determine which rows of a record belong to the prompt and which were generated, one at a time."""

from regard.capture.records import Layer, Record

__all__ = ["prompt_rows", "says_written"]


def prompt_rows(record: Record, layer: Layer) -> int | None:
    """Return the number of a layer's rows that belong to the prompt, or None if nothing was generated or it is
    unknown.

    `watch` stores it as `notes["prompt"]` if later passes continued with the cache of the first.
    """
    rows = record.notes.get("prompt")
    if not isinstance(rows, int) or layer.query_tokens == "source" or not 0 < rows < layer.queries:
        return None
    return rows


def says_written(record: Record) -> str:
    """Return a clause for captions, such as "a prompt of 12 tokens, then 30 written", or an empty string."""
    for layer in record:
        rows = prompt_rows(record, layer)
        if rows is not None and layer.kind == "self":
            return f"a prompt of {rows:,} token{'s' if rows > 1 else ''}, then {layer.queries - rows:,} written"
    return ""
