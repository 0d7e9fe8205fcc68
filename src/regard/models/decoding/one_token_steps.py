"""One token a step for every row that has not ended: what greedy and sampling share."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from regard.models.decoding.base import (
    Continuation,
    GeneratedSequence,
    GenerationLimits,
    check_prompt,
    nothing_to_choose,
)
from regard.models.decoding.rules import Rules, cut

__all__ = ["Choose", "search", "steps"]

Choose = Callable[[Float[Tensor, "rows vocabulary"]], Int[Tensor, " rows"]]


def steps(
    choose: Choose,
    text: Continuation,
    prompt: Int[Tensor, "rows n"],
    limits: GenerationLimits,
    attention_mask: Shaped[Tensor, "rows n"] | None,
) -> Iterator[tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]]:
    """Yield for each step the tokens of all rows (padding after their end) and their log-probabilities (0 there)."""
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
    rules = Rules(limits, logits)
    stay = bool(getattr(text, "together", False))
    live = torch.arange(rows, device=prompt.device)  # where the rows that are read stand in the batch
    over = [False] * rows  # of the rows that are read, which have ended
    for written in range(limits.max_new_tokens):
        log_probs = rules.log_softmax(logits)
        tokens, chances, over = _choose(choose, log_probs, rules, written, over)
        if len(live) == rows:
            yield tokens, chances
        else:
            yield (
                tokens.new_full((rows,), limits.pad_token_id).index_copy_(0, live, tokens),
                chances.new_zeros(rows).index_copy_(0, live, chances),
            )
        if all(over) or written + 1 == limits.max_new_tokens:
            return
        if any(over) and not stay:
            kept = _going(over, tokens.device)
            text.reorder(kept)
            tokens, live, over = tokens[kept], live[kept], [False] * len(kept)
        logits = text.step(tokens[:, None])


def _going(over: list[bool], device: torch.device) -> Int[Tensor, " going"]:
    return torch.tensor([row for row, has_ended in enumerate(over) if not has_ended], device=device)


def _choose(
    choose: Choose, log_probs: Tensor, rules: Rules, written: int, over: list[bool]
) -> tuple[Tensor, Tensor, list[bool]]:
    """Choose one token a row; give their log-probabilities and which texts are over now, by one look at the device.

    Rows that have ended and stay choose nothing, so that the others draw the numbers that they draw without them.
    """
    going = _going(over, log_probs.device) if any(over) else None
    log_probs = log_probs if going is None else log_probs[going]
    allowed = rules(log_probs, written)
    usable = (allowed.amax(1) > -torch.inf) & ~log_probs[:, 0].isnan()
    tokens = choose(allowed.masked_fill(~usable[:, None], 0.0))
    ended, can = torch.stack([rules.ends(tokens), usable]).tolist()
    if not all(can):
        raise nothing_to_choose()
    chances, fresh = log_probs.gather(1, tokens[:, None])[:, 0], iter(ended)
    if going is not None:
        tokens = tokens.new_full((len(over),), rules.limits.pad_token_id).index_copy_(0, going, tokens)
        chances = chances.new_zeros(len(over)).index_copy_(0, going, chances)
    return tokens, chances, [before or next(fresh) for before in over]


def search(
    choose: Choose,
    text: Continuation,
    prompt: Int[Tensor, "rows n"],
    limits: GenerationLimits,
    attention_mask: Shaped[Tensor, "rows n"] | None,
) -> list[GeneratedSequence]:
    """Take all steps and return what was generated after each row."""
    taken = list(steps(choose, text, prompt, limits, attention_mask))
    if not taken:
        return []
    tokens = torch.stack([step for step, _ in taken], dim=1).tolist()
    scores = torch.stack([chances for _, chances in taken]).sum(0).tolist()
    return [GeneratedSequence(cut(new, limits.eos_token_id), score) for new, score in zip(tokens, scores, strict=True)]
