"""The texts that a beam search holds of each row."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

__all__ = ["Hypotheses"]


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """Some texts of each row, best first, all of the same length; a score of −∞ says that there is none.

    Args:
        tokens: The new tokens.
        scores: What they are ordered by.
    """

    tokens: Int[Tensor, "rows texts n"]
    scores: Float[Tensor, "rows texts"]

    @classmethod
    def empty(cls, texts: int, score: float, like: Float[Tensor, "rows vocabulary"]) -> "Hypotheses":
        """As many texts without a token for each row of `like`."""
        tokens = torch.zeros(like.shape[0], texts, 0, dtype=torch.int64, device=like.device)
        return cls(tokens, like.new_full((like.shape[0], texts), score))

    def extended(
        self, log_probs: Float[Tensor, "rows texts vocabulary"], count: int
    ) -> tuple["Hypotheses", Int[Tensor, "rows found"]]:
        """Give the `count` best texts with one token more, and for each the text that it goes on with."""
        vocabulary = log_probs.shape[2]
        # What is read behind no text may be anything, NaN too.
        every = (self.scores[..., None] + log_probs).masked_fill_(self.scores[..., None] == -torch.inf, -torch.inf)
        scores, index = every.flatten(1).topk(min(count, every[0].numel()))
        parents = index // vocabulary
        tokens = torch.cat([_take(self.tokens, parents), (index % vocabulary)[..., None]], dim=2)
        return Hypotheses(tokens, scores), parents

    def best(self, count: int) -> tuple["Hypotheses", Int[Tensor, "rows best"]]:
        """Give the best texts, and where they stood."""
        scores, index = self.scores.topk(min(count, self.scores.shape[1]))
        return Hypotheses(_take(self.tokens, index), scores), index

    def first(self, count: int) -> "Hypotheses":
        """Take the first texts of each row."""
        return Hypotheses(self.tokens[:, :count], self.scores[:, :count])

    def divided(self, by: float) -> "Hypotheses":
        """Divide the scores."""
        return Hypotheses(self.tokens, self.scores / by)

    def without(self, which: Bool[Tensor, "rows texts"]) -> "Hypotheses":
        """Let these texts be none."""
        return Hypotheses(self.tokens, self.scores.masked_fill(which, -torch.inf))

    def joined(self, others: "Hypotheses", pad: int) -> "Hypotheses":
        """Put longer texts behind these; the shorter are filled up."""
        missing = others.tokens.shape[2] - self.tokens.shape[2]
        tokens = torch.cat([functional.pad(self.tokens, (0, missing), value=pad), others.tokens], dim=1)
        return Hypotheses(tokens, torch.cat([self.scores, others.scores], dim=1))

    def rows(self, which: Bool[Tensor, " rows"]) -> "Hypotheses":
        """Take these rows alone."""
        return Hypotheses(self.tokens[which], self.scores[which])


def _take(tokens: Int[Tensor, "rows texts n"], index: Int[Tensor, "rows chosen"]) -> Int[Tensor, "rows chosen n"]:
    """Take texts of each row."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[2]))
