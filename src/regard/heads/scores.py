"""The scores of every head of a model: one number per test, for rules that heads follow and for their spread."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.record.visible import HEAD_SINK, MOST

__all__ = ["MEASURES", "RESTS", "RULES", "HeadScores", "HeadTest", "PerHead", "head_number", "ranked"]

PerHead = npt.NDArray[np.float64]  # (layers, heads), NaN if a head does not exist or a test does not apply


@dataclass(frozen=True)
class HeadTest:
    """One published test of a head: its formula, source, and name in a table."""

    label: str
    short: str
    letter: str
    formula: str
    source: str


_VOITA = "Voita et al. 2019, arXiv:1905.09418"
_CLARK = "Clark et al. 2019, arXiv:1906.04341"

# Shares of a row's weight, from 0 to 1.
RULES: Mapping[str, HeadTest] = {
    "previous": HeadTest("previous token", "prev", "P", "mean over rows of p(i, i-1)", _VOITA),
    "next": HeadTest("next token", "next", "N", "mean over rows of p(i, i+1)", _VOITA),
    "self": HeadTest("own position", "self", "O", "mean over rows of p(i, i)", _CLARK),
    "duplicate_token": HeadTest(
        "same token before",
        "same",
        "D",
        "random tokens twice: mean over the second copy of p(i, earlier same token)",
        "Wang et al. 2022, arXiv:2211.00593",
    ),
    "induction": HeadTest(
        "induction",
        "indu",
        "I",
        "random tokens twice: mean over the second copy of p(i, behind the earlier same token)",
        "Olsson et al. 2022, arXiv:2209.11895",
    ),
    "first": HeadTest("first token", "frst", "F", "mean over rows of p(i, first token of the text)", _CLARK),
    "special_tokens": HeadTest(
        "special tokens", "spec", "C", "mean over rows of the mass on special tokens, [CLS] and BOS among them", _CLARK
    ),
    "separators": HeadTest("separators", "sepa", "S", "mean over rows of the mass on ends, stops and commas", _CLARK),
}
MEASURES: Mapping[str, HeadTest] = {
    "entropy": HeadTest("entropy (nats)", "entr", "", "mean over rows of -sum p ln p", _CLARK),
    "distance": HeadTest(
        "distance (tokens)", "dist", "", "mean over rows of sum p |i-j|", "Dosovitskiy et al. 2021, arXiv:2010.11929"
    ),
    "confidence": HeadTest("confidence", "conf", "", "mean over rows of max p", _VOITA),
    "sink": HeadTest(
        "first position (sink)",
        "sink",
        "",
        "sum over all rows of p(i, 0) / rows, where 0 is [CLS] or BOS if there is one",
        "Gu et al. 2024, arXiv:2410.10781",
    ),
}


RESTS = ("first", "special_tokens")  # where heads rest that find nothing else


@dataclass(frozen=True, eq=False)
class HeadScores:
    """The scores of every head, by the names of `RULES` and `MEASURES`, as arrays of shape (layers, heads).

    NaN marks a test that does not apply: the next token in a causal model, special tokens in a text that has none, or a
    test that was not run. `tokens` is the
    number of the text's tokens; `probe` describes the random tokens, "" for none.
    """

    model: str
    scores: Mapping[str, PerHead]
    tokens: int
    probe: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of layers, and the largest number of heads of a layer."""
        layers, heads = next(iter(self.scores.values())).shape
        return layers, heads

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Which heads exist, of shape (layers, heads)."""
        return np.asarray(np.any([np.isfinite(one) for one in self.scores.values()], axis=0))

    @property
    def causal(self) -> bool:
        """Whether the model is causal."""
        return "next" in self.scores and not np.isfinite(self.scores["next"]).any()

    @property
    def best(self) -> PerHead:
        """The weight of a head's rule, or the largest weight of any rule; NaN if there is no head."""
        found = np.full(self.shape, np.nan)
        for layer, head in np.argwhere(self.there):
            rule, shares = self.rule(int(layer), int(head)), self._shares(int(layer), int(head))
            found[layer, head] = shares.get(rule, max(shares.values()))
        return found

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that were tested, in the order of `RULES`."""
        return tuple(name for name in RULES if name in self.scores)

    def rule(self, layer: int, head: int) -> str:
        """Return the rule with more than half of a head's weight, the largest if there are several, or "none".

        The first token and special ones have the lowest priority, because heads attend to them if they find nothing
        else.
        """
        shares = {name: share for name, share in self._shares(layer, head).items() if share > MOST}
        return max(shares, key=lambda name: (name not in RESTS, shares[name]), default="none")

    def _shares(self, layer: int, head: int) -> dict[str, float]:
        return {name: float(np.nan_to_num(self.scores[name][layer, head], nan=-1.0)) for name in self.rules}

    def counts(self) -> dict[str, int]:
        """Return the number of heads per rule, and the number without one."""
        kinds = [self.rule(int(layer), int(head)) for layer, head in np.argwhere(self.there)]
        return {name: kinds.count(name) for name in (*self.rules, "none")}

    @property
    def sink_rate(self) -> float:
        """The share of heads that give the first position more than 0.3 of their weight on average (Gu 2024)."""
        return float((self.scores["sink"][self.there] > HEAD_SINK).mean())

    def top(self, name: str, count: int | None = None) -> list[tuple[int, int, float]]:
        """Return (layer, head, score) sorted by one score, the largest first. `name` may also be "best"."""
        if name != "best" and name not in self.scores:
            raise InputError(f"`sort` must be one of best, {', '.join(self.scores)}, got {name!r}")
        return ranked(self.best if name == "best" else self.scores[name], count)


def ranked(values: PerHead, count: int | None = None) -> list[tuple[int, int, float]]:
    """Return (layer, head, number) sorted by one number per head, the largest first, without heads that have none.

    >>> ranked(np.array([[0.25, np.nan], [0.5, 0.25]]))
    [(1, 0, 0.5), (0, 0, 0.25), (1, 1, 0.25)]
    """
    order = np.argsort(-values, axis=None, kind="stable")
    places = [divmod(int(at), values.shape[1]) for at in order]
    found = [(layer, head, float(values[layer, head])) for layer, head in places if np.isfinite(values[layer, head])]
    return found[:count]


def head_number(layer: int, head: int) -> str:
    """Return the name of a head in tables and for `--ablate`: layer and head, counted from 0.

    >>> head_number(5, 11)
    '5.11'
    """
    return f"{layer}.{head}"
