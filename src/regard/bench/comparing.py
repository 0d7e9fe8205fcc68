"""A comparison as a row: sides, which is divided by which, and how long to look."""

from collections.abc import Mapping

from regard.bench.rows import Effort, Outcome, Row, Target
from regard.bench.timing import Call, Times, in_turn

__all__ = ["compare"]


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
    effort.say(f"{case}, {at}")

    def known(times: Times) -> bool:
        told = target is not None and target.outcome(times.ratio(*over)) is not Outcome.UNSURE
        return told and len(times.seconds[over[0]]) >= _SURE

    times = in_turn(sides, seconds=effort.seconds, known=known)
    seconds = tuple((name, times.median(name)) for name in sides)
    return Row(case, at, what, times.ratio(*over), target, seconds=seconds, size=size)


_SURE = 15  # rounds before a verdict may end the measurement: five may agree by chance
