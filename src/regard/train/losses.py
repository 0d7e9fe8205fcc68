"""Cross-entropy summed over labels, with label smoothing."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

__all__ = ["IGNORED", "summed_cross_entropy"]

IGNORED = -100  # the label of what is not predicted


def summed_cross_entropy(
    logits: Float[Tensor, "*batch labels"], labels: Int[Tensor, " *batch"], label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return Σ over all labels but −100 of −(1 − ε) log p(label) − ε · mean over all classes of log p, in nats.

    It is a sum, to be divided once by the number of labels of a whole step: then neither gradient accumulation nor the
    number of processes changes the loss. ε is `label_smoothing` (Szegedy et al. 2016, arXiv:1512.00567).

    >>> import torch
    >>> round(float(summed_cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, -100]))), 4)  # 2 log 4
    2.7726
    """
    return functional.cross_entropy(
        logits.flatten(0, -2).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
