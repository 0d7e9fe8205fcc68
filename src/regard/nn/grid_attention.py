"""Self-attention in an image, a video or a line: each cell sees those around it, or those of its rows and columns."""

import copy
from typing import Any, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.checks import check_size
from regard.errors import InputError
from regard.masks import BoundMask, Mask, Neighborhood
from regard.nn.checks import both, mask_of, public_module
from regard.nn.multi_head import MultiHeadAttention

__all__ = ["AxialAttention", "NeighborhoodAttention"]


@public_module(takes_jagged=False)
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

        In `mask` the cells are in row-major order. `key_padding_mask` is True for cells that no cell sees. `options`
        are those of MultiHeadAttention's call: `backend`, `max_bytes`, …
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


@public_module(
    mask="the lines of each axis have a length of their own: give `mask=` to the constructor, which is that of a line",
    key_padding_mask="lines have no padding: cut the grid, or hide positions of all lines by the constructor's `mask=`",
)
class AxialAttention(nn.Module):
    """Multi-head self-attention along each axis of a grid, with weights of its own for each axis.

    In the mode "sum" the output is A_1(x) + … + A_n(x), and every axis attends to x. In the mode "sequential" it is
    A_n(… A_1(x)): each axis attends to the output of the axis before it, so each cell depends on all cells (Ho et al.
    2019, arXiv:1912.12180). Axial-DeepLab (arXiv:2003.07853) begins with the height.

    Args:
        embed_dim: Width of the cells.
        num_heads: Number of heads.
        num_axes: Number of axes: 2 for an image, 3 for a video.
        merge_mode: How the axes come together.
        options: As in MultiHeadAttention (num_kv_heads, bias, rotary, dropout, …); each axis has a copy of its own.

    Cost: O(n · (sum of the sides)) time instead of O(n²).

    Raises:
        InputError: Widths and heads do not divide, or x has another number of axes.

    >>> import torch
    >>> attend = AxialAttention(8, num_heads=2, num_axes=3)
    >>> attend(torch.zeros(1, 4, 5, 6, 8)).shape
    torch.Size([1, 4, 5, 6, 8])
    >>> [tuple(one.shape) for one in attend(torch.zeros(1, 4, 5, 6, 8), need_weights=True)[1]]
    [(1, 5, 6, 2, 4, 4), (1, 4, 6, 2, 5, 5), (1, 4, 5, 2, 6, 6)]
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_axes: int = 2,
        merge_mode: Literal["sum", "sequential"] = "sum",
        **options: Any,
    ) -> None:
        super().__init__()
        if merge_mode not in ("sum", "sequential"):
            raise InputError(f'`merge_mode` must be "sum" or "sequential", got {merge_mode!r}')
        self.merge_mode = merge_mode
        self.along = nn.ModuleList(
            MultiHeadAttention(embed_dim, num_heads, **copy.deepcopy(options))
            for _ in range(check_size("num_axes", num_axes, "counts axes"))
        )

    def forward(
        self, x: Float[Tensor, "batch *grid embed_dim"], *, need_weights: bool = False, **options: Any
    ) -> Tensor | tuple[Tensor, tuple[Tensor, ...]]:
        """Let every cell look along each axis; give (batch, *grid, embed_dim), or a tuple of it and the weights.

        With `need_weights` the weights are a tuple with one tensor for each axis. Its shape is (batch, *the other axes,
        heads, side, side), the weights before dropout along each line of an axis with `side` cells. In the mode
        "sequential" an axis attends to the output of the axis before it. `options` are those of MultiHeadAttention's
        call and are the same for all axes: `backend`, `max_bytes` (of each axis), …
        """
        if x.ndim != len(self.along) + 2:
            raise InputError(
                f"`x` must be (batch, *grid, embed_dim) with {len(self.along)} axes, got shape {tuple(x.shape)}: "
                "build the module with another `num_axes=`, or write x[None] for one sample"
            )
        total: Tensor | None = None
        seen: list[Tensor] = []
        for axis, attend in enumerate(self.along, start=1):
            found: Any = attend(x.movedim(axis, -2), need_weights=need_weights, **options)
            lines, *of_lines = found if need_weights else (found,)
            seen += of_lines
            looked: Tensor = lines.movedim(-2, axis)
            if self.merge_mode == "sequential":
                x = looked
            total = looked if total is None or self.merge_mode == "sequential" else total + looked
        assert total is not None
        return (total, tuple(seen)) if need_weights else total
