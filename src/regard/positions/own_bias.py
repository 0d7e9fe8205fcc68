"""Find out for which sequences and heads a bias of one's own differs, where it does not specify that itself."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from regard.positions.base import Bias, Relative

__all__ = ["with_leading"]


def with_leading(bias: Bias, batch: int, heads: int, i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]) -> Bias:
    """Give a bias whose `leading` is right in a call of so many sequences and heads.

    A bias that defines `leading`, or is Relative, is given back. Any other is evaluated at one pair of positions for
    all sequences and heads: the shape of the result shows which of the two it reads.
    """
    if type(bias).leading is not Bias.leading or isinstance(bias, Relative):
        return bias
    shape = bias.tile(slice(0, batch), slice(0, heads), i[:1], j[:1]).shape
    return bias if tuple(shape[:2]) == (1, 1) else _WithLeading(bias, (shape[0], shape[1]))


@dataclass(frozen=True, eq=False)
class _WithLeading(Bias):
    bias: Bias
    sizes: tuple[int, int]

    @property
    def leading(self) -> tuple[int, int]:
        return self.sizes

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return self.bias(batch, head, i, j)

    def tile(self, batch: slice, heads: slice, i: Tensor, j: Tensor) -> Tensor:
        values = self.bias.tile(batch, heads, i, j)
        for dim, (part, size) in enumerate(zip((batch, heads), self.sizes, strict=True)):
            if 1 < size == values.shape[dim] != part.stop - part.start:  # numbers of all, which it did not look up
                values = values.narrow(dim, part.start, part.stop - part.start)
        return values
