"""What a decoder continues from: the encoder's part, which stays, and its own, which is new after every step."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["RecurrentState"]


class RecurrentState(NamedTuple):
    """Hidden states of all layers, what the next step needs beside them, and what the attention needs of the source.

    >>> state = RecurrentState(torch.zeros(2, 1, 3), torch.tensor([4, 5]))
    >>> state.select(torch.tensor([1, 1, 0])).steps
    tensor([5, 5, 4])
    """

    hidden_state: Float[Tensor, "batch layers hidden"]
    steps: Int[Tensor, " batch"]  # number of target tokens so far
    cell_state: Float[Tensor, "batch layers hidden"] | None = None  # an LSTM's
    attentional_hidden: Float[Tensor, "batch hidden"] | None = None  # Luong's h̃
    context: Float[Tensor, "batch memory"] | None = None  # the fixed vector, where every step gets it
    encoder_last_hidden_state: Float[Tensor, "batch source memory"] | None = None
    proj_keys: Float[Tensor, "batch source key_width"] | None = None  # what the score compares
    encoder_attention_mask: Bool[Tensor, "batch source"] | None = None  # None: all are tokens

    def select(self, rows: Int[Tensor, " chosen"]) -> "RecurrentState":
        """Take these rows: repeated, reordered or left out."""
        return RecurrentState(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]

    def where(self, condition: Bool[Tensor, " batch"], other: "RecurrentState") -> "RecurrentState":
        """Take this state in the rows where `condition` is True, and the other elsewhere, as torch.Tensor.where."""
        changed = {}
        for name in ("hidden_state", "steps", "cell_state", "attentional_hidden"):
            new, old = getattr(self, name), getattr(other, name)
            if new is not None:
                changed[name] = torch.where(condition.view(-1, *[1] * (new.ndim - 1)), new, old)
        return self._replace(**changed)
