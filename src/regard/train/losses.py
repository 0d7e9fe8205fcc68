"""Cross-entropy over the tokens that are asked for, with label smoothing."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

__all__ = ["IGNORED", "summed_cross_entropy"]

IGNORED = -100  # a label that is not asked for


def summed_cross_entropy(
    logits: Float[Tensor, "*batch labels"], labels: Int[Tensor, " *batch"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Σ over the labels asked for of −(1 − ε) log p(label) − ε · mean over all classes of log p, in nats.

    It is a sum, so that who adds several parts divides by all their labels once: then neither the split of a batch
    into parts nor its split over processes changes the loss. Szegedy et al. (2016, arXiv:1512.00567).

    >>> import torch
    >>> round(float(summed_cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, -100]))), 4)  # 2 log 4
    2.7726
    """
    return functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )
