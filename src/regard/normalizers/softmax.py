"""What a normalizer is, and the usual one.

Softmax: softmax over the visible keys, with an optional sink.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import InputError
from regard.tensors import are_in_memory
from regard.torch_private import peek_interpreter_stack

__all__ = ["Normalizer", "Softmax", "Sums"]


class Sums(NamedTuple):
    """A row's sum of exponentials, total · exp(peak), in two numbers: a logarithm alone would round every weight of a
    row with large scores. The peak carries no gradient; the total of a row that sees nothing is 0.
    """

    peak: Float[Tensor, "batch heads rows"]
    total: Float[Tensor, "batch heads rows"]

    @classmethod
    def of(cls, lse: Float[Tensor, "batch heads rows"]) -> "Sums":
        """The sums of which this is the logarithm, with its gradient."""
        peak = lse.detach()
        nothing = peak == -torch.inf
        peak = peak.masked_fill(nothing, 0.0)
        return cls(peak, (lse.masked_fill(nothing, 0.0) - peak).exp().masked_fill(nothing, 0.0))

    @property
    def logarithm(self) -> Float[Tensor, "batch heads rows"]:
        """The log-sum-exp of each row; −inf where it sees nothing."""
        nothing = self.total == 0
        return (self.peak + self.total.masked_fill(nothing, 1.0).log()).masked_fill(nothing, -torch.inf)


class Normalizer:
    """A frozen value that turns the scores of a row into weights; hidden pairs get weight 0."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Have a normalizer with weights of its own be asked for these, and not for what its parent has."""
        super().__init_subclass__(**options)
        if "weights" in vars(cls) and "normalize" not in vars(cls):
            cls.normalize = Normalizer.normalize  # type: ignore[method-assign]

    def weights(
        self, scores: Float[Tensor, "batch heads queries keys"], visible: Bool[Tensor, "..."] | None
    ) -> tuple[Float[Tensor, "batch heads queries keys"], Float[Tensor, "batch heads queries"] | None]:
        """Give the weights, and the log-sum-exp of each row where the normalizer has one.

        A call asks for all rows of all sequences and heads, or for some rows at a time, with all their keys.
        """
        raise NotImplementedError  # each normalizer defines it

    def normalize(
        self, scores: Float[Tensor, "batch heads rows keys"], visible: Bool[Tensor, "..."] | None, *, wants_sums: bool
    ) -> tuple[Float[Tensor, "batch heads rows keys"], Sums | None]:
        """Give the weights, and the sums of the rows where they are wanted and the normalizer has them."""
        weights, lse = self.weights(scores, visible)
        return weights, None if lse is None else Sums.of(lse)

    def check(self, heads: int, device: torch.device) -> None:
        """Raise an InputError where the normalizer does not fit these heads or this device."""

    def resolve(self, keys: int) -> "Normalizer":
        """Replace what depends on the number of keys by a number, so that parts of a row are normalized alike."""
        return self

    def of_heads(self, heads: slice) -> "Normalizer":
        """Return the normalizer of some of q's heads."""
        return self


@dataclass(frozen=True, eq=False)
class Softmax(Normalizer):
    """exp(s_ij) / (Σ_j exp(s_ij) + exp(sink_h)) over the visible keys j.

    `sink` (heads,) is one learned logit for each head. It takes weight but has no value, so rows sum to less than 1
    (GPT-OSS 2025, arXiv:2508.10925). It is not scaled. A row that sees no key has weights 0 and finite gradients.

    Cost: one exponential a pair. Parts of a row can be merged by their greatest scores and their sums.

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
        weights, sums = Softmax.normalize(self, scores, visible, wants_sums=True)
        assert sums is not None
        return weights, sums.logarithm

    def normalize(
        self, scores: Float[Tensor, "batch heads rows keys"], visible: Bool[Tensor, "..."] | None, *, wants_sums: bool
    ) -> tuple[Float[Tensor, "batch heads rows keys"], Sums | None]:
        """Weights, and the sums with the sink."""
        if visible is not None:
            scores = torch.where(visible, scores, -torch.inf)
        if self.sink is not None:  # one more key
            sink = self.sink.to(scores.dtype)[:, None, None]
            scores = torch.cat([scores, sink.expand(*scores.shape[:3], 1)], -1)
        weights = _softmax(scores)
        sums = _sums(scores) if wants_sums else None
        return weights if self.sink is None else weights[..., :-1], sums

    def share(
        self, scores: Float[Tensor, "batch heads rows keys"], visible: Bool[Tensor, "..."] | None, sums: Sums
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Weights of some keys of rows whose sums over all keys, with the sink, are known."""
        if visible is not None:
            scores = torch.where(visible, scores, -torch.inf)
        total = sums.total.masked_fill(sums.total == 0, 1.0)
        return (scores - sums.peak.unsqueeze(-1)).exp() / total.unsqueeze(-1)

    def of_heads(self, heads: slice) -> "Softmax":
        """With the sinks of these heads."""
        return self if self.sink is None else replace(self, sink=self.sink[heads])

    def check(self, heads: int, device: torch.device) -> None:
        """One sink logit a head, on the device of q."""
        if self.sink is None:
            return
        if tuple(self.sink.shape) != (heads,):
            raise InputError(f"`sink` must have one logit a head ({heads},), got {tuple(self.sink.shape)}")
        if self.sink.device != device:
            raise InputError(f"`sink` must be on the device of q ({device}), got {self.sink.device}")


def _softmax(scores: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """The softmax of each row; zeros, with gradients of zeros, where all scores are −inf."""
    looks = scores.is_cpu and not torch.compiler.is_compiling() and are_in_memory(scores)
    if looks and peek_interpreter_stack() is None:
        weights = scores.softmax(-1)
        if not bool(weights[..., 0].isnan().any()):
            return weights
    nothing = scores.detach().amax(-1, keepdim=True) == -torch.inf
    return scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)


def _sums(scores: Float[Tensor, "batch heads rows keys"]) -> Sums:
    # The peak cancels, so it carries no gradient; where it is −inf nothing is seen, and 0 keeps exp finite.
    peak = scores.detach().amax(-1)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    return Sums(peak, (scores - peak.unsqueeze(-1)).exp().sum(-1))
