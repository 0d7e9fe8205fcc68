"""A comparison as a row: sides, which is divided by which, and how long to look."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from regard.bench.rows import Effort, Outcome, Row, Target
from regard.bench.timing import Call, Times, in_turn

__all__ = ["Pair", "compare", "compare_all"]


@dataclass(frozen=True)
class Pair:
    """Two sides, the first divided by the second, and what was to be reached."""

    over: tuple[str, str]
    target: Target | None = None


def compare(
    effort: Effort,
    case: str,
    at: str,
    what: str,
    sides: Mapping[str, Call],
    *,
    over: tuple[str, str],
    target: Target | None = None,
    size: int | None = None,
) -> Row:
    """Time the sides in turn until the ratio of two of them is told from its target, or time is up."""
    (row,) = compare_all(effort, case, at, {what: Pair(over, target)}, sides, size=size)
    return row


def compare_all(
    effort: Effort,
    case: str,
    at: str,
    pairs: Mapping[str, Pair],
    sides: Mapping[str, Call],
    *,
    size: int | None = None,
) -> Iterator[Row]:
    """Time the sides in turn until each pair is told from its target, or time is up; a row for each pair.

    Args:
        effort: How long to look.
        case: What the rows are called.
        at: At what size.
        pairs: What is said, which side is divided by which, and what was to be reached.
        sides: The calls.
        size: What a figure is drawn over.
    """
    asked = {Row(case, at, what, target=pair.target, size=size): pair for what, pair in pairs.items()}
    if not any(effort.wants(row) for row in asked):
        yield from asked
        return
    effort.progress(f"{case}, {at}")

    def known(times: Times) -> bool:
        rounds = min(len(one) for one in times.seconds.values())
        return rounds in _ASKED and all(
            pair.target is not None and pair.target.outcome(times.ratio(*pair.over)) is not Outcome.UNSURE
            for pair in pairs.values()
        )

    times = in_turn(sides, seconds=effort.seconds, known=known)
    for row, pair in asked.items():
        yield replace(row, ratio=times.ratio(*pair.over), seconds=tuple((name, times.median(name)) for name in sides))


# Rounds after which a verdict may end the measurement. Asked after each, chance alone would give one a quarter of the
# time where there is none; asked four times, it seldom does.
_ASKED = (15, 30, 60, 120)
