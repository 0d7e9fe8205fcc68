"""The losses of a model without some heads, and without random ones."""

from dataclasses import dataclass

__all__ = ["Loss", "Lost"]


@dataclass(frozen=True)
class Loss:
    """One measured loss: with all heads (`whole`), without the chosen heads (`without`), and without each
    random set.
    """

    name: str
    whole: float
    without: float
    random: tuple[float, ...] = ()

    @property
    def rise(self) -> float:
        """The increase of the loss."""
        return self.without - self.whole

    @property
    def rises(self) -> tuple[float, ...]:
        """The increase of the loss without each random set."""
        return tuple(one - self.whole for one in self.random)


@dataclass(frozen=True)
class Lost:
    """The effect of ablating a set of heads of a model.

    `replace` is the replacement of the heads' output, `probe` the input besides the text, and `sets` the random sets.
    """

    model: str
    heads: tuple[tuple[int, int], ...]
    replace: str
    losses: tuple[Loss, ...]
    probe: str = ""
    sets: tuple[tuple[tuple[int, int], ...], ...] = ()
