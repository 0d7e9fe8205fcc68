"""The change of every head between two texts, two models or two records."""

import math
from dataclasses import dataclass

import numpy as np

from regard.render.head_scores import HeadScores, PerHead

__all__ = ["HeadChange"]


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
