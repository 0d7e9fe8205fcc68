"""Pool runs of rows or columns, of which the first and the last may be cut."""

from typing import Literal

from torch import Tensor
from torch.nn import functional

__all__ = ["pool"]


def pool(x: Tensor, dim: int, offset: int, width: int, how: Literal["sum", "max"]) -> Tensor:
    """Pool runs of `width` along `dim`, of which the first begins `offset` before x; 0 is the neutral element for
    weights.
    """
    if width == 1:
        return x
    length = x.shape[dim]
    if offset + length <= width:  # a part of one run
        return x.sum(dim, keepdim=True) if how == "sum" else x.amax(dim, keepdim=True)
    before, after = offset, -(offset + length) % width
    if before or after:
        x = functional.pad(x, (before, after) if dim == 2 else (0, 0, before, after))
    if dim == 2 and how == "max":
        return functional.max_pool1d(x, width)  # five times as fast as a maximum over a short last dimension
    shape = (*x.shape[:dim], x.shape[dim] // width, width, *x.shape[dim + 1 :])
    runs = x.reshape(shape)
    return runs.sum(dim + 1) if how == "sum" else runs.amax(dim + 1)
