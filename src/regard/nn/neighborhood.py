"""Self-attention in an image, a video or a line: each cell sees those around it."""

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.masks import Neighborhood
from regard.nn.multi_head import MultiHeadAttention
from regard.problem import DEFAULT_MAX_BYTES

__all__ = ["NeighborhoodAttention"]


class NeighborhoodAttention(nn.Module):
    """Multi-head self-attention of a cell with its neighbours in a grid (Hassani et al. 2023, arXiv:2204.07143).

    Args:
        embed_dim: Width of the cells.
        num_heads: Number of heads.
        size: Cells along an axis that are seen, the own one included: an odd number, or one for each axis.
        border: "shift" moves the window into the grid, as NATTEN does, "crop" cuts it off (masks.Neighborhood).
        options: As in MultiHeadAttention (num_kv_heads, bias, dropout, …).

    Cost: masks.Neighborhood tells it; no tensor of n × n.

    Raises:
        InputError: Widths and heads do not divide, the size is even, or the window is wider than the grid.

    >>> import torch
    >>> attend = NeighborhoodAttention(8, num_heads=2, size=3)
    >>> attend(torch.zeros(1, 5, 7, 8)).shape
    torch.Size([1, 5, 7, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        size: int | tuple[int, ...],
        *,
        border: Literal["shift", "crop"] = "shift",
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(size, int | tuple | list):
            raise InputError(f"`size` must be an integer, or a tuple of one for each axis, got {size!r}")
        sizes = (size,) if isinstance(size, int) else tuple(size)
        Neighborhood((max(sizes, default=1),) * len(sizes), size, border)  # refuses here
        self.size, self.border = size, border
        self.attention = MultiHeadAttention(embed_dim, num_heads, **options)

    def forward(
        self,
        x: Float[Tensor, "batch *grid embed_dim"],
        *,
        need_weights: bool = False,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (batch, *grid, embed_dim), and with `need_weights` those of the heads (batch, heads, cells, cells).

        Weights of more than `max_bytes` are refused.
        """
        if x.ndim < 3:
            raise InputError(
                f"`x` must be (batch, *grid, embed_dim), got shape {tuple(x.shape)}: write x[None] for one"
            )
        grid = tuple(x.shape[1:-1])
        mask = Neighborhood(grid, self.size, self.border)
        found: Any = self.attention(x.flatten(1, -2), mask=mask, need_weights=need_weights, max_bytes=max_bytes)
        if not need_weights:
            return found.unflatten(1, grid)  # type: ignore[no-any-return]
        output, seen = found
        return output.unflatten(1, grid), seen
