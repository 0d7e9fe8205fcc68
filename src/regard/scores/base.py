"""What a score is."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Score"]


@runtime_checkable
class Score(Protocol):
    """A frozen value that scores a tile of queries against a tile of keys."""

    @property
    def softcap(self) -> float | None:
        """Scores are capped smoothly to ±softcap after scaling, or None."""
        ...

    def default_scale(self, dim: int) -> float:
        """The factor on the score where the caller gives none."""
        ...

    def tile(
        self,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch heads columns dim"],
        i: Int[Tensor, " rows"],
        j: Int[Tensor, " columns"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """Score each query of the tile against each key; i and j are their positions."""
        ...
