"""One attention output computed in the terminal: one token in scalars, then all tokens in matrices.

Attention(Q, K, V) = softmax(Q Kᵀ / √d) V        (Vaswani et al. 2017, equation 1)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from regard.capture.steps import Worked
from regard.render.matrix_text import clip
from regard.render.steps_matrices import matrix_sections
from regard.render.steps_scalars import FEW, Scalars
from regard.render.steps_text import Language, wording

__all__ = ["Steps"]

INDENT = 3


@dataclass(frozen=True, eq=False)
class Steps:
    """The rich renderable of a `Worked`: the query `row` in scalars, then the matrices.

    No line is wider than the console. `model`, `layer` and `head` describe the source of the numbers, and `note` is a
    remark on the token.
    """

    worked: Worked
    row: int = 0
    lang: Language = "en"
    model: str = ""
    layer: int | str = 0
    head: int = 0
    note: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page line by line."""
        for line in self._page(max(options.max_width - INDENT, 20)):
            indent = " " * (len(line.plain) - len(line.plain.lstrip()))
            for part in line[len(indent) :].wrap(console, max(options.max_width - len(indent), 1)):
                part.rstrip()
                yield Text(indent).append_text(part)

    def _page(self, room: int) -> Iterator[Text]:
        say, worked = wording(self.lang), self.worked
        scalars = Scalars(worked, self.row, say, room)
        where = say.head.format(model=self.model, layer=self.layer, head=self.head) if self.model else ""
        yield Text(say.title + where, style="bold")
        yield Text("Attention(Q, K, V) = softmax(Q Kᵀ / √d) V", style="cyan")
        yield Text(say.paper, style="dim")
        token = clip(worked.query_tokens[self.row], 16)
        yield from _headline(say.scalars.format(token=token, number=scalars.position + 1))
        if self.note:
            yield Text(self.note)
        for count, (heading, lines) in enumerate(scalars.sections(), start=1):
            yield from _section(f"{count}. {heading}", lines)

        everything = len(worked.keys) <= FEW and len(worked.queries) <= FEW
        rows = list(range(len(worked.queries))) if everything else [self.row]
        heading = say.matrices.format(count=len(rows)) if everything else say.matrices_row.format(token=token)
        if everything and len(rows) == 1:
            heading = say.matrices_one
        yield from _headline(heading)
        for heading, lines in matrix_sections(worked, rows, scalars.shown, say, room):
            yield from _section(heading, lines)
        yield Text("")
        yield Text(say.rounded, style="dim")


def _headline(text: str) -> Iterator[Text]:
    yield Text("")
    yield Text(text, style="bold")


def _section(heading: str, lines: Sequence[str]) -> Iterator[Text]:
    yield Text("")
    yield Text(heading, style="bold cyan")
    yield from (Text(" " * INDENT + line if line else "") for line in lines)
