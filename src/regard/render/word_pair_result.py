"""How strongly every head looks from one given word to another, over many sentences."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.render.head_scores import PerHead

__all__ = ["Pair", "PairScores"]


@dataclass(frozen=True, eq=False)
class Pair:
    """The weight from `source` to `target` of each sentence that counts (sentences, layers, heads).

    `even` is what a head would give that weighs alike every position it sees, its mean over these sentences. Sentences
    are left out where a word is `missing`, and in a causal model where the target only comes `later`.
    """

    source: str
    target: str
    weights: npt.NDArray[np.float64]
    even: float
    missing: int = 0
    later: int = 0

    @property
    def name(self) -> str:
        """As it was asked for."""
        return f"{self.source}>{self.target}"

    @property
    def mean(self) -> PerHead:
        """Mean over the sentences (layers, heads)."""
        return np.asarray(self.weights.mean(0))

    @property
    def spread(self) -> PerHead:
        """Standard deviation over the sentences, of a sample; NaN for a single one."""
        if len(self.weights) < 2:
            return np.full(self.weights.shape[1:], np.nan)
        return np.asarray(self.weights.std(0, ddof=1))


@dataclass(frozen=True, eq=False)
class PairScores:
    """Pairs of words over the same sentences; `unused` are the sentences that count for no pair."""

    model: str
    pairs: tuple[Pair, ...]
    sentences: int
    unused: int

    @property
    def all(self) -> PerHead:
        """The smallest of the pairs' means: large for a head that looks so for every pair (layers, heads)."""
        return np.asarray(np.min([pair.mean for pair in self.pairs], axis=0))
