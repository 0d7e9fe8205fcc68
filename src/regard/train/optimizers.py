"""AdamW as a configuration says it, over a model's parameters."""

import torch
from torch import nn

from regard.train.config import Optimizer

__all__ = ["optimizer_of"]


def optimizer_of(model: nn.Module, chosen: Optimizer) -> torch.optim.AdamW:
    """AdamW; only matrices are decayed: a decayed bias or norm only loses its scale (Loshchilov & Hutter 2019)."""
    learned = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in learned if one.ndim >= 2], "weight_decay": chosen.decay},
        {"params": [one for one in learned if one.ndim < 2], "weight_decay": 0.0},
    ]
    kept = [group for group in groups if group["params"]]
    return torch.optim.AdamW(kept, lr=chosen.rate, betas=chosen.betas, eps=chosen.eps)
