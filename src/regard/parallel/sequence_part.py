"""The part of a sequence that this process has, for what counts places: positions, and dropout of activations."""

from contextvars import ContextVar
from dataclasses import dataclass

from jaxtyping import Int, Shaped
from torch import Tensor

from regard.errors import InputError

__all__ = ["SEQUENCE_PART", "SequencePart"]


@dataclass(frozen=True, eq=False)
class SequencePart:
    """Which tokens this process has of the sequences that a model runs on, inside `regard.sequence_parallel`.

    Args:
        length: Tokens of a whole sequence, padding included.
        places: The indices of this process's tokens in it.
        position_ids: Their positions in their texts, (batch or 1, part).
        longest: Tokens of the longest text, without padding.
        all_position_ids: The positions of all tokens in their texts, (batch or 1, length); 0 for padding.
    """

    length: int
    places: Int[Tensor, " part"]
    position_ids: Int[Tensor, "#batch part"]
    longest: int
    all_position_ids: Int[Tensor, "#batch length"]

    def whole_shape(self, x: Shaped[Tensor, "batch part *rest"]) -> tuple[int, ...]:
        """Return the shape of an activation over the whole sequence.

        Raises:
            InputError: Its second dimension is not that of this process's tokens.
        """
        if x.ndim < 3 or x.shape[1] != len(self.places):
            raise InputError(
                f"inside sequence_parallel, activations that are dropped must be (batch, {len(self.places)} tokens of "
                f"this rank, width), got {tuple(x.shape)}: set dropout = 0"
            )
        return (x.shape[0], self.length, *x.shape[2:])


SEQUENCE_PART: ContextVar[SequencePart | None] = ContextVar("sequence_part", default=None)
