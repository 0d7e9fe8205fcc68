"""Greedy decoding: the likeliest token at each step."""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.models.decoding.base import Continuation, GeneratedSequence, GenerationLimits
from regard.models.decoding.one_token_steps import search, steps

__all__ = ["Greedy"]


@dataclass(frozen=True)
class Greedy:
    """Choose the likeliest token at each step.

        y_t = argmax_y p(y | y_1 … y_{t−1}, prompt)

    Each step is the best one, the whole text need not be: BeamSearch looks further. Of tokens with the same logit
    the first is taken. (Sutskever et al. 2014, arXiv:1409.3215, section 3.2, as a beam of 1.)

    Raises:
        InputError: The prompt has another shape, or the model's logits leave nothing to choose from (NaN).

    >>> import torch
    >>> from regard.models.decoding import GenerationLimits, Markov
    >>> text = Markov(torch.eye(4).roll(1, dims=1))  # 0, 1, 2, 3, 0, …
    >>> Greedy().search(text, torch.tensor([[0], [2]]), GenerationLimits(max_new_tokens=5, eos_token_id=(3,)))[0].tokens
    (1, 2, 3)
    >>> limits = GenerationLimits(eos_token_id=(3,), pad_token_id=9)
    >>> [step.tolist() for step in Greedy().stream(text, torch.tensor([[0], [2]]), limits)]
    [[1, 3], [2, 9], [3, 9]]
    """

    def search(
        self,
        text: Continuation,
        prompt: Int[Tensor, "rows n"],
        limits: GenerationLimits,
        /,
        attention_mask: Shaped[Tensor, "rows n"] | None = None,
    ) -> list[GeneratedSequence]:
        """Continue every row of the prompt until it ends; return one result a row, in their order."""
        return search(_likeliest, text, prompt, limits, attention_mask)

    def stream(
        self,
        text: Continuation,
        prompt: Int[Tensor, "rows n"],
        limits: GenerationLimits,
        /,
        attention_mask: Shaped[Tensor, "rows n"] | None = None,
    ) -> Iterator[Int[Tensor, " rows"]]:
        """Yield the tokens of each step as soon as they are known, `pad` for rows that have ended."""
        return (tokens for tokens, _ in steps(_likeliest, text, prompt, limits, attention_mask))


def _likeliest(scores: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
    """The token of the highest score."""
    return scores.argmax(1)
