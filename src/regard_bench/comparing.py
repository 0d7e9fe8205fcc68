"""A comparison as a row: sides, their quotient, and how long to measure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from regard_bench.rows import Effort, Outcome, Row, Target
from regard_bench.shares import Work
from regard_bench.timing import Call, Times, in_turn

__all__ = ["Pair", "compare", "compare_all"]


@dataclass(frozen=True)
class Pair:
    """Two sides, the first divided by the second, and the target."""

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
    """Return a row: the sides timed in turn until the ratio of two of them is decided, or time is up."""
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
    work: Work | None = None,
) -> Iterator[Row]:
    """Yield a row for each pair of sides, timed in turn until each pair is decided, or time is up.

    Args:
        effort: How long to measure.
        case: Name of the rows.
        at: The size, in words.
        pairs: For each quotient, in words, its two sides and its target.
        sides: The calls.
        size: The number that a figure is drawn over.
        work: What the side "regard" has to do at least, if it is known.
    """
    wanted = {Row(case, at, what, target=pair.target, size=size): pair for what, pair in pairs.items()}
    if not any(effort.wants(row) for row in wanted):
        yield from wanted
        return
    effort.progress(f"{case}, {at}")

    def decided(times: Times) -> bool:
        rounds = min(len(one) for one in times.seconds.values())
        return rounds in _CHECKED and all(
            pair.target is not None and pair.target.outcome(times.ratio(*pair.over)) is not Outcome.UNSURE
            for pair in pairs.values()
        )

    times = in_turn(sides, max_seconds=effort.max_seconds, decided=decided)
    rate = None if work is None else times.rate("regard", work.amount)
    seconds = tuple((name, times.median(name)) for name in sides)
    for row, pair in wanted.items():
        yield replace(row, ratio=times.ratio(*pair.over), seconds=seconds, work=work, rate=rate)


# Rounds after which a verdict may end the measurement. Checked after each round, chance would give one a quarter of the
# time where there is none; checked four times, it seldom does.
_CHECKED = (15, 30, 60, 120)
