"""Luong's local attention (local-m, local-p).

LocalMonotonic: query number t sees the keys around key number t, as in translation word by word.

LocalPredictive: each query sees the keys around a position that the model predicts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_count, check_tensor
from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.padding_and_global import entry
from regard.masks.rectangles import Rectangles
from regard.tensors import unwrapped
from regard.torch_private import assert_async

__all__ = ["LocalMonotonic", "LocalPredictive"]


@dataclass(frozen=True)
class LocalMonotonic(Mask):
    """|j − c| ≤ radius, c = min(t, keys − 1): Luong et al. 2015, 3.2, local-m (arXiv:1508.04025).

    t is the index of the query, counted from 0 wherever the queries start. A decoder that runs one query at a time
    passes the index of this query as `first`. For a query beyond the last key, the centre c is the last key. With `&
    masks.Padding(attention_mask)`, also where one of the two stands in a longer expression, it is the last token of
    the query's own sentence, before the padding, as in nn.LocalAttention.

    Cost: O(queries · (2 · radius + 1) · dim) time; no memory.

    >>> LocalMonotonic(1).bind(5, 3).dense()[0, 0].int()
    tensor([[1, 1, 0],
            [1, 1, 1],
            [0, 1, 1],
            [0, 1, 1],
            [0, 1, 1]], dtype=torch.int32)
    """

    radius: int
    first: int = 0
    start: int = 0  # position of the first query, set when the mask is bound
    last: int | None = None  # the last key, set when the mask is bound

    def __post_init__(self) -> None:
        check_count("radius", self.radius, 0, "counts the keys on either side of the centre")
        check_count("first", self.first, 0, "is the number of the first query")

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key is near the centre."""
        return (j - self._center(i)).abs() <= self.radius

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Compare the least and the greatest distance from centre to key: centres never go back."""
        least = self._center(rectangles.top) - (rectangles.right - 1)
        greatest = self._center(rectangles.bottom - 1) - rectangles.left
        return rectangles.answer(
            empty=(least > self.radius) | (greatest < -self.radius),
            full=(greatest <= self.radius) & (least >= -self.radius),
        )

    @property
    def clips_at_end(self) -> bool:
        """The centre is at most the last key."""
        return True

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Remember where the queries start and the keys end."""
        return replace(self, start=q_offset, last=kv_len - 1)

    def resolve_within(self, spans: Int[Tensor, "batch 2"], place: tuple[int, int, int], /) -> Mask:
        """The same centres, clipped at each sentence's end."""
        _require((spans[:, 0] == 0).all(), _PADDING_BEFORE)
        number = torch.arange(place[0], device=spans.device) + self.first
        center = number.minimum(spans[:, 1:] - 1).clamp(min=0)  # a sentence of padding alone is hidden by it
        return LocalPredictive(center.to(torch.float64), self.radius).resolve(*place)

    def _center(self, i: Tensor) -> Tensor:
        return torch.clamp(i - self.start + self.first, max=self.last) if self.last is not None else i + self.first


_CELL = 16  # queries whose centres are bounded together


