"""Convert weights of any layout to four dimensions, (batch, heads, queries, keys)."""

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.capture.call_site import Seen
from regard.capture.intercept.layout import Layout
from regard.capture.weights_from_qk import Given

__all__ = ["Merged", "show"]


class Merged:
    """Records which (batch, heads) were merged to one dimension, as bmm requires."""

    def __init__(self) -> None:
        self._whole = WeakIdKeyDictionary()

    def carry(self, tensors: list[Tensor], result: Tensor) -> None:
        """Process the result of one call on these tensors."""
        if result.ndim != 3:
            return
        for one in tensors:
            whole = tuple(one.shape)
            if one.ndim == 4 and tuple(result.shape) == (whole[0] * whole[1], *whole[2:]):
                self._whole[result] = whole[:2]
            elif one in self._whole and one.shape[0] == result.shape[0]:
                self._whole[result] = self._whole[one]

    def get(self, one: Tensor) -> tuple[int, int] | None:
        """Return the batch and heads of a tensor whose first dimension is both, or None."""
        found: tuple[int, int] | None = self._whole.get(one)
        return found if one.ndim == 3 else None


def show(matrix: Tensor, layout: Layout, merged: tuple[int, int] | None, values: Tensor, axis: int) -> Seen:
    """Return weights and the values they were multiplied by, whose dimension `axis` was summed, as a Seen."""
    values = values.movedim(axis, -2)
    order = [at for letter in "bwhqk" for at, one in enumerate(layout) if one == letter]
    if "w" in layout:  # windows are batch entries, since each sees only itself
        matrix = matrix.permute(order).flatten(0, layout.count("w") - 1)
        matrix = matrix.flatten(1, -3) if matrix.ndim > 3 else matrix[:, None]
        values = values.permute(*order[:-2], -2, -1) if values.ndim == len(order) else values
        values = values.reshape(*matrix.shape[:2], *values.shape[-2:])
        return Seen(Given(matrix), values, values=values)
    matrix = matrix.permute(order)
    if "q" not in layout:  # a single query without a dimension
        matrix, merged = matrix[..., None, :], None
    shared = (values.ndim == matrix.ndim == 5 and values.shape[2] == 1) or values.ndim + 1 == matrix.ndim == 5
    four = _four(matrix, merged, shared_values=shared)
    marks = values.reshape(*merged, *values.shape[-2:]) if merged and values.ndim == 3 else values
    marks = marks[(None,) * (4 - marks.ndim)] if marks.ndim < 3 else marks
    marks = marks.reshape(marks.shape[0], -1, *marks.shape[-2:])
    return Seen(Given(four), marks, values=marks)


def _four(matrix: Tensor, merged: tuple[int, int] | None, *, shared_values: bool) -> Tensor:
    """Return four dimensions: (n, m) is one sequence and head, (batch, n, m) has one head per sequence, further
    leading dimensions are batch.

    Five dimensions of which the third shares its values are (batch, kv_heads, group, n, m).
    """
    pairs = matrix.shape[-2:]
    if matrix.ndim == 2:
        return matrix[None, None]
    if matrix.ndim == 3:
        return matrix.reshape(*merged, *pairs) if merged else matrix[:, None]
    if shared_values:
        return matrix.reshape(matrix.shape[0], -1, *pairs)
    return matrix.reshape(-1, *matrix.shape[-3:])
