"""Tables with a vector for each distance, as Shaw's: their checks, their rows along a tile, and products with them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_parameter
from regard.diagonals import distances, skew
from regard.errors import InputError

__all__ = ["along", "by_key", "by_query", "check_table"]


def check_table(name: str, table: Tensor, width: str, left: int | None, right: int | None) -> None:
    """Raise an InputError where a table has not one row for each distance from −left to right."""
    check_parameter(name, table, f"(2 · clip + 1, {width})", f"(heads, 2 · clip + 1, {width})")
    rows, got = table.shape[-2], f"got {table.shape[-2]} in shape {tuple(table.shape)}"
    if left is None and right is None:
        if rows % 2 == 0:
            raise InputError(
                f"`{name}` must have an odd number of rows, one for each distance from −clip to clip, {got}: give "
                "`left=` and `right=` where the distances before and after the query are not equally many"
            )
        return
    for side, reach in (("left", left), ("right", right)):
        if isinstance(reach, bool) or not isinstance(reach, int) or reach < 0:
            raise InputError(
                f"`{side}` must be a number of distances, 0 or more, where the other side is given, got {reach!r}"
            )
    if rows != left + 1 + right:  # type: ignore[operator]  # the loop above refuses None
        raise InputError(f"`{name}` must have left + 1 + right = {left} + 1 + {right} rows, {got}")


def along(
    table: Float[Tensor, "*heads distances width"],
    i: Int[Tensor, " rows"],
    j: Int[Tensor, " columns"],
    left: int | None = None,
) -> Float[Tensor, "*heads diagonals width"]:
    """Give the row of a table for each diagonal of a tile, ordered by key − query; `left` is by default the half."""
    before = table.shape[-2] // 2 if left is None else left
    # In float32 at least, in which the gradient of a row that many diagonals share is summed.
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    return wide.index_select(-2, before - distances(i, j).clamp(before - table.shape[-2] + 1, before))


def by_query(
    q: Float[Tensor, "batch heads rows dim"], vectors: Float[Tensor, "*heads diagonals dim"]
) -> Float[Tensor, "batch heads rows columns"]:
    """Give q_i · a_ij for each pair of a tile, where `vectors` has a for each diagonal."""
    return skew(q @ vectors.to(q.dtype).transpose(-2, -1))


def by_key(
    k: Float[Tensor, "batch heads columns dim"], vectors: Float[Tensor, "*heads diagonals dim"]
) -> Float[Tensor, "batch heads rows columns"]:
    """Give k_j · a_ij for each pair of a tile; of the transposed tile the diagonals are in the opposite order."""
    return skew(k @ vectors.to(k.dtype).flip(-2).transpose(-2, -1)).transpose(-2, -1)
