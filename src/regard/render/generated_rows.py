"""Which rows a model has read as a prompt, and which it has written itself, one at a time."""

from regard.capture.records import Layer, Record

__all__ = ["prompt_rows", "says_written"]


def prompt_rows(record: Record, layer: Layer) -> int | None:
    """How many rows of a layer were read at once, None where nothing was written after them, or it is not known.

    `watch` notes it as `notes["prompt"]` where later passes went on with the cache of the first.
    """
    rows = record.notes.get("prompt")
    if not isinstance(rows, int) or layer.query_tokens == "source" or not 0 < rows < layer.queries:
        return None
    return rows


def says_written(record: Record) -> str:
    """A clause for captions: "a prompt of 12 tokens, then 30 written", or nothing."""
    for layer in record:
        rows = prompt_rows(record, layer)
        if rows is not None and layer.kind == "self":
            return f"a prompt of {rows:,} token{'s' if rows > 1 else ''}, then {layer.queries - rows:,} written"
    return ""
