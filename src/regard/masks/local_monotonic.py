"""LocalMonotonic: query number t sees the keys around key number t, as in translation word by word."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask, Rectangles
from regard.masks.checks import check_count
from regard.masks.local_predictive import LocalPredictive

__all__ = ["LocalMonotonic"]


@dataclass(frozen=True)
class LocalMonotonic(Mask):
    """|j − c| ≤ radius, c = min(t, keys − 1): Luong et al. 2015, 3.2, local-m (arXiv:1508.04025).

    t is the query's number, counted from 0 wherever the queries are; a decoder that runs one query at a time gives its
    number in `first`. Queries beyond the last key look at the end: with `& masks.Padding(attention_mask)` at the last
    token of their own sentence, whose padding follows it, as nn.LocalAttention does.

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

    def blocks(self, rectangles: Rectangles) -> Tensor:
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

    def resolve_within(self, spans: Int[Tensor, "batch 2"], place: tuple[int, int, int]) -> Mask:
        """The same centres, clipped at each sentence's end."""
        if bool((spans[:, 0] > 0).any()):
            raise InputError(
                "`LocalMonotonic & Padding` counts keys from the first token of each sentence, and one begins with "
                "padding: pad after the tokens, or give each sentence's centres to masks.LocalPredictive"
            )
        number = torch.arange(place[0], device=spans.device) + self.first
        center = number.minimum(spans[:, 1:] - 1).clamp(min=0)  # a sentence of padding alone is hidden by it
        return LocalPredictive(center.to(torch.float64), self.radius).resolve(*place)

    def _center(self, i: Tensor) -> Tensor:
        return torch.clamp(i - self.start + self.first, max=self.last) if self.last is not None else i + self.first
