"""Tables of heads for a terminal: the heads of each rule, a grid of all heads, and the ranks by one score."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regard.errors import InputError, MissingExtraError
from regard.heads.scores import MEASURES, RESTS, RULES, HeadScores, head_number
from regard.render.labels import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = ["HeadTable", "head_table", "number", "table_lines"]

_NARROWEST = 80
_EACH = 4  # default number of heads listed per test
_NONE = "·"
_CELL = 2
_SLIGHT = 0.1
_CAVEAT = (
    "A weight alone is not an explanation (Jain & Wallace 2019, arXiv:1902.10186; Wiegreffe & Pinter 2019, "
    "arXiv:1908.04626): --ablate shows what the model loses without a head."
)


@dataclass(frozen=True, eq=False)
class HeadTable:
    """The rich renderable of `head_table`."""

    scores: HeadScores
    sort: str | None
    top: int | None
    width: int

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        width = max(_NARROWEST, min(self.width, options.max_width))
        scores = self.scores
        parts = [
            table_lines(_headline(scores), width),
            list(_tests(scores, self.top or _EACH, width)),
            list(_grid(scores, width)),
        ]
        if self.sort is not None or self.top is not None:
            parts.append(list(_ranks(scores, self.sort or "best", self.top or 10)))
        parts.append(table_lines(_CAVEAT, width, "dim"))
        for at, lines in enumerate(parts):
            if at:
                yield Text("")
            yield from lines


def head_table(scores: HeadScores, *, sort: str | None = None, top: int | None = None, width: int = 80) -> HeadTable:
    """Draw the scores of all heads for a terminal.

    Args:
        scores: The scores.
        sort: A score to rank heads by, in a further table with all numbers.
        top: Number of heads listed for each test, and in the ranks.
        width: The width of a line in terminal cells.
    """
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    if width < _NARROWEST:
        raise InputError(f"`width` must be at least {_NARROWEST} cells, got {width}")
    if top is not None and top < 1:
        raise InputError(f"`top` must be at least 1, got {top}")
    if sort is not None:
        scores.top(sort, 1)  # raises for an unknown name
    return HeadTable(scores, sort, top, width)


def table_lines(text: str, width: int, style: str = "") -> list["Text"]:
    """Return a sentence broken into lines."""
    from rich.console import Console
    from rich.text import Text

    lines = list(Text(text, style, overflow="fold").wrap(Console(width=width, color_system=None), width))
    for line in lines:
        line.rstrip()
    return lines


def number(value: float, width: int = 4) -> str:
    """Format a number to a given width, "–" for none.

    >>> number(0.984), number(float("nan")), number(37.52), number(101.3)
    ('0.98', '   –', '37.5', ' 101')
    """
    if not math.isfinite(value):
        return "–".rjust(width)
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}".rjust(width)


def _headline(scores: HeadScores) -> str:
    layers, heads = scores.shape
    count = int(scores.there.sum())
    read = f"{scores.tokens} tokens of text" + (f", and {scores.probe}" if scores.probe else "")
    return f"{visible(scores.model)}: {layers} layers × {heads} = {count} heads, on {read}"


def _tests(scores: HeadScores, each: int, width: int) -> Iterator["Text"]:
    """Yield a line for each test: its number of heads and the strongest of them, as layer.head and score."""
    from rich.text import Text

    counts = scores.counts()
    yield Text(f"  {'what heads look at':<21}{'heads':>5}   strongest, as layer.head and share of weight", "dim")
    for name in sorted(scores.rules, key=lambda one: -counts[one]):
        text = Text(f"{RULES[name].letter} ", "bold", no_wrap=True)
        text.append(f"{RULES[name].label:<21}{counts[name]:>5}   ", "")
        text.append(_strongest(scores, name, each, width - 31), "")
        text.rstrip()
        yield text
    yield Text(f"{_NONE} {'none of these':<21}{counts['none']:>5}   no rule takes more than half of the weight")
    if "sink" in scores.scores:
        rate = f"{scores.sink_rate:.0%} of heads give the first position over 0.3"
        yield Text(f"  {'sink rate':<21}{'':>5}   {rate}")
    for name in (one for one in MEASURES if one in scores.scores):
        values = scores.scores[name][scores.there]
        middle = f"median {number(float(np.nanmedian(values))).strip()}; most: "
        yield Text(
            f"  {MEASURES[name].label:<21}{'':>5}   {middle}"
            + _strongest(scores, name, each, width - 31 - len(middle))
        )  # fmt: skip


def _strongest(scores: HeadScores, name: str, each: int, room: int) -> str:
    found = [f"{head_number(layer, head)} {number(value).strip()}" for layer, head, value in scores.top(name, each)]
    if not found:
        return {"next": "–  a causal model cannot see it", "special_tokens": "–  the text has none"}.get(name, "–")
    if name == "induction" and not scores.causal and (most := scores.top(name, 1)[0][2]) < _SLIGHT:
        return f"–  it reads both ways, so none ({number(most)} at most)"
    while len("   ".join(found)) > room and len(found) > 1:
        found.pop()
    return "   ".join(found)


def _grid(scores: HeadScores, width: int) -> Iterator["Text"]:
    """Yield a grid with layers as rows and heads as columns, with the letter of each head's rule."""
    from rich.text import Text

    layers, heads = scores.shape
    left = len(str(layers - 1)) + 9
    cell = _CELL if left + heads * _CELL <= width else 1
    step = next(one for one in (1, 2, 5, 10, 20, 50) if one * cell > len(str(heads - 1)) or one == 50)
    marks = "".join(str(head).ljust(step * cell) for head in range(0, heads, step))
    yield Text(f"{'head'.rjust(left - 1)} {marks[: width - left]}".rstrip(), "dim")
    for layer in range(layers):
        row = Text(f"  layer {layer:>{left - 9}} ", "dim", no_wrap=True)
        for head in range(heads):
            rule = scores.rule(layer, head)
            letter = " " if not scores.there[layer, head] else _NONE if rule == "none" else RULES[rule].letter
            row.append(letter.ljust(cell), "" if rule in ("none", *RESTS) else "bold cyan")
        row.rstrip()
        yield row


def _ranks(scores: HeadScores, sort: str, top: int) -> Iterator["Text"]:
    """Yield the heads sorted by one score, with all their scores."""
    from rich.text import Text

    names = [*scores.rules, *(one for one in MEASURES if one in scores.scores)]
    tests = {**RULES, **MEASURES}
    title = "their rule's share, or the largest" if sort == "best" else tests[sort].label
    yield Text(f"Heads by {title}:")
    cell = 6 if 12 + 6 * len(names) <= 80 else 5  # a number has four places
    heads = "".join(tests[name].short.rjust(cell) for name in names)
    yield Text(f"  {'head':<7}{heads}", "dim")
    for layer, head, _ in scores.top(sort, top):
        row = Text(f"  {head_number(layer, head):<7}", no_wrap=True)
        for name in names:
            row.append(number(float(scores.scores[name][layer, head])).rjust(cell), "bold" if name == sort else "")
        row.append(f"  {RULES[rule].letter if (rule := scores.rule(layer, head)) != 'none' else _NONE}")
        yield row
