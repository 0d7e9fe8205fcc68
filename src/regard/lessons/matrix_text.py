"""Numbers, vectors and matrices as text: aligned, with three significant digits, shortened to the available width.

Widths are counted in terminal cells, so that Chinese tokens, with two cells per character, do not shift columns.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from regard.lessons.steps import Floats

__all__ = ["Block", "cell_len", "clip", "factor", "flow", "matrix", "number", "pad", "pick", "subscript", "vector"]

Block = list[str]  # the lines of a matrix, with its title first

WHOLE = 8  # maximum number of rows, columns or terms shown in full
SHORTENED = 6  # if there are more, this number is shown: the first ones and the last


def number(value: float) -> str:
    """Format a number with three significant digits, exactly if it has fewer, and with a power of ten if zeros would
    hide digits.

    >>> [number(x) for x in (2.0, -0.0, 0.5, 0.50004, 2.8284, 16.92, 0.02868, 1234.5, 9.9996, 2.5e-7)]
    ['2', '0', '0.5', '0.500', '2.83', '16.9', '0.0287', '1234', '10.0', '2.50e-7']
    """
    nearest = round(value)
    if abs(value) < 1e6 and abs(value - nearest) <= 1e-12 * abs(value):
        return str(nearest)
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    power = int(exponent)
    if -4 < power < 3 and value == float(f"{value:.3g}"):
        return f"{value:.3g}"
    if -4 < power < 6:
        return f"{value:.{max(0, 2 - power)}f}"
    return f"{mantissa}e{power}"


def factor(value: float) -> str:
    """Format a number in a product or a difference, with parentheses around negative ones."""
    return f"({number(value)})" if number(value).startswith("-") else number(value)


def subscript(*indices: int) -> str:
    """Return indices counted from 0 as subscripts counted from 1: ₁₂ for (0, 1), and ₁,₁₂ if digits would be
    ambiguous.
    """
    digits = [str(index + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")) for index in indices]
    return "".join(digits) if all(len(text) == 1 for text in digits) else ",".join(digits)


def cell_len(text: str) -> int:
    """Return the width of a text in terminal cells; rich is the extra `cli`, which a lesson's page does without."""
    from rich import cells

    return cells.cell_len(text)


def clip(text: str, cells: int) -> str:
    """Return a token as a label of at most `cells` cells, without invisible characters."""
    from rich.cells import set_cell_size

    visible = "".join(sign if sign.isprintable() else "␣" for sign in text) or "␣"
    visible = "␣" if visible.isspace() else visible
    return visible if cell_len(visible) <= cells else set_cell_size(visible, cells - 1).rstrip() + "…"


def pad(text: str, cells: int, *, right: bool = False) -> str:
    """Return `text` padded with spaces to `cells` cells, on its right or on its left."""
    room = " " * max(0, cells - cell_len(text))
    return room + text if right else text + room


def pick(count: int, shown: int) -> list[int | None]:
    """Return the indices shown: all, or the first ones, None for the omitted ones, and the last.

    >>> pick(3, 8), pick(64, 4)
    ([0, 1, 2], [0, 1, 2, None, 63])
    """
    return list(range(count)) if count <= shown else [*range(shown - 1), None, count - 1]


def choices(count: int) -> Iterator[int]:
    """Yield numbers of items to show, the largest first, to find one that fits a line."""
    if count <= WHOLE:
        yield count
    yield from range(min(SHORTENED, count - 1), 1, -1)


def vector(values: Floats, room: int, note: str) -> str:
    """Return one vector as a line: [2 0], or [0.1 0.2 … 0.9] followed by `note` (" ({count} numbers, {shown}
    shown)").
    """
    line = ""
    for shown in choices(len(values)):
        texts = ["…" if at is None else number(values[at]) for at in pick(len(values), shown)]
        line = f"[{' '.join(texts)}]"
        if shown < len(values):
            line += note.format(count=len(values), shown=shown)
        if cell_len(line) <= room:
            break
    return line


def matrix(
    title: str,
    values: Floats,
    room: int,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    visible: npt.NDArray[np.bool_] | None = None,
    of: tuple[int, int] | None = None,
    note: str = " ({count}, {shown} shown)",
) -> Block:
    """Return a matrix with its title and shape, aligned at the decimal points; hidden entries are —.

    `rows` and `columns` are its labels, and `of` is the shape of the whole matrix if `values` is a part of it; `note`
    is the text that then gives the number of entries shown.
    """
    height, width = values.shape
    tall = next(choices(height))
    full = of or values.shape
    body: Block = []
    shape = full
    for shown in choices(width):
        down, shape = pick(height, tall), (tall, shown)
        body = _labelled(_body(values, visible, down, pick(width, shown), columns), down, rows)
        if max(map(cell_len, body)) <= room:
            break
    sizes = [f"{high} × {wide}" for high, wide in (full, shape)]
    size = f" ({sizes[0]})" if shape == full else note.format(count=sizes[0], shown=sizes[1])
    return [title + size, *body]


def _labelled(body: Sequence[str], down: Sequence[int | None], rows: Sequence[str]) -> list[str]:
    """Return the lines of the body with row labels on the left; the line of column labels has none."""
    if not rows:
        return [line.rstrip() for line in body]
    labels = [""] * (len(body) - len(down)) + ["" if at is None else clip(rows[at], 10) for at in down]
    left = max(map(cell_len, labels))
    return [f"{pad(label, left)} {line}".rstrip() for label, line in zip(labels, body, strict=True)]


def _body(
    values: Floats,
    visible: npt.NDArray[np.bool_] | None,
    down: Sequence[int | None],
    across: Sequence[int | None],
    columns: Sequence[str],
) -> list[str]:
    """Return the rows in brackets, with the column labels above them, if there are any."""
    strips = []
    for column in across:
        cells = _aligned([_entry(values, visible, row, column) for row in down])
        if columns:
            head = "" if column is None else clip(columns[column], 6)
            wide = max(cell_len(head), *map(cell_len, cells))
            cells = [pad(text, wide, right=True) for text in (head, *cells)]
        strips.append(cells)
    lines = ["  ".join(cells) for cells in zip(*strips, strict=True)]
    start = 1 if columns else 0
    return [f" {line} " if index < start else f"[{line}]" for index, line in enumerate(lines)]


def _entry(values: Floats, visible: npt.NDArray[np.bool_] | None, row: int | None, column: int | None) -> str:
    if row is None:
        return "⋮"
    if column is None:
        return "…"
    return number(values[row, column]) if visible is None or visible[row, column] else "—"


def _aligned(cells: Sequence[str]) -> list[str]:
    """Return numbers aligned at the decimal point."""
    split = [text.partition(".") for text in cells]
    before = max(len(whole) for whole, _, _ in split)
    after = max(len(point + rest) for _, point, rest in split)
    return [whole.rjust(before) + (point + rest).ljust(after) for whole, point, rest in split]


def flow(blocks: Sequence[Block], width: int) -> Iterator[str]:
    """Yield blocks side by side as far as they fit, then below, with an empty line between the rows."""
    waiting = list(blocks)
    while waiting:
        line = [waiting.pop(0)]
        used = _width(line[0])
        while waiting and used + 4 + _width(waiting[0]) <= width:
            used += 4 + _width(waiting[0])
            line.append(waiting.pop(0))
        height = max(map(len, line))
        for at in range(height):
            parts = [pad(block[at] if at < len(block) else "", _width(block)) for block in line]
            yield "    ".join(parts).rstrip()
        if waiting:
            yield ""


def _width(block: Block) -> int:
    return max(map(cell_len, block))
