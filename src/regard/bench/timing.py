"""Calls timed side by side: in turn, on the wall's clock, until a ratio is known well enough or time is up."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Call", "Ratio", "Times", "in_turn"]

Call = Callable[[], object]

_LEAST = 5  # rounds, before anything is said
_SAMPLE = 2e-3  # seconds that a sample takes at least: shorter calls are repeated within it


@dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, and the interval in which the true median lies.

    The interval is ± 1.82 × interquartile range / √rounds, which holds the median of normally distributed ratios 95
    times in 100 (1.96 × its standard error, 1.2533 σ / √rounds, with σ = range / 1.349; McGill, Tukey & Larsen 1978,
    doi:10.1080/00031305.1978.10479236, take 1.57 to compare two medians). Few rounds hold it less often.
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
        half = 1.82 * (upper - lower) / math.sqrt(len(values))
        return cls(middle, middle - half, middle + half, len(values))


@dataclass(frozen=True)
class Times:
    """Seconds of each side, a number a round."""

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, side: str) -> float:
        """Seconds of one side."""
        return statistics.median(self.seconds[side])

    def ratio(self, above: str, below: str) -> Ratio:
        """How many times as long as `below` the side `above` takes, round by round."""
        return Ratio.of([a / b for a, b in zip(self.seconds[above], self.seconds[below], strict=True)])

    def difference(self, above: str, below: str) -> Ratio:
        """How many seconds longer `above` takes, round by round."""
        return Ratio.of([a - b for a, b in zip(self.seconds[above], self.seconds[below], strict=True)])


def in_turn(
    sides: Mapping[str, Call], *, seconds: float, most: int = 200, known: Callable[[Times], bool] = lambda _: False
) -> Times:
    """Time each call once a round, in an order that changes from round to round.

    What a call leaves in the caches is found by whoever is next: over `2 × sides` rounds one side comes after another
    as often as before it. Each is called once before, so that what is planned, compiled or cached is there. A call
    shorter than two milliseconds is repeated within a sample.

    Args:
        sides: The calls by name.
        seconds: When to stop, if `known` does not say so before; five rounds are made in any case.
        most: Rounds at most.
        known: Asked after each round from the fifth on; True ends the measurement.
    """
    inner = {name: _repeats(call) for name, call in sides.items()}
    found: dict[str, list[float]] = {name: [] for name in sides}
    names, end = list(sides), time.perf_counter() + seconds
    for at in range(most):
        for name in _order(names, at):
            call, many = sides[name], inner[name]
            begin = time.perf_counter()
            for _ in range(many):
                call()
            found[name].append((time.perf_counter() - begin) / many)
        if at + 1 < _LEAST:
            continue
        times = Times({name: tuple(one) for name, one in found.items()})
        if time.perf_counter() > end or known(times):
            break
    return Times({name: tuple(one) for name, one in found.items()})


def _order(names: Sequence[str], at: int) -> Sequence[str]:
    """The names turned by one more place every second round, and backwards in the other."""
    turn = at // 2 % len(names)
    turned = [*names[turn:], *names[:turn]]
    return turned[::-1] if at % 2 else turned


def _repeats(call: Call) -> int:
    """How often a call is made within a sample; the first calls, which warm up, tell."""
    call()
    begin = time.perf_counter()
    call()
    return max(1, math.ceil(_SAMPLE / max(time.perf_counter() - begin, 1e-7)))
