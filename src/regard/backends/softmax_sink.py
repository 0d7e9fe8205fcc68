"""A softmax with a sink, from one without (Xiao et al. 2023, arXiv:2309.17453; as learned logits: gpt-oss)."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.backends.log_sums import merge

__all__ = ["with_sink"]


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
