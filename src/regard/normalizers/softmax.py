"""What a normalizer is, and the usual one.

Softmax: softmax over the visible keys, with an optional sink.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import InputError

__all__ = ["Normalizer", "Softmax"]


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


@dataclass(frozen=True, eq=False)
class Softmax(Normalizer):
    """exp(s_ij) / (Σ_j exp(s_ij) + exp(sink_h)) over the visible keys j.

    `sink` (heads,) is one learned logit for each head. It takes weight but has no value, so rows sum to less than 1
    (GPT-OSS 2025, arXiv:2508.10925). It is not scaled. A row that sees no key has weights 0 and finite gradients.

    Cost: one exponential a pair. Of a row only its greatest score and its sum are needed, so that blocks can be merged
    in O(n) memory.

    >>> import torch
    >>> scores = torch.tensor([[[[0.0, 0.0, 9.0]]]])
    >>> Softmax().weights(scores, torch.tensor([True, True, False]))[0]
    tensor([[[[0.5000, 0.5000, 0.0000]]]])
    """

    sink: Float[Tensor, " heads"] | None = None

    def __post_init__(self) -> None:
        if self.sink is None:
            return
        if not isinstance(self.sink, Tensor):
            raise InputError(f"`sink` must be a tensor (heads,) or None, got {type(self.sink).__name__}")
        if not self.sink.is_floating_point():
            raise InputError(
                f"`sink` must be of a floating-point type, got {self.sink.dtype}: convert it with .float()"
            )

    def weights(
        self, scores: Float[Tensor, "batch heads queries keys"], visible: Bool[Tensor, "..."] | None
    ) -> tuple[Float[Tensor, "batch heads queries keys"], Float[Tensor, "batch heads queries"]]:
        """Weights, and the log-sum-exp of each row (−inf where a row sees nothing and there is no sink)."""
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        # The maximum cancels, so it carries no gradient; where it is −inf nothing is seen and 0 keeps exp finite.
        peak = scores.detach().amax(-1, keepdim=True)
        if self.sink is not None:
            sink = self.sink.to(scores.dtype)[None, :, None, None]
            peak = torch.maximum(peak, sink.detach())
        peak = peak.masked_fill(peak == -torch.inf, 0.0)
        exp = (scores - peak).exp()
        total = exp.sum(-1, keepdim=True)
        if self.sink is not None:
            total = total + (sink - peak).exp()
        nothing = total == 0
        weights = exp / total.masked_fill(nothing, 1.0)
        lse = (peak + total.masked_fill(nothing, 1.0).log()).masked_fill(nothing, -torch.inf)
        return weights, lse.squeeze(-1)

    def check(self, heads: int, device: torch.device) -> None:
        """One sink logit a head, on the device of q."""
        if self.sink is None:
            return
        if tuple(self.sink.shape) != (heads,):
            raise InputError(f"`sink` must have one logit a head ({heads},), got {tuple(self.sink.shape)}")
        if self.sink.device != device:
            raise InputError(f"`sink` must be on the device of q ({device}), got {self.sink.device}")
