"""A record in a terminal: a sentence with the arcs of two heads from one word, a heat map, and the rules of all heads.

The heat map of one head is drawn in shade characters, readable without colour.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regard.errors import InputError, MissingExtraError
from regard.record.headline import HeadLine, head_lines
from regard.record.highlight import Focus
from regard.record.missing_attention import missing_lines
from regard.record.records import Record
from regard.record.tokens import Token
from regard.render.arcs import LOOK_STYLES, MARKS, Arc, LinePart, draw_sentences
from regard.render.heatmap_data import HeadMap, head_map
from regard.render.labels import (
    check_focus,
    describe,
    head_name,
    key_labels,
    query_labels,
    shown_words,
    statistic_means,
    visible,
)
from regard.render.line_breaking import fit, lay_out, split_part

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = ["MAX_ROWS", "NARROWEST", "Picture", "draw_map", "map_columns", "picture", "sentence_lines", "share_bar"]

MAX_ROWS = 40
_SHADES = " ░▒▓█"
_STEPS = (0.08, 0.25, 0.5, 0.75)  # of the largest cell
_LABEL = 12
_GUTTER = 2  # for the mark of the chosen rows


def _label_width(count: int) -> int:
    return _GUTTER + len(str(count)) + 1 + _LABEL + 1


def map_columns(keys: int, queries: int, width: int) -> int:
    """Return how many columns of at least two cells fit next to the row labels."""
    return max(1, min(keys, (width - _label_width(queries)) // 2))


def draw_map(
    picture: HeadMap, queries: Sequence[Token], chosen: Collection[int], *, width: int, style: str
) -> list["Text"]:
    """Return a header of column numbers, a row for each query and the legend; the query positions in `chosen` are
    marked.
    """
    from rich.text import Text

    values, left = picture.values, _label_width(len(queries))
    cell = 3 if values.shape[1] * 3 + left <= width else 2
    header = Text(" " * left + _numbers(values.shape[1], picture.key_bin, cell, width - left), "dim", no_wrap=True)
    header.rstrip()
    top = float(values.max(initial=0.0)) or 1.0
    levels = np.digitize(values, [step * top for step in _STEPS])
    rows = [header]
    for row, shades in enumerate(levels):
        start = row * picture.query_bin
        marked = any(start <= position < start + picture.query_bin for position in chosen)
        text = Text(no_wrap=True)
        text.append(_row_label(start, queries, marked=marked), "bold" if marked else "")
        text.append("".join(_SHADES[level] * cell for level in shades), style)
        text.rstrip()
        rows.append(text)
    return [*rows, _legend(top)]


def _row_label(start: int, queries: Sequence[Token], *, marked: bool) -> str:
    from rich.cells import set_cell_size

    number = str(start + 1).rjust(len(str(len(queries))))
    return f"{'▶ ' if marked else '  '}{number} {set_cell_size(fit(queries[start].text, _LABEL), _LABEL)} "


def _numbers(columns: int, size: int, cell: int, room: int) -> str:
    """Return the column numbers, counted from 1 as in `--token`, as many as fit without touching."""
    widest = len(str((columns - 1) * size + 1)) + 1
    every = next((step for step in (1, 2, 5, 10, 20, 50) if step * cell >= widest), columns)
    line = ""
    for column in range(0, columns, every):
        line = line.ljust(column * cell) + str(column * size + 1)
    return line if len(line) <= room else line[:room].rsplit(" ", 1)[0]


def _legend(top: float) -> "Text":
    from rich.text import Text

    parts = [f"{shade} from {step * top:.2f}" for shade, step in zip(_SHADES[1:], _STEPS, strict=True)]
    return Text(f"  blank below {_STEPS[0] * top:.2f}   {'   '.join(parts)}", "dim", no_wrap=True)


def share_bar(weight: float, cells: int) -> str:
    """Return a bar for a weight between 0 and 1, with a resolution of an eighth of a cell.

    >>> share_bar(0.5, 4)
    '██  '
    """
    eighths = round(min(max(weight, 0.0), 1.0) * cells * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(cells)


NARROWEST = 40
_BAR = 20


@dataclass(frozen=True, eq=False)
class Picture:
    """The rich renderable of `picture`."""

    record: Record
    focus: Focus
    width: int

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        width = max(NARROWEST, min(self.width, options.max_width))
        parts = [
            sentence_lines(self.record, self.focus, width),
            [*_looks(self.record, self.focus, width), *_note(self.focus, width)],
            _map(self.record, self.focus, width),
            _wrapped(describe(self.record, batch_index=self.focus.batch_index), width),
        ]
        if self.record.missing:
            parts.append(_wrapped(visible(f"Not seen: {'; '.join(missing_lines(self.record.missing))}."), width))
        for number, lines in enumerate(parts):
            if number:
                yield Text("")
            yield from lines


def picture(record: Record, focus: Focus, *, width: int = 80) -> Picture:
    """Draw a record for a terminal, at most `width` cells wide, readable without colour."""
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    if width < NARROWEST:
        raise InputError(f"`width` must be at least {NARROWEST} cells, got {width}")
    check_focus(record, focus)
    return Picture(record, focus, width)


def _words(record: Record, focus: Focus) -> tuple[tuple[Token, ...], tuple[Token, ...], bool]:
    layer = record.layers[focus.looks[0].layer]
    queries, keys = query_labels(record, layer, focus.batch_index), key_labels(record, layer, focus.batch_index)
    return queries, keys, layer.query_tokens != layer.key_tokens


def sentence_lines(record: Record, focus: Focus, width: int) -> list["Text"]:
    """Return the words with the arcs under them; if the text takes several lines, a margin is left for arcs between
    lines.
    """
    for margin in (2, 2 * len(focus.looks) + 1):
        lines, chosen, targets = _placed(record, focus, margin, width)
        arcs = [Arc(number, chosen, target) for number, target in enumerate(targets)]
        if all(arc.same_line for arc in arcs):
            break
    return draw_sentences(lines, arcs, margin)


def _placed(
    record: Record, focus: Focus, margin: int, width: int
) -> tuple[list[list[LinePart]], LinePart, list[LinePart]]:
    queries, keys, cross = _words(record, focus)
    targets = [look.target for look in focus.looks]
    anchors = {focus.word} if cross else {focus.word, *targets}
    lines = lay_out(shown_words(queries, focus.queries), "queries", anchors, margin=margin, width=width, line=0)
    name = "queries"
    if cross:
        name = "keys"
        lines.append([])
        below = len(lines)
        lines += lay_out(shown_words(keys, focus.keys), name, set(targets), margin=margin, width=width, line=below)
    if focus.part:
        lines = [split_part(line, ("queries", focus.word), visible(focus.part)) for line in lines]
    where = {piece.word: piece for line in lines for piece in line if piece.word}
    return lines, where["queries", focus.word], [where[name, target] for target in targets]


def _looks(record: Record, focus: Focus, width: int) -> list["Text"]:
    """Return a line for each head: number, name, query word, key word, the weight and its bar; then its statistics."""
    from rich.cells import cell_len
    from rich.text import Text

    said = head_lines(record, focus)
    left = max(len(line.head) for line in said) + 1
    room = width - 2 - 2 - left - 2 - 2 - 5 - 1 - _BAR - 1
    pairs = [_pair(line, room) for line in said]
    middle = max(map(cell_len, pairs))
    lines = []
    for number, (look, line, pair) in enumerate(zip(focus.looks, said, pairs, strict=True)):
        style = LOOK_STYLES[number % len(LOOK_STYLES)]
        text = Text(no_wrap=True)
        text.append(f"  {MARKS[number % len(MARKS)]} {f'{line.head}:'.ljust(left)}", style)
        text.append(f" {pair}{' ' * (middle - cell_len(pair))}  {line.weight} ")
        text.append(share_bar(look.weight, _BAR), style)
        text.append("▏", "dim")
        lines.append(text)
        means = statistic_means(record, record.layers[look.layer], look.head, focus.batch_index)
        named = " · ".join(f"{visible(name)} {mean:.3g}" for name, mean in means.items())
        lines += [Text("    ") + line for line in _wrapped(named, width - 4)] if named else []
    return lines


def _pair(line: HeadLine, room: int) -> str:
    from rich.cells import cell_len

    target = fit(line.key, max(3, (room - 3) // 2))
    return f"{fit(line.query, room - 3 - cell_len(target))} → {target}"


def _note(focus: Focus, width: int) -> list["Text"]:
    """Return the remark on the choice, with the indentation of the heads' lines."""
    from rich.text import Text

    return [Text("  ") + line for line in _wrapped(visible(focus.note), width - 2)] if focus.note else []


