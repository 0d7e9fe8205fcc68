"""One head over two texts: sentences for figures and pages, and the picture for a terminal.

The picture has both sentences with arcs, the head's row side by side, and the heads that flip.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.errors import InputError, MissingExtraError
from regard.heads.change_loss_and_pairs import HeadChange
from regard.heads.scores import head_number, ranked
from regard.record.minimal_pair import CLEAR, Flip, MinimalPair, Moved
from regard.render.arcs import LOOK_STYLES, MARKS
from regard.render.head_table_text import table_lines
from regard.render.labels import check_focus, head_name, source_name, visible
from regard.render.line_breaking import fit
from regard.render.terminal import sentence_lines, share_bar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

__all__ = [
    "CAUTION",
    "NARROWEST",
    "PairPicture",
    "change_sentence",
    "flip_sentence",
    "flip_text",
    "head_sentence",
    "moved_rows",
    "pair_picture",
]

CAUTION = "A weight says where a head looks. It does not show that the model has understood the sentence."
_ROWS = 10  # maximum number of words of the head's row listed
_LEAST = 0.005  # smallest weight shown as 0.01
_STRONGEST = 3


def head_sentence(pair: MinimalPair) -> str:
    """Return the head's weights in both texts, whether it flips, and whether other words attend in the same way."""
    source, words = source_name(pair.highlights[0]), [visible(word) for word in pair.words]
    before, after = ([look.weight for look in focus.looks] for focus in pair.highlights)
    parts = [f"{word} {one:.2f} and {other:.2f}" for word, one, other in zip(words, before, after, strict=True)]
    name = head_name(pair.records[0], *pair.head)
    more = [words[0] if one > other else words[1] for one, other in (before, after)]
    verdict = f"it weighs {more[0]} more in both" if more[0] == more[1] else f"it turns from {more[0]} to {more[1]}"
    others = " and ".join(f"{weight:.2f}" for weight in pair.elsewhere)
    return (
        f"From {source}, {name} gives, in the first text and in the second, {', '.join(parts)}: {verdict}. The other "
        f"words give {words[0]} {others} on average."
    )


def flip_sentence(pair: MinimalPair) -> str:
    """Return how many heads prefer which of the two words, and how many flip."""
    flips, (one, other) = pair.flips, map(visible, pair.words)
    source = source_name(pair.highlights[0])
    if pair.is_untouched:
        return f"Nothing differs at {source}: the model reads from left to right, and so far the texts are the same."
    count = len(flips.flips)
    return (
        f"Of the {flips.heads} heads, {flips.counted} give {one} and {other} together at least {CLEAR:.2f} from "
        f"{source} in each text: {flips.prefer(0)} weigh {one} more in both, {flips.prefer(1)} weigh {other} more in "
        f"both, and {count} {'flips' if count == 1 else 'flip'}{':' if count else '.'}"
    )


def flip_text(flip: Flip, words: Sequence[str]) -> str:
    """Return the description of one head that flips."""
    sides = [
        ", ".join(f"{visible(word)} {weight:.2f}" for word, weight in zip(words, side, strict=True))
        for side in (flip.before, flip.after)
    ]
    return f"{head_number(flip.layer, flip.head)}: {sides[0]} → {sides[1]}"


def change_sentence(change: HeadChange) -> str:
    """Return the heads that have changed most over all rows, if rows are comparable."""
    if not change.by_rows:
        return ""
    heads = ", ".join(
        f"{head_number(layer, head)} ({value:.2f})" for layer, head, value in ranked(change.change, _STRONGEST)
    )
    return f"Over all rows these heads have changed most: {heads}; 0 is the same, 1 no key in common (regard compare)."


def moved_rows(pair: MinimalPair) -> tuple[Moved, ...]:
    """Return the words whose weights are listed: the compared ones, the replaced ones, and those with the largest
    changes.
    """
    named = [one for one in pair.moved if one.compared is not None or one.before_word != one.after_word]
    rest = [one for one in pair.moved if one not in named and max(one.before, one.after) >= _LEAST]
    rest.sort(key=lambda one: -abs(one.change))
    shown = {id(one) for one in [*named, *rest][: max(_ROWS, len(named))]}
    return tuple(one for one in pair.moved if id(one) in shown)


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
