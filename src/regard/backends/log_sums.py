"""Log-sum-exps in two numbers, so that sums over several sets of keys add up where float32 has no digits left.

ln Σ exp(s) = high + low: `high` is the log-sum-exp as a number of its type, `low` what rounding took from it. Where all
scores of a row are near −1e9 (padding written as a bias), float32 numbers are 64 apart, and `high` is the same for one
key and for a thousand: merged by `high` alone the halves of such a row would be added and not averaged, and
exp(s − high) would be 1 where the weight is 1/n.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.torch_private import get_unwrapped, is_functorch_wrapped_tensor

__all__ = ["LARGE", "are_rounded", "log_sum", "merge", "with_sink"]

LARGE = 2.0**10  # beyond it float32 rounds a log-sum-exp by more than 2⁻¹⁵, and every weight of the row with it


def log_sum(peak: Float[Tensor, "*rows"], total: Float[Tensor, "*rows"]) -> tuple[Tensor, Tensor]:
    """Give (high, low) of exp(peak) · total; (−inf, 0) where the total is 0."""
    logarithm = total.log()
    high = peak + logarithm
    low = peak - high + logarithm
    return high, low.masked_fill_(high.isinf(), 0.0)


def merge(
    high: Float[Tensor, "*#rows"],
    low: Float[Tensor, "*#rows"],
    other_high: Float[Tensor, "*#rows"],
    other_low: Float[Tensor, "*#rows"],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Give (high, low) of two sums together, and the share of either; two sums of nothing have no share."""
    peak = torch.maximum(high, other_high)
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    one, other = (high - peak + low).exp_(), (other_high - peak + other_low).exp_()
    total = one + other
    whole = total.masked_fill(total == 0, 1.0)
    return log_sum(peak, total), (one / whole, other / whole)


def are_rounded(high: Float[Tensor, "*rows"]) -> bool:
    """Check whether `high` alone would not do for some row."""
    while is_functorch_wrapped_tensor(high):  # of a batch that torch.func.vmap maps over nothing else can be asked
        high = get_unwrapped(high)
    size = high.abs()
    return bool(((size > LARGE) & (size < torch.inf)).any())


def with_sink(
    output: Float[Tensor, "batch heads queries value_dim"],
    lse: Float[Tensor, "batch heads queries"],
    sink: Float[Tensor, " heads"],
    low: Float[Tensor, "batch heads queries"] | None = None,
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads queries"]]:
    """Weights sum to σ(lse − sink) where a sink takes the rest; a row that sees nothing stays 0.

    `low` is what rounding took from the log-sum-exp, where it is known (see `log_sums`).
    """
    sink = sink.to(lse.dtype)[:, None]
    (lse, _), (left, _) = merge(lse, torch.zeros_like(lse) if low is None else low, sink, torch.zeros_like(sink))
    return (output.to(lse.dtype) * left[..., None]).to(output.dtype), lse
