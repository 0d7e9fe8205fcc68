"""Axial attention: along the rows, along the columns, along any number of axes."""

import copy
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import InputError
from regard.nn.checks import check_size
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.standard_names import standard_names

__all__ = ["AxialAttention"]


@standard_names(
    mask="the lines of each axis have a length of their own: give `mask=` to the constructor, which is that of a line",
    key_padding_mask="lines have no padding: cut the grid, or hide positions of all lines by the constructor's `mask=`",
)
class AxialAttention(nn.Module):
    """Multi-head self-attention along each axis of a grid, with weights of its own for each axis.

    "sum": A_1(x) + … + A_n(x), every axis looking at x. "sequential": A_n(… A_1(x)), one after the other, so that each
    cell has seen all (Ho et al. 2019, arXiv:1912.12180; Axial-DeepLab, arXiv:2003.07853, goes along the height first).

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

        With `need_weights` these are a tuple with a tensor for each axis, dense along it: (batch, *the other axes,
        heads, side, side), those of the lines along an axis with `side` cells, before dropout. In "sequential" an axis
        looks at what the one before it gave. `options` are those of MultiHeadAttention's call, the same
        for all axes: `backend`, `max_bytes` (of each axis), …
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
