"""DenseBias: any tensor as a bias, added to the scores."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import InputError
from regard.positions.base import Bias
from regard.tensors import has_numbers

__all__ = ["DenseBias"]


@dataclass(frozen=True, eq=False)
class DenseBias(Bias):
    """values[b, h, i, j]: a tensor (queries, keys) or (batch, heads, queries, keys), any of them 1.

    Rows are the queries in order, wherever they stand. `bias=` takes such a tensor as it is and makes this of it.

    Cost: the tensor itself, up to batch · heads · queries · keys numbers; one addition a pair.

    >>> import torch
    >>> DenseBias(torch.tensor([[1.0, 2.0]])).resolve(2, 2, 0).tile(slice(0, 1), slice(0, 1), *[torch.arange(2)] * 2)
    tensor([[[[1., 2.],
              [1., 2.]]]])
    """

    values: Float[Tensor, "..."]
    q_offset: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.values, Tensor) or self.values.layout != torch.strided:
            kind = self.values.layout if isinstance(self.values, Tensor) else type(self.values).__name__
            raise InputError(
                f"`bias` must be a dense tensor, got {kind}: convert it with torch.as_tensor or .to_dense()"
            )
        if not self.values.is_floating_point():
            raise InputError(
                f"`bias` is added to the scores and must be of a floating-point type, got {self.values.dtype}: a "
                "boolean tensor is `mask=`, zeros and ones become one with masks.from_attention_mask"
            )
        if self.values.ndim > 4 or self.values.ndim == 3:
            raise InputError(
                "`bias` must be (queries, keys) or (batch, heads, queries, keys), any of them 1, got "
                f"{tuple(self.values.shape)}: write bias[None] for one bias a head"
            )

    @property
    def four(self) -> Float[Tensor, "#batch #heads #queries #keys"]:
        """The tensor with all four dimensions."""
        return self.values.reshape((1,) * (4 - self.values.ndim) + tuple(self.values.shape))

    @property
    def leading(self) -> tuple[int, int]:
        """Those of the tensor."""
        return self.four.shape[0], self.four.shape[1]

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The entry of the tensor."""
        four = self.four
        places = [batch, head, i - self.q_offset, j]
        return four[
            tuple(at if size > 1 else torch.zeros_like(at) for at, size in zip(places, four.shape, strict=True))
        ]

    def resolve(self, queries: int, keys: int, q_offset: int) -> Bias:
        """Remember where the rows start; check that the tensor fits."""
        rows, columns = self.four.shape[-2:]
        if 1 != rows != queries or 1 != columns != keys:  # "in" compares no symbols of compilers
            raise InputError(
                f"`bias` must broadcast to the scores of {queries} queries × {keys} keys, got "
                f"{tuple(self.values.shape)}"
            )
        return replace(self, q_offset=q_offset)

    def tile(self, batch: slice, heads: slice, i: Tensor, j: Tensor) -> Tensor:
        """A part of the tensor, without copying."""
        top, left = (int(i[0]) - self.q_offset, int(j[0])) if has_numbers(i, j) else (0, 0)
        part = self.four
        for dim, where in enumerate((batch, heads, slice(top, top + i.shape[0]), slice(left, left + j.shape[0]))):
            if part.shape[dim] > 1:
                part = part.narrow(dim, where.start, where.stop - where.start)
        return part.expand(part.shape[0], part.shape[1], i.shape[0], j.shape[0])

    def within(self, batch: slice, heads: slice, rows: slice, columns: slice) -> Bias:
        """The rectangle of the tensor."""
        if type(self).tile is not DenseBias.tile:
            return self
        starts = batch.start, heads.start, rows.start, columns.start
        top = rows.start - self.q_offset
        part = self.four
        for dim, where in enumerate((batch, heads, slice(top, top + rows.stop - rows.start), columns)):
            if part.shape[dim] > 1:
                part = part.narrow(dim, where.start, where.stop - where.start)
        return _Rectangle(part, starts)


@dataclass(frozen=True, eq=False)
class _Rectangle(Bias):
    """The numbers of sequences, heads and positions from `starts` on."""

    values: Float[Tensor, "#batch #heads #rows #columns"]
    starts: tuple[int, int, int, int]

    @property
    def leading(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def tile(self, batch: slice, heads: slice, i: Tensor, j: Tensor) -> Tensor:
        """A part of it."""
        sides = [
            (one.start - start, one.stop - one.start) for one, start in zip((batch, heads), self.starts, strict=False)
        ]
        places = [*sides, (int(i[0]) - self.starts[2], len(i)), (int(j[0]) - self.starts[3], len(j))]
        part = self.values
        for dim, (start, count) in enumerate(places):
            part = part.narrow(dim, start, count) if part.shape[dim] > 1 else part
        return part.expand(part.shape[0], part.shape[1], len(i), len(j))
