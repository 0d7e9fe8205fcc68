"""Band: what Causal and Window leave around the diagonal, as two numbers that a kernel can be told."""

from dataclasses import dataclass

from regard.masks.base import And, Mask
from regard.masks.causal import Causal
from regard.masks.window import Window

__all__ = ["Band", "band_of"]


@dataclass(frozen=True)
class Band:
    """A query at position i sees the keys i − before … i + after; None: as far as there are keys."""

    before: int | None = None
    after: int | None = None

    def within(self, positions: int) -> tuple[int, int]:
        """Both as numbers, none larger than there are positions, so that sums of them stay small."""
        sides = (positions if side is None else side for side in (self.before, self.after))
        before, after = (max(-positions, min(side, positions)) for side in sides)
        return before, after


def band_of(mask: Mask) -> Band | None:
    """The band that a mask leaves: Causal, Window, and several of them at once; None for any other.

    >>> band_of(Causal() & Window(before=3, after=1))
    Band(before=3, after=0)
    """
    if type(mask) is Causal:
        return Band(after=-mask.shift)
    if type(mask) is Window:
        return Band(mask.before, mask.after)
    if type(mask) is not And:
        return None
    one, other = band_of(mask.left), band_of(mask.right)
    if one is None or other is None:
        return None
    return Band(_lesser(one.before, other.before), _lesser(one.after, other.after))


def _lesser(one: int | None, other: int | None) -> int | None:
    return min((side for side in (one, other) if side is not None), default=None)
