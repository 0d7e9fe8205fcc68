"""One row of weights that a tap delivers: some heads, from one query to all keys or to named spans of them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["AttentionRow", "continued_rows"]


@dataclass(frozen=True, eq=False)
class AttentionRow:
    """The weights of one query, for each sequence of the batch.

    Args:
        step: The number of the model's call within its text: 0 is the prompt's.
        position: The query's position, counted from 0, padding included.
        ids: The token at this position of each sequence, or None if the model was not called with token ids.
        weights: The weights of the heads in the order of `tap.heads`, to each key position from 0 to the newest one (0
            for keys that a sliding window has dropped), or their sums over each span in the order of `keys=`. Of
            several rows of one call, each ends at its own position if none of them sees a later key (causal attention).
        parent: The row of the previous step that each sequence continues, as beam search reorders them; None at step 0,
            and in a batch that is read from the beginning in each step (no cache) and has no token ids.
    """

    step: int
    position: int
    ids: Int[Tensor, " batch"] | None
    weights: Float[Tensor, "batch heads keys_or_spans"]
    parent: Int[Tensor, " batch"] | None


def continued_rows(texts: Int[Tensor, "rows n"], before: Int[Tensor, "others m"]) -> Int[Tensor, " rows"] | None:
    """Return the row that each text continues, its own where it can be; None if one continues none."""
    if texts.shape[1] != before.shape[1] + 1:
        return None
    same = (texts[:, None, :-1] == before).all(-1)
    if not bool(same.any(1).all()):
        return None
    own = torch.eye(*same.shape, dtype=torch.bool, device=same.device)
    return (same.int() + (same & own)).argmax(1).cpu()
