"""Decoding token by token: the steps that greedy decoding and sampling share, and greedy decoding."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.models.decoding.base import (
    Continuation,
    GeneratedSequence,
    GenerationLimits,
    Rules,
    check_prompt,
    cut,
    nothing_to_choose,
    of_rows,
)

__all__ = ["Greedy", "TokenByToken"]

Choose = Callable[[Float[Tensor, "rows vocabulary"]], tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]]


def steps(
    choose: Choose,
    text: Continuation,
    prompt: Int[Tensor, "rows n"],
    limits: GenerationLimits,
    attention_mask: Shaped[Tensor, "rows n"] | None,
) -> Iterator[tuple[Int[Tensor, " rows"], Float[Tensor, "rows two"]]]:
    """Yield for each step the tokens of all rows (padding after their end), and for each its log-probability (0 there)
    and the margin of its choice (infinite there).
    """
    return _steps(choose, text, prompt, limits, check_prompt(prompt, attention_mask))


@torch.inference_mode()
def _steps(
    choose: Choose, text: Continuation, prompt: Tensor, limits: GenerationLimits, attention_mask: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Read, choose, hand out; rows that have ended leave the batch, so that the others become cheaper."""
    rows = prompt.shape[0]
    if rows == 0:
        return
    logits = text.step(prompt, attention_mask)
    rules = Rules.of(limits, logits, prompt, attention_mask)
    stay = bool(getattr(text, "together", False))
    live = torch.arange(rows, device=prompt.device)  # where the rows that are read stand in the batch
    over = [False] * rows  # of the rows that are read, which have ended
    new = prompt.new_empty(rows, 0)
    while True:
        tokens, chances, over = _choose(choose, logits, rules, new, over)
        if len(live) == rows:
            yield tokens, chances
        else:
            yield (
                tokens.new_full((rows,), limits.pad_token_id).index_copy_(0, live, tokens),
                _none_chosen(chances, rows).index_copy_(0, live, chances),
            )
        if all(over):
            return
        new = torch.cat([new, tokens[:, None].to(new.dtype)], 1)
        if any(over) and not stay:
            going = _going(over)
            kept = torch.tensor(going, device=tokens.device)
            text.reorder(kept)
            tokens, new, live, rules, over = (
                tokens[kept],
                new[kept],
                live[kept],
                rules.select(going),
                [False] * len(kept),
            )
        # What stays must not take more positions than the model has.
        ended = stay and any(over) and len(set(rules.max_new_tokens)) > 1
        logits = text.step(tokens[:, None], ~torch.tensor(over, device=tokens.device)[:, None] if ended else None)


def _going(over: list[bool]) -> list[int]:
    return [row for row, has_ended in enumerate(over) if not has_ended]


def _choose(
    choose: Choose, logits: Tensor, rules: Rules, new: Int[Tensor, "rows n"], over: list[bool]
) -> tuple[Tensor, Tensor, list[bool]]:
    """Choose one token a row; give (log-probability, margin) of each and which texts are over now, by one look at the
    device.

    Rows that have ended and stay choose nothing, so that the others draw the numbers that they draw without them.
    """
    going = None
    if any(over):
        rules = rules.select(_going(over))
        going = torch.tensor(_going(over), device=logits.device)
        logits, new = logits[going], new[going]
    log_probs = rules.log_softmax(logits)
    allowed = rules(logits.to(log_probs.dtype), new)
    usable = (allowed.amax(1) > -torch.inf) & ~log_probs[:, 0].isnan()
    tokens, margins = choose(allowed.masked_fill(~usable[:, None], 0.0))
    ended, can = torch.stack([rules.ends(tokens), usable]).tolist()
    if not all(can):
        raise nothing_to_choose(rules.limits, is_nan=bool(log_probs[:, 0].isnan().any()))
    chances = torch.stack([log_probs.gather(1, tokens[:, None])[:, 0], margins.to(log_probs.dtype)], 1)
    fresh = iter([end or limit for end, limit in zip(ended, rules.at_limit(new.shape[1] + 1), strict=True)])
    if going is not None:
        tokens = tokens.new_full((len(over),), rules.limits.pad_token_id).index_copy_(0, going, tokens)
        chances = _none_chosen(chances, len(over)).index_copy_(0, going, chances)
    return tokens, chances, [before or next(fresh) for before in over]


def _none_chosen(like: Tensor, rows: int) -> Float[Tensor, "rows two"]:
    """The log-probability and the margin of rows that have ended."""
    return like.new_tensor([[0.0, torch.inf]]).repeat(rows, 1)


class TokenByToken:
    """Decoding that chooses one token for each row at each step; how it chooses is all that differs."""

    def choose(self, scores: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
        """Return a token for each row of scores."""
        raise NotImplementedError  # each decoding defines it

    def margins(self, scores: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, " rows"]:
        """Return for each row how much the scores may differ between two tokens until another one is chosen."""
        return scores.new_full((len(scores),), torch.inf)

    def _choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        return self.choose(scores), self.margins(scores)

    def search(
        self,
        text: Continuation,
        prompt: Int[Tensor, "rows n"],
        limits: GenerationLimits,
        /,
        attention_mask: Shaped[Tensor, "rows n"] | None = None,
    ) -> list[GeneratedSequence]:
        """Continue every row of the prompt until it ends; return one result a row, in their order."""
        taken = list(steps(self._choose, text, prompt, limits, attention_mask))
        if not taken:
            return []
        tokens = torch.stack([step for step, _ in taken], dim=1).tolist()
        chances = torch.stack([chances for _, chances in taken])
        scores, margins = chances[..., 0].sum(0).tolist(), chances[..., 1].amin(0).tolist()
        most = of_rows(limits.max_new_tokens, len(tokens))
        return [
            GeneratedSequence(cut(new[:limit], limits.eos_token_id), score, margin)
            for new, limit, score, margin in zip(tokens, most, scores, margins, strict=True)
        ]

    def stream(
        self,
        text: Continuation,
        prompt: Int[Tensor, "rows n"],
        limits: GenerationLimits,
        /,
        attention_mask: Shaped[Tensor, "rows n"] | None = None,
    ) -> Iterator[Int[Tensor, " rows"]]:
        """Yield the tokens of each step as soon as they are known, `pad` for rows that have ended."""
        return (tokens for tokens, _ in steps(self._choose, text, prompt, limits, attention_mask))


@dataclass(frozen=True)
class Greedy(TokenByToken):
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

    def choose(self, scores: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, " rows"]:
        """Return the token of the highest score in each row."""
        return scores.argmax(1)

    def margins(self, scores: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, " rows"]:
        """Return the distance of the two highest scores of each row."""
        if scores.shape[1] == 1:
            return super().margins(scores)
        first, second = scores.topk(2).values.unbind(1)
        return first - second
