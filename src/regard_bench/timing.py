"""Calls timed side by side: in turn, on the wall's clock, until a ratio is known well enough or time is up."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Call", "Ratio", "Times", "in_turn"]

Call = Callable[[], object]

_LEAST, _FEW = 5, 3  # rounds, before a result; of long calls
_LONG = 5.0  # seconds of a call from which on it is
_SAMPLE = 2e-3  # seconds that a sample takes at least: shorter calls are repeated within it


@dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, and a confidence interval of the median.

    The interval is ± 1.82 × interquartile range / √rounds, which holds the median of many normally distributed ratios
    95 times in 100 (1.96 × its standard error, 1.2533 σ / √rounds, with σ = range / 1.349; McGill, Tukey & Larsen 1978,
    doi:10.1080/00031305.1978.10479236, take 1.57 to compare two medians). Of few, the range itself is uncertain: with
    × (1 + 4.6 / rounds), found by simulation, it holds the median at least 90 times in 100 from three rounds on.
    """

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Ratio":
        """Of the ratios of single rounds.

        >>> Ratio.of([1.0, 1.0, 2.0, 1.0, 1.0]).median
        1.0
        """
        middle = statistics.median(values)
        if len(values) < 2:
            return cls(middle, -math.inf, math.inf, len(values))
        lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
        half = 1.82 * (1 + 4.6 / len(values)) * (upper - lower) / math.sqrt(len(values))
        return cls(middle, middle - half, middle + half, len(values))


@dataclass(frozen=True)
class Times:
    """Seconds of each side, a number a round."""

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, side: str) -> float:
        """Seconds of one side."""
        return statistics.median(self.seconds[side])

    def rate(self, side: str, amount: float) -> Ratio:
        """How much of an amount, which one call of a side does, it does per second, round by round."""
        return Ratio.of([amount / one for one in self.seconds[side]])

    def ratio(self, above: str, below: str) -> Ratio:
        """How many times as long as `below` the side `above` takes, round by round."""
        return Ratio.of([a / b for a, b in zip(self.seconds[above], self.seconds[below], strict=True)])

    def difference(self, above: str, below: str) -> Ratio:
        """How many seconds longer `above` takes, round by round."""
        return Ratio.of([a - b for a, b in zip(self.seconds[above], self.seconds[below], strict=True)])


def in_turn(
    sides: Mapping[str, Call],
    *,
    max_seconds: float,
    max_rounds: int = 200,
    decided: Callable[[Times], bool] = lambda _: False,
) -> Times:
    """Return the times of calls, each called once a round, in an order that changes from round to round.

    What a call leaves in the caches is found by whoever is next: over `2 × sides` rounds one side comes after another
    as often as before it. Each is called before, so that what is planned, compiled or cached is there. A call shorter
    than two milliseconds is repeated within a sample.

    Args:
        sides: The calls by name.
        max_seconds: When to stop, unless `decided` ends it before; there are at least five rounds, and three where a
            call takes more than five seconds.
        max_rounds: Largest number of rounds.
        decided: Called after each further round; True ends the measurement.
    """
    inner = {name: _repeats(call) for name, call in sides.items()}
    found: dict[str, list[float]] = {name: [] for name in sides}
    names, end = list(sides), time.perf_counter() + max_seconds
    for at in range(max_rounds):
        for name in _order(names, at):
            call, many = sides[name], inner[name]
            begin = time.perf_counter()
            for _ in range(many):
                call()
            found[name].append((time.perf_counter() - begin) / many)
        if at + 1 < (_FEW if max(one[0] for one in found.values()) > _LONG else _LEAST):
            continue
        times = Times({name: tuple(one) for name, one in found.items()})
        if time.perf_counter() > end or decided(times):
            break
    return Times({name: tuple(one) for name, one in found.items()})


def _order(names: Sequence[str], at: int) -> Sequence[str]:
    """The names turned by one more place every second round, and backwards in the other."""
    turn = at // 2 % len(names)
    turned = [*names[turn:], *names[:turn]]
    return turned[::-1] if at % 2 else turned


def _repeats(call: Call) -> int:
    """How often a call is made within a sample; found from the first calls, which warm up. A long one is made once."""
    if _seconds(call) > _LONG:
        return 1
    took = _seconds(call)
    if took < _SAMPLE:
        took = min(took, _seconds(call), _seconds(call))  # what came between is not taken for the call
    return max(1, math.ceil(_SAMPLE / max(took, 1e-7)))


def _seconds(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
