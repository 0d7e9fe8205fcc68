"""What a bias is: a frozen value that gives a number for each pair of positions.

A bias is added to the scores (ALiBi, T5), or multiplies the weights as `weight_factor=` (Luong's Gaussian).
Tensors in its fields get gradients.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_parameter
from regard.diagonals import distances, spread
from regard.values import tensors

__all__ = ["Bias", "Relative", "Rotary", "WithLeading", "check_table", "is_by_distance", "look_up", "with_leading"]


class Bias:
    """A number for each pair of positions: a frozen dataclass that defines `__call__`.

    To define a bias of your own, write a frozen dataclass (`eq=False` if it holds tensors). Tensors in its fields get
    gradients on every backend. The four arguments of `__call__` are tensors of indices and positions that broadcast. If
    the bias has values for each sequence or head, index them with `batch` and `head`:

    >>> import regard
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False)
    ... class Recent(Bias):
    ...     slope: Tensor  # (heads,)
    ...
    ...     def __call__(self, batch, head, i, j):
    ...         return -self.slope[head] * (i - j)
    >>> x = torch.zeros(1, 2, 2, 2)
    >>> regard.attention(x, x, x, bias=Recent(torch.tensor([0.0, 1.0])), return_weights=True)[1][0, :, 1]
    tensor([[0.5000, 0.5000],
            [0.2689, 0.7311]])

    `leading` is optional. Without it, a call evaluates the bias at one pair for all sequences and heads; the shape of
    the result shows whether the bias uses `batch` and `head`.
    """

    relative: ClassVar[bool] = False
    role: ClassVar[Literal["bias", "weight_factor"] | None] = None  # the only argument it can be passed as, if any

    def __call__(
        self,
        batch: Int[Tensor, "*#pairs"],
        head: Int[Tensor, "*#pairs"],
        i: Int[Tensor, "*#pairs"],
        j: Int[Tensor, "*#pairs"],
    ) -> Float[Tensor, "*#pairs"]:
        """Give the number for each pair of positions; the four arguments broadcast."""
        raise NotImplementedError  # each bias defines it

    @property
    def leading(self) -> tuple[int, int]:
        """Batch and heads that the bias is for; 1 where it holds for all. A call finds out where it is not defined."""
        return 1, 1

    def resolve(self, queries: int, keys: int, q_offset: int) -> "Bias":
        """Replace what depends on where the queries start by a bias over positions alone; check sizes."""
        return self

    def tile(
        self, batch: slice, heads: slice, i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]
    ) -> Float[Tensor, "#batch #heads rows columns"]:
        """Give the numbers of some sequences and heads for two runs of consecutive positions."""
        # Without `leading` it may differ for each sequence and head: a bias that reads neither gives 1 for both.
        sizes = (2, 2) if type(self).leading is Bias.leading else self.leading
        b = torch.arange(batch.start, batch.stop, device=i.device) if sizes[0] > 1 else i.new_zeros(1)
        h = torch.arange(heads.start, heads.stop, device=i.device) if sizes[1] > 1 else i.new_zeros(1)
        values = self(b[:, None, None, None], h[:, None, None], i[:, None], j)
        return values.expand(torch.broadcast_shapes(values.shape, (1, 1, i.shape[0], j.shape[0])))

    def within(self, batch: slice, heads: slice, rows: slice, columns: slice) -> "Bias":
        """Give a bias with the same numbers for some sequences, heads and positions, whose tensors are the parts of
        these that are needed, as views; itself where it holds no tensor of pairs.
        """
        return self


class Relative(Bias):
    """A bias that depends on the distance i − j alone: it defines `diagonals` instead of `__call__`."""

    relative: ClassVar[bool] = True

    @property
    def leading(self) -> tuple[int, int]:
        """As many heads as `diagonals` gives numbers for."""
        device = next((one.device for one in tensors(self)), None)
        return 1, self.diagonals(torch.zeros(1, dtype=torch.int64, device=device)).shape[0]

    def diagonals(self, distance: Int[Tensor, " n"]) -> Float[Tensor, "#heads n"]:
        """Give each head's number for each distance i − j, or one number for all heads."""
        raise NotImplementedError  # each relative bias defines it

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Look the distance up among all that occur."""
        distance = i - j
        least = distance.min()
        values = self.diagonals(torch.arange(int(least), int(distance.max()) + 1, device=i.device))
        return values[head if values.shape[0] > 1 else torch.zeros_like(head), distance - least]

    def tile(
        self, batch: slice, heads: slice, i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]
    ) -> Float[Tensor, "1 #heads rows columns"]:
        """Write the numbers along the diagonals."""
        values = self.diagonals(distances(i, j))
        return spread(values[heads] if values.shape[0] > 1 else values, i.shape[0])[None]


def is_by_distance(bias: object) -> TypeGuard[Relative]:
    """Whether the numbers of a bias are those of its `diagonals`, which need be asked for once a distance."""
    return isinstance(bias, Relative) and type(bias).tile is Relative.tile


class Rotary:
    """A frozen value that turns queries and keys by their positions, so that their product knows the distance."""

    def check(self, dim: int) -> None:
        """Raise an InputError where vectors of this width cannot be turned."""

    def resolve(self, queries: int, keys: int, q_offset: int) -> "Rotary":
        """Replace what depends on the length by a rotation of positions alone, the same for queries and keys."""
        return self

    def rotate(
        self, x: Float[Tensor, "*leading n dim"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "*leading n dim"]:
        """Turn each vector by its position."""
        raise NotImplementedError  # each rotary embedding defines it


def with_leading(bias: Bias, batch: int, heads: int, i: Int[Tensor, " rows"], j: Int[Tensor, " columns"]) -> Bias:
    """Give a bias whose `leading` is right in a call of so many sequences and heads.

    A bias that defines `leading`, or is Relative, is given back. Any other is evaluated at one pair of positions for
    all sequences and heads: the shape of the result shows which of the two it reads.
    """
    if type(bias).leading is not Bias.leading or isinstance(bias, Relative):
        return bias
    shape = bias.tile(slice(0, batch), slice(0, heads), i[:1], j[:1]).shape
    return bias if tuple(shape[:2]) == (1, 1) else WithLeading(bias, (shape[0], shape[1]))


@dataclass(frozen=True, eq=False)
class WithLeading(Bias):
    """A bias with its `leading`, for as many sequences and heads as it distinguishes."""

    bias: Bias
    sizes: tuple[int, int]

    @property
    def leading(self) -> tuple[int, int]:
        """The sizes."""
        return self.sizes

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The numbers of the bias."""
        return self.bias(batch, head, i, j)

    def tile(self, batch: slice, heads: slice, i: Tensor, j: Tensor) -> Tensor:
        """The part for these sequences and heads."""
        values = self.bias.tile(batch, heads, i, j)
        for dim, (part, size) in enumerate(zip((batch, heads), self.sizes, strict=True)):
            if 1 < size == values.shape[dim] != part.stop - part.start:  # numbers of all, which it did not look up
                values = values.narrow(dim, part.start, part.stop - part.start)
        return values


def check_table(name: str, table: object, rows: str) -> None:
    """Raise unless `table` is a floating-point tensor (`rows`, heads) that is not empty."""
    check_parameter(name, table, f"({rows}, heads)", way_out=f": one number for all heads is {name}[:, None]")


def look_up(table: Float[Tensor, "rows heads"], *at: Int[Tensor, "*#found"] | slice) -> Float[Tensor, "*found"]:
    """Take numbers of a table, in its type, so that the gradient of one that is taken often is summed in float32."""
    return table.to(torch.promote_types(table.dtype, torch.float32))[at].to(table.dtype)
