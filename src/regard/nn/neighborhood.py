"""Self-attention in an image, a video or a line: each cell sees those around it."""

from typing import Any, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.masks import BoundMask, Mask, Neighborhood
from regard.nn.checks import both, mask_of
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.standard_names import standard_names

__all__ = ["NeighborhoodAttention"]


@standard_names()
class NeighborhoodAttention(nn.Module):
    """Multi-head self-attention of a cell with its neighbours in a grid (Hassani et al. 2023, arXiv:2204.07143).

    Args:
        embed_dim: Width of the cells.
        num_heads: Number of heads.
        kernel_size: Cells along an axis that are seen, the own one included: an odd number, or one for each axis.
        boundary: "shift" moves the window into the grid, as NATTEN does, "crop" cuts it off (masks.Neighborhood).
        options: As in MultiHeadAttention (num_kv_heads, bias, dropout, …).

    Cost: masks.Neighborhood tells it; no tensor of n × n.

    Raises:
        InputError: Widths and heads do not divide, the size is even, or the window is wider than the grid.

    >>> import torch
    >>> attend = NeighborhoodAttention(8, num_heads=2, kernel_size=3)
    >>> attend(torch.zeros(1, 5, 7, 8)).shape
    torch.Size([1, 5, 7, 8])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: int | tuple[int, ...],
        *,
        boundary: Literal["shift", "crop"] = "shift",
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(kernel_size, int | tuple | list):
            raise InputError(f"`kernel_size` must be an integer, or a tuple of one for each axis, got {kernel_size!r}")
        sizes = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
        Neighborhood((max(sizes, default=1),) * len(sizes), kernel_size, boundary)  # refuses here
        self.kernel_size, self.boundary = kernel_size, boundary
        self.attention = MultiHeadAttention(embed_dim, num_heads, **options)

    def forward(
        self,
        x: Float[Tensor, "batch *grid embed_dim"],
        *,
        mask: Mask | BoundMask | Tensor | None = None,
        key_padding_mask: Bool[Tensor, "batch *grid"] | None = None,
        need_weights: bool = False,
        **options: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Give (batch, *grid, embed_dim), and with `need_weights` those of the heads (batch, heads, cells, cells).

        `mask` counts the cells row by row, `key_padding_mask` is True for cells that none sees, and `options` are those
        of MultiHeadAttention's call: `backend`, `max_bytes`, …
        """
        if x.ndim < 3:
            raise InputError(f"`x` must be (batch, *grid, width), got shape {tuple(x.shape)}: write x[None] for one")
        grid = tuple(x.shape[1:-1])
        around = both(Neighborhood(grid, self.kernel_size, self.boundary), mask_of(mask, x.shape[0]))
        if key_padding_mask is not None:
            options["key_padding_mask"] = key_padding_mask.flatten(1)
        found: Any = self.attention(x.flatten(1, -2), mask=around, need_weights=need_weights, **options)
        if not need_weights:
            return found.unflatten(1, grid)  # type: ignore[no-any-return]
        output, seen = found
        return output.unflatten(1, grid), seen
