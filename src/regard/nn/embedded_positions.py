"""Positions that are added to the embeddings, as modules: sinusoids, and a learned table."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_probability, check_size
from regard.errors import InputError
from regard.nn.checks import check_width, public_module
from regard.nn.feed_forward import dropped
from regard.nn.value_module import ComputedBuffers
from regard.positions import learned, sinusoidal

__all__ = ["LearnedPositions", "PositionalEncoding"]


@public_module(takes_jagged=False)
class PositionalEncoding(ComputedBuffers):
    """Add a fixed table of sines and cosines (Vaswani et al. 2017, 3.5, arXiv:1706.03762).

    Formula: dropout(x_p + [sin(p ω_i), cos(p ω_i)]), ω_i = 10000^(−2i/embed_dim), interleaved

    If the width is odd, the last cosine is missing. The table is a buffer that is not part of the state dict. It
    follows `.to()`, and checkpoints without a table can be loaded. `positions.sinusoidal` has the orders of other
    libraries.

    Args:
        embed_dim: Width of the embeddings; it may be odd.
        max_len: How many positions the table has.
        dropout: The probability with which a number of the sum is dropped, in training mode only.

    Raises:
        InputError: A text is longer than the table.

    >>> PositionalEncoding(3, max_len=2)(torch.zeros(1, 2, 3))
    tensor([[[0.0000, 1.0000, 0.0000],
             [0.8415, 0.5403, 0.0022]]])
    """

    table: Tensor

    def __init__(self, embed_dim: int, max_len: int = 5000, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed_dim, self.dropout = (
            check_size("embed_dim", embed_dim, "is that of x"),
            check_probability("dropout", dropout),
        )
        self._max_len = check_size("max_len", max_len, "counts positions")
        self.make_buffers()

    def make_buffers(self) -> None:
        """Compute the table, which no checkpoint holds."""
        self.register_buffer("table", sinusoidal(self._max_len, self.embed_dim), persistent=False)

    def forward(self, x: Float[Tensor, "*batch n embed_dim"], start: int = 0) -> Float[Tensor, "*batch n embed_dim"]:
        """Add the rows from `start` on, which is the number of tokens in a cache."""
        check_width("x", x, self.embed_dim, "embed_dim")
        n, length = x.shape[-2], self.table.shape[0]
        if start < 0 or start + n > length:
            raise InputError(
                f"the table has positions 0 to {length - 1}, and x has {n} from {start} on: build it with "
                f"max_len={start + n} at least"
            )
        return dropped(x + self.table[start : start + n].to(x.dtype), self.dropout, self.training)


@public_module(takes_jagged=False)
class LearnedPositions(nn.Module):
    """Add a learned vector for each position (Gehring et al. 2017, arXiv:1705.03122; BERT, GPT-2).

    Formula: dropout(x_p + table[p])

    The parameter `weight` (max_len, embed_dim) begins normal with a standard deviation of 0.02, as in BERT.

    Args:
        embed_dim: Width of the embeddings.
        max_len: How many positions there are; a longer text is refused.
        dropout: The probability with which a number of the sum is dropped, in training mode only.
        device, dtype: Of the table.

    Raises:
        InputError: A text is longer than the table.

    >>> LearnedPositions(4, max_len=9)(torch.zeros(2, 5, 4)).shape
    torch.Size([2, 5, 4])
    """

    def __init__(
        self,
        embed_dim: int,
        max_len: int,
        *,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.dropout = (
            check_size("embed_dim", embed_dim, "is that of x"),
            check_probability("dropout", dropout),
        )
        shape = (check_size("max_len", max_len, "counts positions"), embed_dim)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Float[Tensor, "*batch n embed_dim"], start: int = 0) -> Float[Tensor, "*batch n embed_dim"]:
        """Add the rows from `start` on, which is the number of tokens in a cache."""
        check_width("x", x, self.embed_dim, "embed_dim")
        summed = x + learned(self.weight, x.shape[-2], start=start)
        return dropped(summed, self.dropout, self.training)
