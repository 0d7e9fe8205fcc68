"""What is measured of heads: their change between two texts, the loss without some, the weight from word to word."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.heads.scores import HeadScores, PerHead

__all__ = ["HeadChange", "Loss", "Lost", "PairScores", "WordPair"]


@dataclass(frozen=True, eq=False)
class HeadChange:
    """The change of each head, from 0 to 1, and its scores `before` and `after`.

    If rows are comparable (`rows` of them), `change` is the mean over rows of JensenShannon(p_i, p'_i) / ln 2: 0 for
    equal rows, 1 for rows without a common key. Otherwise (`rows` is 0) it is the largest difference of a score over
    the rules of `RULES`. `why` gives the reason why rows are or are not comparable.
    """

    names: tuple[str, str]
    change: PerHead
    before: HeadScores
    after: HeadScores
    rows: int
    why: str

    @property
    def by_rows(self) -> bool:
        """Whether rows were compared instead of scores."""
        return self.rows > 0

    @property
    def distance(self) -> PerHead:
        """Σ_i JensenShannon(p_i, p'_i) in nats, the sum of Clark et al. 2019 (arXiv:1906.04341, section 6)."""
        return self.change * self.rows * math.log(2) if self.by_rows else np.full_like(self.change, np.nan)

    def moved(self, layer: int, head: int) -> tuple[str, float, float]:
        """Return the rule whose weight has changed most in one head, and its weight before and after."""
        pairs = {
            name: (float(self.before.scores[name][layer, head]), float(self.after.scores[name][layer, head]))
            for name in self.before.rules
            if name in self.after.scores
        }
        known = {name: pair for name, pair in pairs.items() if all(map(math.isfinite, pair))}
        name = max(known, key=lambda one: abs(known[one][1] - known[one][0]))
        return name, *known[name]


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


@dataclass(frozen=True, eq=False)
class WordPair:
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
    pairs: tuple[WordPair, ...]
    sentences: int
    unused: int

    @property
    def all(self) -> PerHead:
        """The smallest of the pairs' means, of shape (layers, heads): large only for a head with a large weight for
        every pair.
        """
        return np.asarray(np.min([pair.mean for pair in self.pairs], axis=0))
