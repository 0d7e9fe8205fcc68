"""Learning rates over a run, as factors of the highest one: pure functions of the step, so that resuming needs nothing.

Steps count from 1; `total` is the last one where it is known.
"""

import math
from dataclasses import dataclass

from regard.errors import InputError

__all__ = ["Constant", "Cosine", "Noam", "Schedule", "Stable"]


@dataclass(frozen=True, kw_only=True)
class _Warmed:
    """What all schedules share: a linear rise over the first steps."""

    warmup: int = 1000

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise InputError(f"`warmup` must be at least 0 steps, got {self.warmup}")

    def rise(self, step: int) -> float:
        return min(1.0, step / self.warmup) if self.warmup else 1.0


@dataclass(frozen=True, kw_only=True)
class Constant(_Warmed):
    """The highest rate, once it is reached.

    >>> [Constant(warmup=4).factor(step) for step in (1, 4, 100)]
    [0.25, 1.0, 1.0]
    """

    needs_end = False

    def factor(self, step: int, total: int | None = None) -> float:
        """The share of the highest rate at a step, counted from 1; `total` is the last one."""
        return self.rise(step)


@dataclass(frozen=True, kw_only=True)
class Noam(_Warmed):
    """√(warmup / step) after a linear rise (Vaswani et al. 2017, arXiv:1706.03762, section 5.3).

    The paper's rate is width^−½ · min(step^−½, step · warmup^−1.5), whose highest value is (width · warmup)^−½.

    >>> [Noam(warmup=4).factor(step) for step in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    """

    needs_end = False

    def factor(self, step: int, total: int | None = None) -> float:
        """The share of the highest rate at a step, counted from 1; `total` is the last one."""
        return min(self.rise(step), math.sqrt(max(self.warmup, 1) / step))


@dataclass(frozen=True, kw_only=True)
class Cosine(_Warmed):
    """Half a cosine from the highest rate to `floor` of it (Loshchilov & Hutter 2017, arXiv:1608.03983).

    >>> [round(Cosine(warmup=0).factor(step, 8), 2) for step in (4, 8)]
    [0.5, 0.0]
    """

    floor: float = 0.0
    needs_end = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1:
            raise InputError(f"`floor` is a share of the highest rate, from 0 to 1, got {self.floor}")

    def factor(self, step: int, total: int | None = None) -> float:
        """The share of the highest rate at a step, counted from 1; `total` is the last one."""
        assert total is not None
        if step <= self.warmup:
            return self.rise(step)
        gone = min(1.0, (step - self.warmup) / max(1, total - self.warmup))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * gone)) / 2


@dataclass(frozen=True, kw_only=True)
class Stable(_Warmed):
    """Warm-up, stable, decay: the highest rate until the last `decay` of all steps, then linearly to 0.

    Hu et al. (2024, arXiv:2404.06395); linear as in Hägele et al. (2024, arXiv:2405.18392).

    >>> [Stable(warmup=0, decay=0.5).factor(step, 8) for step in (4, 6, 8)]
    [1.0, 0.5, 0.0]
    """

    decay: float = 0.2
    needs_end = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay <= 1:
            raise InputError(f"`decay` is the share of all steps in which the rate falls, in (0, 1], got {self.decay}")

    def factor(self, step: int, total: int | None = None) -> float:
        """The share of the highest rate at a step, counted from 1; `total` is the last one."""
        assert total is not None
        left = max(0, total - step) / (self.decay * total)
        return min(self.rise(step), left)


Schedule = Noam | Cosine | Stable | Constant