def _map(record: Record, focus: Focus, width: int) -> list["Text"]:
    """Return the map of the focus's first head, with tokens as row labels and numbers as column labels."""
    from rich.text import Text

    look = focus.looks[0]
    layer = record.layers[look.layer]
    queries, keys, cross = _words(record, focus)
    columns = map_columns(layer.keys, layer.queries, width)
    seen = head_map(layer, look.head, focus.batch_index, rows=MAX_ROWS, columns=columns)
    title = Text(no_wrap=True)
    title.append(f"{MARKS[0]} {head_name(record, look.layer, look.head)}", LOOK_STYLES[0])
    title.append(": rows look at columns, each cell is one weight" if seen.exact else f": {seen.caption}")
    rows = draw_map(seen, queries, focus.queries[focus.word].pieces, width=width, style=LOOK_STYLES[0].split()[-1])
    named = _wrapped("  columns: " + " ".join(f"{i} {token.text}" for i, token in enumerate(keys, start=1)), width)
    return [title, *rows, *(named if cross and seen.exact else [])]


def _wrapped(text: str, width: int) -> list["Text"]:
    from rich.console import Console
    from rich.text import Text

    lines = list(Text(text, overflow="fold").wrap(Console(width=width, color_system=None), width))
    for line in lines:
        line.rstrip()
    return lines
