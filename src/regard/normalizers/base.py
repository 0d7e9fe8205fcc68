"""What a normalizer is."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["Normalizer"]


class Normalizer:
    """A frozen value that turns the scores of a row into weights; hidden pairs get weight 0."""

    def weights(
        self, scores: Float[Tensor, "batch heads queries keys"], visible: Bool[Tensor, "..."] | None
    ) -> tuple[Float[Tensor, "batch heads queries keys"], Float[Tensor, "batch heads queries"] | None]:
        """Give the weights, and the log-sum-exp of each row where the normalizer has one."""
        raise NotImplementedError  # each normalizer defines it

    def check(self, heads: int, device: torch.device) -> None:
        """Raise an InputError where the normalizer does not fit these heads or this device."""

    def resolve(self, keys: int) -> "Normalizer":
        """Replace what depends on the number of keys by a number, so that parts of a row are normalized alike."""
        return self
