"""The weight of every head from one given word to another, over many sentences."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.render.head_scores import PerHead

__all__ = ["Pair", "PairScores"]


@dataclass(frozen=True, eq=False)
class Pair:
    """The weight from `source` to `target` of each sentence that counts, of shape (sentences, layers, heads).

    `even` is the weight under uniform attention over the visible positions, as the mean over these sentences.
    Sentences without one of the words (`missing`) are left out, and for a causal model those in which the target comes
    after the source (`later`).
    """

    source: str
    target: str
    weights: npt.NDArray[np.float64]
    even: float
    missing: int = 0
    later: int = 0

    @property
    def name(self) -> str:
        """The pair as given by the caller."""
        return f"{self.source}>{self.target}"

    @property
    def mean(self) -> PerHead:
        """The mean over the sentences, of shape (layers, heads)."""
        return np.asarray(self.weights.mean(0))

    @property
    def spread(self) -> PerHead:
        """The sample standard deviation over the sentences; NaN for a single sentence."""
        if len(self.weights) < 2:
            return np.full(self.weights.shape[1:], np.nan)
        return np.asarray(self.weights.std(0, ddof=1))


@dataclass(frozen=True, eq=False)
class PairScores:
    """Pairs of words over the same sentences; `unused` is the number of sentences that count for no pair."""

    model: str
    pairs: tuple[Pair, ...]
    sentences: int
    unused: int

    @property
    def all(self) -> PerHead:
        """The smallest of the pairs' means, of shape (layers, heads): large only for a head with a large weight for
        every pair.
        """
        return np.asarray(np.min([pair.mean for pair in self.pairs], axis=0))
