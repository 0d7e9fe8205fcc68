"""Find the heads that flip between two texts: with more weight on one word in the first text, and on the other in the
second.

A head is counted if its two weights together are at least 0.1 in each text, because the order of two small weights is
noise. A counted head *flips* if the word with the larger weight differs between the texts. Its *lead* is the smaller
of its two differences; a flip with a lead of 0.01 is weak.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

__all__ = ["CLEAR", "Flip", "HeadFlips"]

CLEAR = 0.1  # minimum weight on both words together, in each text, for a head to be counted


@dataclass(frozen=True)
class Flip:
    """A head that flips: its weights on the two words, in the first text and in the second."""

    layer: int
    head: int
    before: tuple[float, float]
    after: tuple[float, float]

    @property
    def lead(self) -> float:
        """The smaller of the two differences."""
        return min(abs(one - other) for one, other in (self.before, self.after))

    @property
    def to_second(self) -> bool:
        """Whether it changes from the first word to the second."""
        return self.before[0] > self.before[1]


@dataclass(frozen=True, eq=False)
class HeadFlips:
    """Weights from one word to two others in two texts; NaN where a layer has fewer heads.

    >>> tired_then_wide = np.array([[[[0.3, 0.02]], [[0.1, 0.01]]], [[[0.1, 0.01]], [[0.2, 0.02]]]])
    >>> flips = HeadFlips(tired_then_wide)
    >>> flips.counted, flips.flips
    (1, (Flip(layer=0, head=0, before=(0.3, 0.1), after=(0.1, 0.2)),))
    """

    weights: Float[npt.NDArray[np.float64], "2 2 layers heads"]  # texts, words, layers, heads

    @property
    def heads(self) -> int:
        """The number of heads."""
        return int(np.isfinite(self.weights[0, 0]).sum())

    @property
    def counted(self) -> int:
        """The number of heads that give both words together a tenth of their weight in each text."""
        return int(self._clear().sum())

    def prefer(self, word: int) -> int:
        """Return how many counted heads give one of the words (0 or 1) more weight in both texts."""
        more = self.weights[:, word] > self.weights[:, 1 - word]
        return int((self._clear() & more.all(0)).sum())

    @property
    def flips(self) -> tuple[Flip, ...]:
        """The counted heads that flip, those with the largest lead first."""
        first, second = self.weights[:, 0] > self.weights[:, 1], self.weights[:, 0] < self.weights[:, 1]
        turned = self._clear() & ((first[0] & second[1]) | (second[0] & first[1]))
        found = [self._flip(int(layer), int(head)) for layer, head in np.argwhere(turned)]
        return tuple(sorted(found, key=lambda flip: -flip.lead))

    def _clear(self) -> npt.NDArray[np.bool_]:
        return np.asarray((self.weights.sum(1) >= CLEAR).all(0))

    def _flip(self, layer: int, head: int) -> Flip:
        before, after = self.weights[:, :, layer, head].tolist()
        return Flip(layer, head, tuple(before), tuple(after))
