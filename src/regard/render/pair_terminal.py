"""One head over two texts in a terminal: both sentences with arcs, the head's row side by side, the heads that flip."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.capture.minimal_pair import MinimalPair, Moved
from regard.errors import InputError, MissingExtraError
from regard.render.arcs import LOOK_STYLES, MARKS
from regard.render.head_change import HeadChange
from regard.render.head_table_text import table_lines
from regard.render.heatmap_text import share_bar
from regard.render.labels import check_focus, head_name, source_name, visible
from regard.render.line_breaking import fit
from regard.render.pair_sentences import (
    CAUTION,
    change_sentence,
    flip_sentence,
    flip_text,
    head_sentence,
    moved_rows,
)
from regard.render.terminal import sentence_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = ["NARROWEST", "PairPicture", "pair_picture"]

NARROWEST = 60
_BAR = 12
_WORD = 20
_FLIPS = 8  # maximum number of flips listed


@dataclass(frozen=True, eq=False)
class PairPicture:
    """The rich renderable of `pair_picture`."""

    pair: MinimalPair
    change: HeadChange
    width: int

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        width = max(NARROWEST, min(self.width, options.max_width))
        pair = self.pair
        changed = change_sentence(self.change)
        parts = [
            *(sentence_lines(*text, width) for text in zip(pair.records, pair.highlights, strict=True)),
            _row_table(pair),
            list(table_lines(head_sentence(pair), width)),
            [*table_lines(flip_sentence(pair), width), *_flips(pair, width)],
            list(table_lines(changed, width)) if changed else [],
            list(table_lines(CAUTION, width)),
        ]
        for number, lines in enumerate(part for part in parts if part):
            if number:
                yield Text("")
            yield from lines


def pair_picture(pair: MinimalPair, change: HeadChange, *, width: int = 80) -> PairPicture:
    """Draw one head over two texts for a terminal, at most `width` cells wide, readable without colour."""
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    if width < NARROWEST:
        raise InputError(f"`width` must be at least {NARROWEST} cells for two texts, got {width}")
    for record, focus in zip(pair.records, pair.highlights, strict=True):
        check_focus(record, focus)
    return PairPicture(pair, change, width)


def _row_table(pair: MinimalPair) -> list["Text"]:
    """Return the head's weights from the query word, in both texts side by side."""
    from rich.text import Text

    room = 5 + _BAR + 2
    name, source = head_name(pair.records[0], *pair.head), fit(source_name(pair.highlights[0]), 24)
    title = Text(f"{name} from {source}, in the first text and in the second", "bold", no_wrap=True)
    header = Text(f"  {'':<{_WORD + 2}}{'text 1':<{room}}{'text 2':<{room}}change", "dim", no_wrap=True)
    return [title, header, *(_moved_line(one) for one in moved_rows(pair))]


def _moved_line(one: Moved) -> "Text":
    from rich.cells import set_cell_size
    from rich.text import Text

    style = "" if one.compared is None else LOOK_STYLES[one.compared]
    mark = " " if one.compared is None else MARKS[one.compared]
    word = visible(one.before_word)
    if one.before_word != one.after_word:
        word = f"{fit(word, _WORD // 2 - 2)} / {fit(visible(one.after_word), _WORD // 2 - 2)}"
    line = Text(no_wrap=True)
    line.append(f"  {mark} {set_cell_size(fit(word, _WORD - 1), _WORD)}", style)
    for weight in (one.before, one.after):
        line.append(f"{weight:.2f} ")
        line.append(share_bar(weight, _BAR), style)
        line.append("▏ ", "dim")
    line.append(f"{round(one.change, 2) + 0.0:+.2f}")  # + 0.0 turns −0.0 into 0.0
    return line


def _flips(pair: MinimalPair, width: int) -> list["Text"]:
    """Return the heads that flip, those with the largest lead first."""
    from rich.text import Text

    found = pair.flips.flips if not pair.is_untouched else ()
    lines = [Text(fit(f"  {flip_text(flip, pair.words)}", width), no_wrap=True) for flip in found[:_FLIPS]]
    return [*lines, Text(f"  … and {len(found) - _FLIPS} weaker ones")] if len(found) > _FLIPS else lines
