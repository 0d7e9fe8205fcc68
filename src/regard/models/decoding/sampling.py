"""Sampling: the next token drawn by its probability, from all tokens or the likeliest ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.checks import check_size, is_number
from regard.errors import InputError
from regard.models.decoding.greedy import TokenByToken

__all__ = ["Sampling", "likeliest"]

# Sorting a whole vocabulary costs milliseconds; the kept tokens are nearly always among so many of the likeliest.
_SHORTLIST = 1024


@dataclass(frozen=True)
class Sampling(TokenByToken):
    """Draw the next token from the model's distribution, sharpened and cut off.

        y_t ~ softmax(log p(y | y_1 … y_{t−1}, prompt) / temperature)   over the kept tokens

    Kept are, of the `top_k` likeliest (with those as likely as the k-th; Fan et al. 2018, arXiv:1805.04833), the fewest
    whose mass reaches `top_p` (Holtzman et al. 2020, arXiv:1904.09751), and of these the ones that are at least `min_p`
    times as likely as the likeliest (Nguyen et al. 2024, arXiv:2407.01082), in the order and by the rules of
    transformers. A temperature too small for its type of numbers takes the likeliest token, and draws among equals.

    The same generator state gives the same tokens for the same batch. All rows draw from one generator, so what one row
    draws depends on the rows beside it; its distribution does not.

    Args:
        temperature: Below 1 sharper, above 1 flatter.
        top_k: Number of tokens to keep; None keeps all.
        top_p: Mass to keep, above 0 and at most 1; None keeps all.
        generator: Where the numbers come from, on the device of the logits; None is torch's own one.
        min_p: Share of the likeliest token's probability, from 0 to 1; None keeps all.

    Raises:
        InputError: A number is out of its range, or the model's logits leave nothing to choose from (NaN).

    >>> from regard.models.decoding import GenerationLimits, Markov
    >>> text = Markov(torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 4))
    >>> def draw(top_k):
    ...     choose = Sampling(top_k=top_k, generator=torch.Generator().manual_seed(0))
    ...     return choose.search(text, torch.tensor([[0]]), GenerationLimits(max_new_tokens=8))[0].tokens
    >>> set(draw(top_k=2)), draw(top_k=3) == draw(top_k=3)
    ({0, 1}, True)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    generator: torch.Generator | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not 0 < self.temperature < float("inf"):
            raise InputError(
                f"`temperature` divides the scores and must be a number above 0, got {self.temperature!r}: "
                "Greedy() takes the likeliest token, which is what 0 would mean"
            )
        if self.top_k is not None:
            check_size("top_k", self.top_k, "counts tokens to keep (None keeps all)")
        if self.top_p is not None and (not is_number(self.top_p) or not 0 < self.top_p <= 1):
            raise InputError(
                f"`top_p` is the mass to keep, above 0 and at most 1, got {self.top_p!r}: None keeps all, and Greedy() "
                "takes the likeliest token"
            )
        if self.min_p is not None and (not is_number(self.min_p) or not 0 <= self.min_p <= 1):
            raise InputError(
                f"`min_p` is a share of the likeliest token's probability, from 0 to 1, got {self.min_p!r}: None keeps "
                "all"
            )

    def choose(self, scores: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
        """Draw a token for each row."""
        if self.generator is not None and self.generator.device.type != scores.device.type:
            raise InputError(
                f"`generator` must be on the device of the logits ({scores.device}), got one on "
                f"{self.generator.device}: make it with torch.Generator({str(scores.device)!r})"
            )
        scores = _sharpened(scores, self.temperature)
        if self.top_k is None and self.top_p in (None, 1):
            return self._draw(scores)
        scores, tokens = likeliest(scores, self.top_k, self.top_p)
        return tokens.gather(1, self._draw(scores)[:, None])[:, 0]

    def _draw(self, scores: Float[Tensor, "rows listed"]) -> Int[Tensor, " rows"]:
        chances = scores.softmax(1)
        if self.min_p is not None:
            least = self.min_p * chances.amax(1, keepdim=True)
            chances = scores.masked_fill(chances < least, -torch.inf).softmax(1)
        return torch.multinomial(chances, 1, generator=self.generator)[:, 0]


def _sharpened(scores: Float[Tensor, "rows vocabulary"], temperature: float) -> Float[Tensor, "rows vocabulary"]:
    """The scores below the best one of their row, divided by the temperature, which their type may not have."""
    gaps, numbers = scores - scores.amax(1, keepdim=True), torch.finfo(scores.dtype)
    if temperature < numbers.tiny:
        return torch.where(gaps < 0, -torch.inf, 0.0).to(scores.dtype)
    return gaps / min(temperature, numbers.max)


def likeliest(
    scores: Float[Tensor, "rows vocabulary"], top_k: int | None = None, top_p: float | None = None
) -> tuple[Float[Tensor, "rows listed"], Int[Tensor, "rows listed"]]:
    """List the likeliest tokens, best first: their scores, −∞ for those not kept, and the tokens; all kept are listed.

    >>> likeliest(torch.tensor([[0.1, 0.3, 0.6]]).log(), top_p=0.7)[1].tolist()
    [[2, 1, 0]]
    """
    if top_k is None:
        if top_p is None:
            return scores.sort(1, descending=True)
        mass, total = top_p, scores.logsumexp(1, keepdim=True)
        return _listed(scores, _SHORTLIST, lambda best: _behind(best - total, mass))
    best, tokens = _listed(scores, top_k + 1, lambda best: best < best[:, min(top_k, best.shape[1]) - 1, None])
    if top_p is None:
        return best, tokens
    return best.masked_fill(_behind(best.log_softmax(1), top_p), -torch.inf), tokens


def _behind(log_probs: Float[Tensor, "rows listed"], top_p: float) -> Bool[Tensor, "rows listed"]:
    """Where the tokens before have reached the mass; all of it is reached by none, whatever the rounding."""
    mass = log_probs.exp()
    least = max(top_p, torch.finfo(mass.dtype).tiny)  # as 0 the first would be behind, too
    return mass.cumsum(1) - mass >= (least if top_p < 1 else torch.inf)


def _listed(scores: Tensor, size: int, falls: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """List `size` of the likeliest tokens, and all if the last of those does not fall: what is behind it falls too."""
    size = min(size, scores.shape[1])
    best, tokens = scores.topk(size)
    fallen = falls(best)
    if size < scores.shape[1] and not bool(fallen[:, -1].all()):
        best, tokens = scores.sort(1, descending=True)
        fallen = falls(best)
    return best.masked_fill(fallen, -torch.inf), tokens
