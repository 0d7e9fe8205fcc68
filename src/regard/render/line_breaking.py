"""Choose the words of a long text to show, and break them into lines of a terminal.

Wide characters and ellipses are counted in cells.
"""

from collections.abc import Collection, Iterable, Sequence

from regard.record.tokens import Word
from regard.render.arcs import LinePart

__all__ = ["excerpt", "fit", "lay_out", "split_part"]


def excerpt(count: int, anchors: Iterable[int], limit: int = 60) -> list[range]:
    """Return the ranges of word numbers to show: all words up to `limit`, else a range around each anchor.

    >>> excerpt(5, [2])
    [range(0, 5)]
    >>> excerpt(100, [3, 90], limit=8)
    [range(1, 6), range(88, 93)]
    """
    if count <= limit:
        return [range(count)]
    wanted = sorted(set(anchors))
    reach = max(1, limit // (2 * max(1, len(wanted))))
    shown: list[range] = []
    for anchor in wanted:
        start, stop = max(0, anchor - reach), min(count, anchor + reach + 1)
        if shown and start <= shown[-1].stop + 1:  # an ellipsis would replace at most one word
            shown[-1] = range(shown[-1].start, stop)
        else:
            shown.append(range(start, stop))
    return shown


def fit(text: str, width: int) -> str:
    """Return the text shortened to `width` cells, with an ellipsis for the part left out."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def lay_out(
    words: Sequence[tuple[Word, bool]], stream: str, anchors: Collection[int], *, margin: int, width: int, line: int
) -> list[list[LinePart]]:
    """Return lines of pieces for one sentence, without special tokens unless these are in `anchors`."""
    from rich.cells import cell_len

    lines: list[list[LinePart]] = [[]]
    column = margin

    def put(text: str, name: tuple[str, int] | None) -> None:
        nonlocal column
        size = cell_len(text)
        lines[-1].append(LinePart(text, name, line + len(lines) - 1, column, size))
        column += size

    for text, spaced, name in _parts(words, stream, anchors, width - margin):
        gap = 1 if spaced and lines[-1] else 0
        if column + gap + cell_len(text) > width and lines[-1]:
            lines.append([])
            column, gap = margin, 0
        if gap:
            put(" ", None)
        put(text, name)
    return lines


def split_part(line: Sequence[LinePart], word: tuple[str, int], part: str) -> list[LinePart]:
    """Return the line with one of its words split in up to three pieces, of which only one has the word's name."""
    from rich.cells import cell_len

    pieces: list[LinePart] = []
    for piece in line:
        before, found, after = piece.text.partition(part)
        if piece.word != word or not found:
            pieces.append(piece)
            continue
        start = piece.start
        for text, name in ((before, ("rest", word[1])), (found, word), (after, ("rest", word[1]))):
            if text:
                pieces.append(LinePart(text, name, piece.line, start, cell_len(text)))
                start += cell_len(text)
    return pieces


def _parts(
    words: Sequence[tuple[Word, bool]], stream: str, anchors: Collection[int], room: int
) -> list[tuple[str, bool, tuple[str, int] | None]]:
    """Return for each part its text, whether white space precedes it, and its word."""
    parts: list[tuple[str, bool, tuple[str, int] | None]] = []
    beside_special = False
    for shown in excerpt(len(words), anchors):
        if shown.start > 0:
            parts.append(("…", True, None))
        for index in shown:
            word, spaced = words[index]
            if word.special and index not in anchors:
                continue
            after_gap = bool(parts) and parts[-1][2] is None
            parts.append((fit(word.text, room), spaced or word.special or beside_special or after_gap, (stream, index)))
            beside_special = word.special
        if shown.stop < len(words):
            parts.append(("…", True, None))
    return [part for number, part in enumerate(parts) if number == 0 or part[0] != "…" or parts[number - 1][0] != "…"]
