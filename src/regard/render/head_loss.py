"""What a model loses without some heads, beside what it loses without random ones."""

from dataclasses import dataclass

__all__ = ["Loss", "Lost"]


@dataclass(frozen=True)
class Loss:
    """One thing that is measured: `whole` with all heads, `without` the chosen, and without random sets of as many."""

    name: str
    whole: float
    without: float
    random: tuple[float, ...] = ()

    @property
    def rise(self) -> float:
        """By how much it is worse."""
        return self.without - self.whole

    @property
    def rises(self) -> tuple[float, ...]:
        """By how much it is worse without each random set."""
        return tuple(one - self.whole for one in self.random)


@dataclass(frozen=True)
class Lost:
    """What a set of heads is worth to a model.

    `replace` says what stood in their place, `probe` what was read beside the text, `sets` holds the random ones.
    """

    model: str
    heads: tuple[tuple[int, int], ...]
    replace: str
    losses: tuple[Loss, ...]
    probe: str = ""
    sets: tuple[tuple[tuple[int, int], ...], ...] = ()
