"""One token a step for every row that has not ended: what greedy and sampling share."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.models.decoding.base import Continuation, Limits, Written
from regard.models.decoding.checks import check_prompt, nothing_to_choose
from regard.models.decoding.rules import Rules, cut

__all__ = ["Choose", "steps", "write"]

Choose = Callable[[Float[Tensor, "rows vocabulary"]], Int[Tensor, " rows"]]


def steps(
    choose: Choose,
    text: Continuation,
    prompt: Int[Tensor, "rows n"],
    limits: Limits,
    real: Bool[Tensor, "rows n"] | None,
) -> Iterator[tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]]:
    """Yield for each step the tokens of all rows (pad behind their end) and their log-probabilities (0 there)."""
    check_prompt(prompt, real)
    return _steps(choose, text, prompt, limits, real)


@torch.inference_mode()
def _steps(
    choose: Choose, text: Continuation, prompt: Tensor, limits: Limits, real: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Read, choose, hand out; rows that have ended leave the batch, so that the others become cheaper."""
    rows = prompt.shape[0]
    if rows == 0:
        return
    logits = text.read(prompt, real)
    rules = Rules(limits, logits)
    stay = bool(getattr(text, "together", False))
    live = torch.arange(rows, device=prompt.device)  # where the rows that are read stand in the batch
    over = [False] * rows  # of the rows that are read, which have ended
    for written in range(limits.most):
        log_probs = rules.log_softmax(logits)
        tokens, ended = _choose(choose, log_probs, rules, written)
        chances = log_probs.gather(1, tokens[:, None])[:, 0]
        if any(over):
            gone = torch.tensor(over, device=tokens.device)
            tokens, chances = tokens.masked_fill(gone, limits.pad), chances.masked_fill(gone, 0.0)
        over = [before or now for before, now in zip(over, ended, strict=True)]
        if len(live) == rows:
            yield tokens, chances
        else:
            yield (
                tokens.new_full((rows,), limits.pad).index_copy_(0, live, tokens),
                chances.new_zeros(rows).index_copy_(0, live, chances),
            )
        if all(over) or written + 1 == limits.most:
            return
        if any(over) and not stay:
            kept = torch.tensor([row for row, has_ended in enumerate(over) if not has_ended], device=tokens.device)
            text.select(kept)
            tokens, live, over = tokens[kept], live[kept], [False] * len(kept)
        logits = text.read(tokens[:, None])


def _choose(choose: Choose, log_probs: Tensor, rules: Rules, written: int) -> tuple[Tensor, list[bool]]:
    """Choose one token a row and say which texts it ends, with one look at the device."""
    allowed = rules(log_probs, written)
    usable = (allowed.amax(1) > -torch.inf) & ~log_probs[:, 0].isnan()
    tokens = choose(allowed.masked_fill(~usable[:, None], 0.0))
    ended: list[bool]
    ended, can = torch.stack([rules.ends(tokens), usable]).tolist()
    if not all(can):
        raise nothing_to_choose()
    return tokens, ended


def write(
    choose: Choose,
    text: Continuation,
    prompt: Int[Tensor, "rows n"],
    limits: Limits,
    real: Bool[Tensor, "rows n"] | None,
) -> list[Written]:
    """Take all steps and give what was written behind each row."""
    taken = list(steps(choose, text, prompt, limits, real))
    if not taken:
        return []
    tokens = torch.stack([step for step, _ in taken], dim=1).tolist()
    scores = torch.stack([chances for _, chances in taken]).sum(0).tolist()
    return [Written(cut(new, limits.stop), score) for new, score in zip(tokens, scores, strict=True)]
