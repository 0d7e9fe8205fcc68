"""What a decoder goes on from: the encoder's part, which stays, and its own, which is new after every step."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["RecurrentState"]


class RecurrentState(NamedTuple):
    """Hidden states of all layers, what is fed to the next step, and the source as the attention reads it.

    >>> state = RecurrentState(torch.zeros(2, 1, 3), torch.tensor([4, 5]))
    >>> state.select(torch.tensor([1, 1, 0])).steps
    tensor([5, 5, 4])
    """

    hidden: Float[Tensor, "batch layers hidden"]
    steps: Int[Tensor, " batch"]  # target tokens read
    cells: Float[Tensor, "batch layers hidden"] | None = None  # an LSTM's
    fed: Float[Tensor, "batch hidden"] | None = None  # Luong's h̃
    context: Float[Tensor, "batch memory"] | None = None  # the fixed one, where it is fed
    memory: Float[Tensor, "batch source memory"] | None = None
    keys: Float[Tensor, "batch source key_width"] | None = None  # the memory as the score compares it
    real: Bool[Tensor, "batch source"] | None = None  # None: all are tokens

    def select(self, rows: Int[Tensor, " chosen"]) -> "RecurrentState":
        """Take these rows: repeated, reordered or left out."""
        return RecurrentState(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]

    def where(self, renewed: Bool[Tensor, " batch"], before: "RecurrentState") -> "RecurrentState":
        """Keep the state before, except in these rows."""
        changed = {}
        for name in ("hidden", "steps", "cells", "fed"):
            new, old = getattr(self, name), getattr(before, name)
            if new is not None:
                changed[name] = torch.where(renewed.view(-1, *[1] * (new.ndim - 1)), new, old)
        return self._replace(**changed)
