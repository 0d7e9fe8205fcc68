"""Sentences on one head over two texts, for the terminal, figures and pages."""

from collections.abc import Sequence

from regard.capture.head_flips import CLEAR, Flip
from regard.capture.minimal_pair import MinimalPair, Moved
from regard.render.head_change import HeadChange
from regard.render.head_scores import head_number, ranked
from regard.render.labels import head_name, source_name, visible

__all__ = ["CAUTION", "change_sentence", "flip_sentence", "flip_text", "head_sentence", "moved_rows"]

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
