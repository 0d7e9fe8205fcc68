"""A comparison as a row: sides, which is divided by which, and how long to look."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from regard.bench.rows import Effort, Outcome, Row, Target
from regard.bench.timing import Call, Times, in_turn

__all__ = ["compare", "compare_all"]


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
    asked = Row(case, at, what, target=target, size=size)
    if not effort.wants(asked):
        return asked
    effort.say(f"{case}, {at}")

    def known(times: Times) -> bool:
        told = target is not None and target.outcome(times.ratio(*over)) is not Outcome.UNSURE
        return told and len(times.seconds[over[0]]) in _ASKED

    times = in_turn(sides, seconds=effort.seconds, known=known)
    return replace(asked, ratio=times.ratio(*over), seconds=tuple((name, times.median(name)) for name in sides))


def compare_all(
    effort: Effort,
    case: str,
    at: str,
    pairs: Mapping[str, tuple[str, str]],
    sides: Mapping[str, Call],
    *,
    target: Target | None = None,
) -> Iterator[Row]:
    """Time the sides in turn, and give a row for each pair of them: `what` is said, and which is divided by which."""
    asked = {Row(case, at, what, target=target): over for what, over in pairs.items()}
    if any(effort.wants(row) for row in asked):
        effort.say(f"{case}, {at}")
        times = in_turn(sides, seconds=effort.seconds)
        for row, over in asked.items():
            yield replace(row, ratio=times.ratio(*over), seconds=tuple((name, times.median(name)) for name in over))


# Rounds after which a verdict may end the measurement. Asked after each, chance alone would give one a quarter of the
# time where there is none; asked four times, it seldom does.
_ASKED = (15, 30, 60, 120)
