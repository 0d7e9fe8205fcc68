"""Rules that depend on the tokens of a text so far, by the names and with the values of transformers."""

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_size, is_number
from regard.errors import InputError

__all__ = ["BadWords", "NoRepeatNGram", "RepetitionPenalty", "TokenRule"]

Scores = Float[Tensor, "rows vocabulary"]
Tokens = Int[Tensor, "rows n"]


class TokenRule(Protocol):
    """What changes the scores of the next token by the tokens of its text; any callable of these two.

    Greedy decoding and sampling apply it to the logits, beam search to log-probabilities, as transformers does.
    """

    def __call__(self, scores: Scores, tokens: Tokens) -> Scores:
        """Return the scores; `tokens` are those of each text, prompt included, with −1 before shorter ones."""
        ...


@dataclass(frozen=True)
class RepetitionPenalty:
    """Tokens that stand in the text already become less likely: positive scores are divided, negative multiplied.

    Keskar et al. 2019, arXiv:1909.05858, section 4.1.

    >>> RepetitionPenalty(2.0)(torch.tensor([[4.0, -1.0, 3.0]]), torch.tensor([[-1, 0, 1]])).tolist()
    [[2.0, -2.0, 3.0]]
    """

    penalty: float
    name: ClassVar[str] = "repetition_penalty"

    def __post_init__(self) -> None:
        if not is_number(self.penalty) or not 0 < self.penalty < float("inf"):
            raise InputError(
                f"`repetition_penalty` must be a finite number above 0, got {self.penalty!r}: 1 changes nothing"
            )

    def __call__(self, scores: Scores, tokens: Tokens) -> Scores:
        """Divide or multiply."""
        vocabulary = scores.shape[1]
        place = tokens.masked_fill((tokens < 0) | (tokens >= vocabulary), vocabulary)
        flags = torch.zeros(len(scores), vocabulary + 1, dtype=torch.bool, device=scores.device)
        is_repeated = flags.scatter_(1, place, True)[:, :vocabulary]
        lower = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(is_repeated, lower, scores)


@dataclass(frozen=True)
class NoRepeatNGram:
    """No `size` tokens in a row come twice in a text (Paulus et al. 2017, arXiv:1705.04304, section 2.5).

    >>> NoRepeatNGram(2)(torch.zeros(1, 3), torch.tensor([[1, 2, 1]])).tolist()
    [[0.0, 0.0, -inf]]
    """

    size: int
    name: ClassVar[str] = "no_repeat_ngram_size"

    def __post_init__(self) -> None:
        check_size("no_repeat_ngram_size", self.size, "counts the tokens of an n-gram")

    def __call__(self, scores: Scores, tokens: Tokens) -> Scores:
        """Exclude what would repeat an n-gram."""
        length = tokens.shape[1]
        if length < self.size:
            return scores
        ngrams, last = tokens.unfold(1, self.size, 1), tokens[:, length - self.size + 1 :]
        again = (ngrams[..., :-1] == last[:, None]).all(-1) & (ngrams[..., -1] >= 0)
        return _without(scores, ngrams[..., -1], again)


@dataclass(frozen=True)
class BadWords:
    """None of these sequences of tokens comes into a text; transformers' `bad_words_ids`.

    >>> BadWords(((0,), (1, 2)))(torch.zeros(2, 3), torch.tensor([[0, 1], [1, 0]])).tolist()
    [[-inf, 0.0, -inf], [-inf, 0.0, 0.0]]
    """

    words: tuple[tuple[int, ...], ...]
    name: ClassVar[str] = "bad_words_ids"

    def __post_init__(self) -> None:
        words = self.words
        if not isinstance(words, tuple) or not all(isinstance(word, tuple) and word for word in words):
            raise InputError(f"`bad_words_ids` must be a list of lists of tokens, none of them empty, got {words!r}")
        tokens = [token for word in words for token in word]
        if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in tokens):
            raise InputError(f"`bad_words_ids` must hold tokens, integers of at least 0, got {words!r}")

    def __call__(self, scores: Scores, tokens: Tokens) -> Scores:
        """Exclude the last token of each sequence whose others end the text."""
        by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for word in self.words:
            by_length[len(word) - 1].append(word)
        for before, words in by_length.items():
            if before <= tokens.shape[1]:
                table = torch.tensor(words, device=tokens.device)
                ends = (tokens[:, None, tokens.shape[1] - before :] == table[:, :-1]).all(-1)
                scores = _without(scores, table[:, -1].expand(len(scores), -1), ends)
        return scores


def _without(scores: Scores, tokens: Int[Tensor, "rows count"], which: Tensor) -> Scores:
    """−∞ at those of the tokens that are meant."""
    counts = torch.zeros_like(scores).scatter_add_(1, tokens.clamp_min(0), which.to(scores.dtype))
    return scores.masked_fill(counts > 0, -torch.inf)
