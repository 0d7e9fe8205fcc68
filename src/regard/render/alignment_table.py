"""An alignment for a terminal: for each word of the target, the source words with the largest weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.capture.records import Record
from regard.errors import InputError, MissingExtraError
from regard.render.heatmap_text import share_bar
from regard.render.labels import visible
from regard.render.word_weights import Heads, Rows, align, chosen_heads

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = ["AlignmentTable", "alignment_table"]

_MOST, _BAR, _NARROWEST = 3, 10, 40


@dataclass(frozen=True, eq=False)
class AlignmentTable:
    """The rich renderable of `alignment_table`."""

    record: Record
    heads: Heads
    rows: Rows
    width: int

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        yield from self._lines(max(_NARROWEST, min(self.width, options.max_width)))

    def _lines(self, width: int) -> Iterator["Text"]:
        from rich.cells import cell_len, set_cell_size
        from rich.text import Text

        chosen = chosen_heads(self.record, self.heads)
        found = align(self.record, [(self.record.layers[at], head) for at, head in chosen], rows=self.rows)
        wide = min(16, max(cell_len(visible(word.text)) for word in found.target))
        for word, weights in zip(found.target, found.weights, strict=True):
            if word.special and word.text == "?" and self.rows == "written" and word is found.target[-1]:
                continue  # the prediction from the last input token is unknown
            order = weights.argsort()[::-1][:_MOST]
            text = Text(no_wrap=True)
            text.append(set_cell_size(visible(word.text), wide), "dim" if word.special else "bold")
            text.append("  ")
            text.append(share_bar(float(weights[order[0]]), _BAR).ljust(_BAR), "cyan")
            said = [f"{weights[at]:.2f} {visible(found.source[at].text)}" for at in order]
            text.append("  " + "   ".join(said))
            text.truncate(width, overflow="ellipsis")
            yield text


def alignment_table(
    record: Record, heads: Heads = "mean", *, rows: Rows = "written", width: int = 80
) -> AlignmentTable:
    """Draw for each word of the target the three source words with the largest weights.

    Args:
        record: What was seen of an encoder–decoder.
        heads, rows: As in `alignment_figure`.
        width: The width of a line in terminal cells.

    Raises:
        InputError: The head does not exist, or the width is too small.
        MissingExtraError: rich is not installed.
    """
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    if width < _NARROWEST:
        raise InputError(f"`width` must be at least {_NARROWEST} cells, got {width}")
    chosen_heads(record, heads)
    return AlignmentTable(record, heads, rows, width)
