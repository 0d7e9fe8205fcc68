"""The log-probability of each token of an answer, by one forward of a causal language model."""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.record.text_parts import Span

__all__ = ["device_of", "log_probs_of"]


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter."""
    return next(model.parameters()).device


def log_probs_of(
    model: nn.Module, ids: Sequence[int], first: int, hidden: Span | None = None
) -> npt.NDArray[np.float64]:
    """Return the log-probability of each id from `first` on; keys of the tokens `hidden` are hidden by a mask."""
    input_ids = torch.tensor([list(ids)], device=device_of(model))
    known = inspect.signature(model.forward).parameters
    options: dict[str, Any] = {"use_cache": False, "logits_to_keep": len(ids) - first + 1}
    options = {name: one for name, one in options.items() if name in known}
    if hidden is not None:
        mask = torch.ones_like(input_ids)
        mask[:, hidden[0] : hidden[1]] = 0
        options["attention_mask"] = mask
        if "position_ids" in known:  # else counted by some models from the mask
            options["position_ids"] = torch.arange(len(ids), device=mask.device)[None]
    with torch.no_grad():
        logits: Float[Tensor, "1 tokens vocabulary"] = model(input_ids, **options).logits
    rows = logits[0, -(len(ids) - first) - 1 : -1].double().log_softmax(-1)
    return np.asarray(rows.gather(1, input_ids[0, first:, None])[:, 0].cpu().numpy())
