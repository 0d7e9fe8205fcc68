"""AdamW, configured, over the parameters of a model."""

import torch
from torch import nn

from regard.train.config import Training

__all__ = ["optimizer_of"]


def optimizer_of(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """Return AdamW over the parameters that are trained; only matrices decay, neither biases nor norms."""
    learned = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in learned if one.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [one for one in learned if one.ndim < 2], "weight_decay": 0.0},
    ]
    kept = [group for group in groups if group["params"]]
    betas = training.adam_beta1, training.adam_beta2
    return torch.optim.AdamW(kept, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon)