@dataclass(frozen=True, eq=False)
class LocalPredictive(Mask):
    """⌊p⌋ − radius ≤ j ≤ ⌊p⌋ + radius, p = center[b, t]: Luong et al. 2015, 3.2, local-p (arXiv:1508.04025).

    `center` (batch or 1, queries) contains the position p of each query, in keys, counted from 0: p = S · σ(…) for S
    keys. No gradient passes through the window. p gets its gradient from the factor exp(−(j − p)²/(2 (radius/2)²)) on
    the weights, which is `positions.Gaussian(center, radius)`.

    Cost: O(queries · (2 · radius + 1) · dim) time if neighbouring queries have similar positions p, and up to O(queries
    · keys · dim) if their positions jump. One number for each query, copied (4 bytes in float32).

    >>> import torch
    >>> LocalPredictive(torch.tensor([[0.9, 2.5]]), radius=1).bind(2, 4).dense()[0, 0].int()
    tensor([[1, 1, 0, 0],
            [0, 1, 1, 1]], dtype=torch.int32)
    """

    center: Float[Tensor, "batch queries"]
    radius: int
    start: int = 0  # position of the first query, set when the mask is bound

    def __post_init__(self) -> None:
        check_tensor("center", self.center, "a float tensor (batch, queries)")
        if not self.center.is_floating_point() or self.center.ndim != 2:
            raise InputError(
                f"`center` must be a float tensor (batch, queries), got {self.center.dtype} of shape "
                f"{tuple(self.center.shape)}"
            )
        _require(
            self.center.isfinite().all(), "`center` must be finite, got inf or nan: predict it as keys · sigmoid(…)"
        )
        check_count("radius", self.radius, 0, "counts the keys on either side of the centre")
        super().__post_init__()

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key is near the centre."""
        return (j - _middle(entry(self.center, batch, i - self.start))).abs() <= self.radius

    @cached_property
    def _extremes(self) -> tuple[Tensor, Tensor]:
        """[level, b, c]: least and greatest centre of the 2^level cells from cell c on."""
        middle = _middle(self.center).cpu()
        short = -middle.shape[1] % _CELL
        cells = torch.cat([middle, middle[:, -1:].expand(-1, short)], 1).unflatten(1, (-1, _CELL))
        return _levels(cells.amin(-1), torch.minimum), _levels(cells.amax(-1), torch.maximum)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Bound the centres of each range of queries by those of the cells that cover it."""
        first = (rectangles.top - self.start) // _CELL
        last = (rectangles.bottom - 1 - self.start) // _CELL
        level = (last - first + 1).double().log2().floor().long()
        lows, highs = self._extremes
        again = last + 1 - 2**level
        least = torch.minimum(lows[level, :, first], lows[level, :, again]).movedim(-1, 0)[:, None]
        greatest = torch.maximum(highs[level, :, first], highs[level, :, again]).movedim(-1, 0)[:, None]
        left, right = rectangles.left, rectangles.right - 1
        return rectangles.answer(
            empty=(greatest + self.radius < left) | (least - self.radius > right),
            full=(greatest - self.radius <= left) & (least + self.radius >= right),
        )

    @property
    def leading(self) -> tuple[int, int]:
        """One centre for each query of a sequence."""
        return self.center.shape[0], 1

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Remember where the queries start; check that each has a centre."""
        if self.center.shape[1] != q_len:
            raise InputError(f"`center` must have one position for each of {q_len} queries, got {self.center.shape[1]}")
        return self.with_place(start=q_offset)


def _middle(center: Float[Tensor, "*positions"]) -> Int[Tensor, "*positions"]:
    return center.detach().floor().long()


def _levels(
    cells: Int[Tensor, "batch cells"], outer: Callable[[Tensor, Tensor], Tensor]
) -> Int[Tensor, "levels batch cells"]:
    levels = [cells]
    while 2 ** len(levels) <= cells.shape[1]:
        half = 2 ** (len(levels) - 1)
        far = torch.cat([levels[-1][:, half:], levels[-1][:, -1:].expand(-1, half)], 1)
        levels.append(outer(levels[-1], far))
    return torch.stack(levels)


_PADDING_BEFORE = (
    "`LocalMonotonic & Padding` counts keys from the first token of each sentence, and one begins with padding: "
    "pad after the tokens, or give each sentence's centres to masks.LocalPredictive"
)


def _require(holds: Tensor, message: str) -> None:
    """Raise InputError unless it holds; in compiled code, where numbers are known when the graph runs, RuntimeError."""
    if torch.compiler.is_compiling():
        assert_async(holds, message)
        return
    if not bool(unwrapped(holds).all()):  # torch.func.vmap: it must hold for each member of the batch
        raise InputError(message)
