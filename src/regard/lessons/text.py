"""One attention output computed in the terminal: one token in scalars, then all tokens in matrices.

Attention(Q, K, V) = softmax(Q Kᵀ / √d) V        (Vaswani et al. 2017, equation 1)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regard.lessons.heads import WorkedHeads
from regard.lessons.matrix_text import Block, clip, flow, matrix, pick
from regard.lessons.steps import Floats, Worked
from regard.lessons.text_scalars import FEW, Scalars, Section, scaling
from regard.lessons.text_words import Language, Wording, wording

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = ["Steps", "matrix_sections", "pieces_note"]


def matrix_sections(
    worked: Worked, rows: Sequence[int], keys: Sequence[int], say: Wording, room: int
) -> Iterator[Section]:
    """Yield the steps in matrices, for the chosen queries and keys: all of them, or one query with its
    strongest keys.
    """
    queries, tokens = [worked.query_tokens[row] for row in rows], [worked.tokens[key] for key in keys]

    def block(name: str, values: Floats, labels: Sequence[str] = (), at: Sequence[int] | None = None) -> Block:
        chosen = values if at is None else values[list(at)]
        return matrix(name, chosen, room, rows=labels, of=(values.shape[0], values.shape[1]), note=say.size)

    projected = worked.x is not None
    if worked.x is not None:
        projections = {"W_Q": worked.w_query, "W_K": worked.w_key, "W_V": worked.w_value}
        known = [block(name, matrix) for name, matrix in projections.items() if matrix is not None]
        yield say.given_matrices, list(flow([*_inputs(worked, block), *known], room))
    names = ("Q", "K", "V")
    if projected:
        names = ("Q = X W_Q", "K = X W_K", "V = X W_V")
    if worked.key_x is not None:
        names = ("Q = X_Q W_Q", "K = X_K W_K", "V = X_V W_V")
    vectors = [
        block(names[0], worked.queries, queries, rows),
        block(names[1], worked.keys, tokens, keys),
        *([block(names[2], worked.values, tokens, keys)] if worked.has_values else []),
    ]
    yield say.vectors, list(flow(vectors, room))
    yield (
        say.products,
        list(flow([_pairs(worked, stage, rows, keys, say, room) for stage in _stages(worked, say)], room)),
    )
    if worked.has_values:
        yield say.result, list(flow([block("Z = W V", worked.output, queries, rows)], room))


def joined_sections(joined: WorkedHeads, rows: Sequence[int], say: Wording, room: int) -> Iterator[Section]:
    """Yield what comes after the heads, for the chosen queries: the output of each, side by side, and times W_O."""
    names = [joined.heads[0].query_tokens[row] for row in rows]
    at = list(rows)

    def block(name: str, values: Floats) -> Block:
        return matrix(name, values[at], room, rows=names, of=(values.shape[0], values.shape[1]), note=say.size)

    count = len(joined.heads)
    if count > 1:
        outputs = [block(f"Z_{head}", worked.output) for head, worked in enumerate(joined.heads)]
        yield say.head_outputs.format(count=count), list(flow(outputs, room))
        title = " ".join("…" if head is None else f"Z_{head}" for head in pick(count, 4))
        yield say.joined, list(flow([block(f"Z = [{title}]", joined.joined)], room))
    if joined.w_output is not None and joined.result is not None:
        w_output = matrix("W_O", joined.w_output, room, note=say.size)
        yield say.projected, list(flow([w_output, block("Z W_O", joined.result)], room))


def _inputs(worked: Worked, block: Callable[..., Block]) -> list[Block]:
    """Return the inputs of queries, keys and values: one X, or three."""
    if worked.key_x is None:
        return [block("X", worked.x, worked.tokens)]
    return [
        block("X_Q", worked.x, worked.query_tokens),
        block("X_K", worked.key_x, worked.tokens),
        block("X_V", worked.value_x, worked.tokens),
    ]


def _stages(worked: Worked, say: Wording) -> Iterator[tuple[str, Floats]]:
    """Yield the matrices of pairs, with their titles, from the scores to the weights."""
    scaled = f"S {scaling(worked)}"
    plain = worked.softcap is None and worked.bias is None
    yield "S = Q Kᵀ", worked.scores
    yield scaled, worked.scaled
    if not plain:
        yield say.logits, worked.logits
    yield f"W = softmax({scaled if plain else 'L'})", worked.weights


def _pairs(
    worked: Worked, stage: tuple[str, Floats], rows: Sequence[int], keys: Sequence[int], say: Wording, room: int
) -> Block:
    title, values = stage
    at = np.ix_(rows, keys)
    return matrix(
        title,
        values[at],
        room,
        rows=[worked.query_tokens[row] for row in rows],
        columns=[worked.tokens[key] for key in keys],
        visible=worked.visible[at],
        of=(values.shape[0], values.shape[1]),
        note=say.size,
    )


INDENT = 3


@dataclass(frozen=True, eq=False)
class Steps:
    """The rich renderable of a `Worked`: the query `row` in scalars, then the matrices.

    No line is wider than the console. `model`, `layer` and `head` describe the source of the numbers, and `note` is a
    remark on the token. Of several heads `worked` is number `head`, and `joined` has all of them: what comes after them
    follows the matrices.
    """

    worked: Worked
    row: int = 0
    lang: Language = "en"
    model: str = ""
    layer: int | str = 0
    head: int = 0
    note: str = ""
    joined: WorkedHeads | None = None

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield the page line by line."""
        for line in self._page(max(options.max_width - INDENT, 20)):
            indent = " " * (len(line.plain) - len(line.plain.lstrip()))
            for part in line[len(indent) :].wrap(console, max(options.max_width - len(indent), 1)):
                part.rstrip()
                yield _line(indent).append_text(part)

    def _page(self, room: int) -> Iterator["Text"]:
        say, worked = wording(self.lang), self.worked
        scalars = Scalars(worked, self.row, say, room)
        where = say.head.format(model=self.model, layer=self.layer, head=self.head) if self.model else ""
        if self.joined is not None and len(self.joined.heads) > 1:
            where = say.one_head.format(head=self.head, count=len(self.joined.heads))
        yield _line(say.title + where, style="bold")
        yield _line("Attention(Q, K, V) = softmax(Q Kᵀ / √d) V", style="cyan")
        yield _line(say.paper, style="dim")
        token = clip(worked.query_tokens[self.row], 16)
        yield from _headline(say.scalars.format(token=token, number=scalars.position + 1))
        if self.note:
            yield _line(self.note)
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
        if self.joined is not None:
            if len(self.joined.heads) > 1:
                yield from _headline(say.heads)
            for heading, lines in joined_sections(self.joined, rows, say, room):
                yield from _section(heading, lines)
        yield _line("")
        yield _line(say.rounded, style="dim")


def pieces_note(word: str, count: int, language: Language) -> str:
    """Return the remark that a word is several tokens, of which the first is shown; nothing for a word of one token."""
    return wording(language).pieces.format(word=clip(word, 24), count=count) if count > 1 else ""


def _line(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(text, style=style)


def _headline(text: str) -> Iterator["Text"]:
    yield _line("")
    yield _line(text, style="bold")


def _section(heading: str, lines: Sequence[str]) -> Iterator["Text"]:
    yield _line("")
    yield _line(heading, style="bold cyan")
    yield from (_line(" " * INDENT + line if line else "") for line in lines)
