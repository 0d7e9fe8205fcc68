"""The smallest language model: the next token depends only on the last one."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import InputError

__all__ = ["Markov"]


class Markov:
    """A table of logits as a continuation, to try decodings on and to show what they ask of a model.

        logits of the next token = table[last token]

    A. A. Markov's chain of letters (1913). It keeps the last token of each row, padding left out.

    Args:
        table: Row i holds the logits of the tokens that follow token i.

    Raises:
        InputError: The table is not square.

    >>> text = Markov(torch.tensor([[0.0, 5.0], [5.0, 0.0]]))
    >>> text.step(torch.tensor([[1, 0], [1, 1]])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """

    def __init__(self, table: Float[Tensor, "vocabulary vocabulary"]) -> None:
        if table.ndim != 2 or table.shape[0] != table.shape[1] or not table.is_floating_point():
            raise InputError(
                f"`table` must be floats (vocabulary, vocabulary), got {table.dtype} of shape {tuple(table.shape)}: "
                "row i holds the logits of what follows token i"
            )
        self.table = table
        self.last: Tensor | None = None

    def step(
        self, tokens: Int[Tensor, "rows n"], attention_mask: Bool[Tensor, "rows n"] | None = None
    ) -> Float[Tensor, "rows vocabulary"]:
        """Return the logits that follow the last token of each row, padding left out."""
        if attention_mask is None:
            self.last = tokens[:, -1]
        else:
            places = torch.arange(tokens.shape[1], device=tokens.device) * attention_mask
            self.last = tokens.gather(1, places.amax(1, keepdim=True))[:, 0]
        return self.table[self.last]

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these rows."""
        assert self.last is not None, "there are no tokens yet"
        self.last = self.last[rows]
