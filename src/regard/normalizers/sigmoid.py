"""Sigmoid: each pair for itself."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import InputError
from regard.normalizers.softmax import Normalizer

__all__ = ["Sigmoid"]


@dataclass(frozen=True)
class Sigmoid(Normalizer):
    """σ(s_ij + shift) for each visible pair (Ramapuram et al. 2024, arXiv:2409.04431); rows need not sum to 1.

    If `shift` is None, it is −ln(keys), as in the paper, of all keys of the call, also of those that a mask hides; the
    weights of a row then begin with a sum near 1. Give a `shift` where padding or later keys of a cache must change
    nothing. There is no log-sum-exp. The keys can be divided into two parts: the outputs of the parts add up to the
    output of the whole, if both parts get the `shift` of the whole.

    Cost: one exponential a pair, and nothing of a row is needed: blocks add up as they come, in O(n) memory.

    >>> import torch
    >>> Sigmoid(shift=0.0).weights(torch.tensor([[[[0.0, 2.0, 9.0]]]]), torch.tensor([True, True, False]))[0]
    tensor([[[[0.5000, 0.8808, 0.0000]]]])
    """

    shift: float | None = None

    def __post_init__(self) -> None:
        if self.shift is None:
            return
        # Not math.isfinite, which a compiler cannot ask of a symbol.
        if isinstance(self.shift, bool) or not isinstance(self.shift, int | float) or not abs(self.shift) < math.inf:
            raise InputError(f"`shift` must be a finite number or None for −ln(keys), got {self.shift}")

    def shift_for(self, keys: int) -> float:
        """The shift for a call with so many keys."""
        return -math.log(max(keys, 1)) if self.shift is None else self.shift

    def resolve(self, keys: int) -> "Sigmoid":
        """The same with its shift as a number; in compiled code as it is, as the logarithm would fix the length."""
        if torch.compiler.is_compiling():
            return self
        return Sigmoid(self.shift_for(keys))

    def weights(
        self, scores: Float[Tensor, "batch heads queries keys"], visible: Bool[Tensor, "..."] | None
    ) -> tuple[Float[Tensor, "batch heads queries keys"], None]:
        """Weights; there is no log-sum-exp."""
        keys = scores.shape[-1]
        if self.shift is None and torch.compiler.is_compiling():
            count = torch.ones((), dtype=torch.int64, device=scores.device) * keys  # as a number it would be fixed
            shift: Tensor | float = -count.double().log()
        else:
            shift = self.shift_for(keys)
        weights = torch.sigmoid(scores + shift)
        return weights if visible is None else weights.masked_fill(~visible, 0.0), None
