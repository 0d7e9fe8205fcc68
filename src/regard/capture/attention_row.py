"""One row of weights that a tap delivers: some heads, from one query to all keys or to named spans of them."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["AttentionRow"]


@dataclass(frozen=True, eq=False)
class AttentionRow:
    """The weights of one query, for each sequence of the batch.

    Args:
        step: The number of the model's call within its text: 0 is the prompt's.
        position: The query's position, counted from 0, padding included.
        ids: The token at this position of each sequence, or None if the model was not called with token ids.
        weights: The weights of the heads in the order of `tap.heads`, to each key position from 0 to the newest one (0
            for keys that a sliding window has dropped), or their sums over each span in the order of `keys=`.
        parent: The row of the previous step that each sequence continues, as beam search reorders them; None at step 0.
    """

    step: int
    position: int
    ids: Int[Tensor, " batch"] | None
    weights: Float[Tensor, "batch heads keys_or_spans"]
    parent: Int[Tensor, " batch"] | None
