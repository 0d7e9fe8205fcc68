r"""Which weights are findings: a head gives a word clearly more from one word than from the others that can see it.

Most heads of a trained model rest: whatever the word, they give their weight to the first token, to special tokens, to
the token itself or to the one before it (Clark et al. 2019, arXiv:1906.04341; Xiao et al. 2023, arXiv:2309.17453; Gu et
al. 2024, arXiv:2410.10781). Such a weight says nothing of the word. The weight $p_{hqk}$ from word q to word k is
therefore compared with its head's own habit, the mean over the other words that can see k:

$$\bar p_{hqk} = \frac{1}{|R|} \sum_{i \in R} p_{hik}, \quad R = \text{rows that can see } k, \text{ without those of q,
k and special tokens}$$

It is a finding if k is text, neither q itself nor the word before q, and $p_{hqk} \ge 1.5 \, \bar p_{hqk}$. If k is a
sink of the layer (`find_sinks`) or the first token of a causal text, where all heads leave some weight, it takes 4
times as much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from regard.record.layers import Layer
from regard.record.tokens import Word
from regard.record.visible import ABOVE_EVEN, Visible, find_sinks, is_causal, padding_of
from regard.record.weights_on import rows_with_weight, weights_of_pairs, weights_on

__all__ = ["Habits"]

CLEARLY = 1.5  # multiple of the mean weight from other words

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Habits:
    """What the heads of one layer give to each word from all rows together, in one sequence.

    `words` are the words of the keys, which are also those of the queries if `one_text`.
    """

    layer: Layer
    batch_index: int
    visible: Visible
    words: tuple[Word, ...]
    one_text: bool

    @cached_property
    def is_causal(self) -> bool:
        """Whether no query attends to a later key."""
        return is_causal(self.layer, self.batch_index)

    @cached_property
    def rests(self) -> npt.NDArray[np.bool_]:
        """Which words are places to rest: sinks of the layer, and the first token of a causal text."""
        keys = {sink.key for sink in find_sinks(self.layer, self.batch_index)}
        keys |= {self.visible.first} if self.is_causal and self.visible.first is not None else set()
        return np.array([not keys.isdisjoint(word.pieces) for word in self.words], dtype=np.bool_)

    @cached_property
    def _rows(self) -> npt.NDArray[np.bool_]:
        """Which rows are compared: those of the text, neither padding nor special tokens, that have weight."""
        return self.visible.queries & rows_with_weight(self.layer, self.batch_index)

    def _compared(self, word: Word) -> list[int]:
        return [piece for piece in word.pieces if piece < self.layer.queries and self._rows[piece]]

    @cached_property
    def _own(self) -> list[list[int]]:
        """The compared rows of each word of the keys, if these are the queries too."""
        return [self._compared(word) if self.one_text else [] for word in self.words]

    @cached_property
    def _received(self) -> Array:
        """The weight that each word gets from the compared rows but its own, (heads, words)."""
        layer, at = self.layer, self.batch_index
        hidden, _ = padding_of(layer, at)  # whose rows are not in `received`
        left_out = np.flatnonzero(rows_with_weight(layer, at) & ~self._rows & ~hidden).tolist()
        total = np.asarray(layer.received[at], np.float64)
        total = total - np.nan_to_num(weights_on(layer, at, range(layer.heads), left_out)).sum(1, dtype=np.float64)
        of_words = np.repeat(np.arange(len(self.words)), [len(word.pieces) for word in self.words])[: layer.keys]
        found = np.zeros((layer.heads, len(self.words)))
        np.add.at(found.T, of_words, total[:, : len(of_words)].T)
        if self.one_text:
            own = [(row, key, number) for number, pieces in enumerate(self._own) for row in pieces for key in pieces]
            rows, keys, numbers = np.array(own, np.intp).reshape(-1, 3).T
            weights = np.nan_to_num(weights_of_pairs(layer, at, range(layer.heads), rows.tolist(), keys.tolist()))
            np.subtract.at(found.T, numbers, weights.T)
        return found

    @cached_property
    def _seeing(self) -> npt.NDArray[np.int_]:
        """The number of compared rows that can see each word."""
        later = np.append(self._rows[::-1].cumsum()[::-1], 0)  # rows from each on
        firsts = [min(word.pieces[0], len(self._rows)) for word in self.words]
        return np.asarray(later[firsts if self.is_causal else [0] * len(firsts)])

    @cached_property
    def _times(self) -> Array:
        return np.where(self.rests, ABOVE_EVEN, CLEARLY)

    @cached_property
    def least(self) -> Array:
        """The weight from which each word is a finding (heads, words), if the word that looks is one of very many."""
        return np.asarray(self._times * self._received / np.maximum(self._seeing, 1))

    def elsewhere(self, weights: Array, queries: Sequence[Word]) -> Array:
        """Return the mean weight of each word from the other words that can see it, (heads, queries, words); NaN where
        there is none.

        `weights` (heads, queries, words) are those of the queries, the means over their pieces.
        """
        firsts, begins = (np.array([word.pieces[0] for word in words]) for words in (self.words, queries))
        counts = np.array([len(self._compared(word)) for word in queries])[:, None]
        counts = np.where(self.one_text & (begins[:, None] == firsts), 0, counts)  # left out already
        sees = begins[:, None] >= firsts if self.is_causal else True
        others = self._seeing - [len(pieces) for pieces in self._own] - np.where(sees, counts, 0)
        given = (self._received[:, None] - counts * weights).clip(0)
        return np.asarray(np.divide(given, others, out=np.full(given.shape, np.nan), where=others > 0))

    def are_findings(
        self, weights: Array, queries: Sequence[Word], *, uncompared: bool = False
    ) -> npt.NDArray[np.bool_]:
        """Return which weights (heads, queries, words) are clearly more than the head gives from elsewhere; with
        `uncompared` also those on words that no other row can see, unless heads rest there.
        """
        least = self._times * self.elsewhere(weights, queries)
        return np.asarray((weights > 0) & np.where(np.isnan(least), uncompared & ~self.rests, weights >= least))
