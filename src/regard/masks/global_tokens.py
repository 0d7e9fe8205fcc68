"""Global: a few tokens that see all and are seen by all."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.block_plan import Rectangles
from regard.masks.checks import check_count, covered, entry, prefix_counts

__all__ = ["Global"]

_FAR, _MANY = 2**28, 2**20  # positions are flagged up to the last, and each that is given is a number of Python


@dataclass(frozen=True, eq=False)
class Global(Mask):
    """i or j is a global token: symmetric global attention (Longformer: Beltagy et al. 2020, 3.1, arXiv:2004.05150).

    `tokens` gives the positions that are global in all sequences, or marks them in a boolean tensor (batch or 1, keys).
    Combine it with a mask for the other tokens: `Window(left=2, right=2) | Global([0])`. Longformer projects the rows
    of global tokens with separate weights; this is part of the computation of q, k and v, not of the mask.

    Cost: O(n · g · dim) time for g adjacent global tokens. A global token without global neighbours costs a row and a
    column of blocks. At most one byte per position; a tensor is copied.

    >>> Global([1]).bind(3, 3).dense()[0, 0].int()
    tensor([[0, 1, 0],
            [1, 1, 1],
            [0, 1, 0]], dtype=torch.int32)
    """

    tokens: Collection[int] | Bool[Tensor, "batch keys"]

    def __post_init__(self) -> None:
        if isinstance(self.tokens, Tensor):
            if self.tokens.dtype != torch.bool or self.tokens.ndim != 2:
                raise InputError(
                    "`tokens` must be positions, for example (0, 5), or a boolean tensor (batch, keys), got "
                    f"{self.tokens.dtype} of shape {tuple(self.tokens.shape)}"
                )
        else:
            self._check_positions()
        super().__post_init__()

    def _check_positions(self) -> None:
        if not isinstance(self.tokens, Collection):
            raise InputError(f"`tokens` must be positions, for example (0, 5), got {type(self.tokens).__name__}")
        if len(self.tokens) > _MANY:
            raise InputError(
                f"`tokens` must be at most {_MANY:,} positions, got {len(self.tokens):,}: flag more of them in a "
                "boolean tensor (1, keys)"
            )
        object.__setattr__(self, "tokens", tuple(self.tokens))
        for token in self.tokens:
            check_count("tokens", token, 0, "gives positions, each of which counts from the first key", most=_FAR)

    @cached_property
    def _flags(self) -> Tensor:
        if isinstance(self.tokens, Tensor):
            return self.tokens
        flags = torch.zeros(1, 1 + max(self.tokens, default=0), dtype=torch.bool)
        flags[0, list(self.tokens)] = True
        return flags

    @cached_property
    def _counts(self) -> Tensor:
        return prefix_counts(self._flags)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The query or the key is global."""
        return self._is_global(batch, i) | self._is_global(batch, j)

    def _is_global(self, batch: Tensor, position: Tensor) -> Tensor:
        last = self._flags.shape[1] - 1
        return entry(self._flags, batch, position.clamp(0, last)) & (position >= 0) & (position <= last)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Count the global tokens among the queries and among the keys."""
        rows = covered(self._counts, rectangles.top, rectangles.bottom)
        columns = covered(self._counts, rectangles.left, rectangles.right)
        return rectangles.answer(
            empty=(rows == 0) & (columns == 0),
            full=(rows == rectangles.bottom - rectangles.top) | (columns == rectangles.right - rectangles.left),
        )

    @property
    def leading(self) -> tuple[int, int]:
        """One set of tokens a sequence, or one for all."""
        return (self.tokens.shape[0] if isinstance(self.tokens, Tensor) else 1), 1

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Check that there is a flag for every key; leave out positions where nothing is."""
        if not isinstance(self.tokens, Tensor):
            end = max(kv_len, q_offset + q_len)
            near = tuple(token for token in self.tokens if token < end)
            return self if len(near) == len(self.tokens) else Global(near)
        if self.tokens.shape[1] != kv_len:
            raise InputError(f"`tokens` must have one flag for each of {kv_len} keys, got {self.tokens.shape[1]}")
        return self
