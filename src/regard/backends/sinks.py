"""A softmax with a sink, from one without (Xiao et al. 2023, arXiv:2309.17453; as learned logits: gpt-oss)."""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["with_sink"]


def with_sink(
    output: Float[Tensor, "batch heads queries value_dim"],
    lse: Float[Tensor, "batch heads queries"],
    sink: Float[Tensor, " heads"],
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads queries"]]:
    """Weights sum to σ(lse − sink) where a sink takes the rest; a row that sees nothing stays 0."""
    sink = sink.to(lse.dtype)[:, None]
    left = torch.sigmoid(lse - sink).masked_fill(lse == -torch.inf, 0.0)
    return (output.to(lse.dtype) * left[..., None]).to(output.dtype), torch.logaddexp(lse, sink)
