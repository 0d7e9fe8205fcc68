"""Masks by flags of tokens, and how masks look into tensors with a row for each sequence.

Padding: keys that only fill up a batch are seen by no one.

Global: a few tokens that see all and are seen by all.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int, Num, Shaped
from torch import Tensor

from regard.checks import check_count, check_tensor
from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.rectangles import Rectangles

__all__ = ["Global", "Padding", "as_booleans", "covered", "entry", "prefix_counts"]

_FAR, _MANY = 2**28, 2**20  # positions are flagged up to the last, and each that is given is a number of Python


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """attention_mask[b, j]: key j is a token; (batch, keys), 1 or True for tokens and 0 or False for padding.

    It is the `attention_mask` that Hugging Face's tokenizers give, as it is, and the reverse of PyTorch's
    `key_padding_mask` (see `masks.from_key_padding_mask`). It is held as booleans.

    Cost: O(queries · keys · dim) time, less the blocks that are padding alone; one flag a key, a byte each,
    copied from the tensor.

    >>> import torch
    >>> Padding.from_lengths(torch.tensor([3, 1]), kv_len=3).bind(1, 3).dense(batch=2)[:, 0].int()
    tensor([[[1, 1, 1]],
    <BLANKLINE>
            [[1, 0, 0]]], dtype=torch.int32)
    """

    attention_mask: Bool[Tensor, "batch keys"] | Num[Tensor, "batch keys"]

    def __post_init__(self) -> None:
        given = self.attention_mask
        check_tensor("attention_mask", given, "a tensor (batch, keys), 1 for tokens and 0 for padding")
        if given.ndim != 2:
            raise InputError(
                f"`attention_mask` must be (batch, keys), got {tuple(given.shape)}: a matrix of queries and keys is "
                "masks.Dense"
            )
        object.__setattr__(self, "attention_mask", as_booleans("attention_mask", given))
        super().__post_init__()

    @classmethod
    def from_lengths(cls, lengths: Int[Tensor, " batch"], kv_len: int) -> "Padding":
        """The first `lengths[b]` of `kv_len` positions are tokens."""
        return cls(torch.arange(kv_len, device=lengths.device) < lengths[:, None])

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The key is a token."""
        return entry(self.attention_mask, batch, j)

    def rectangle(self, batch: slice, heads: slice, i: slice, j: slice, device: torch.device) -> Tensor:
        """The flags of these keys, without copying."""
        flags = self.attention_mask
        if flags.device != device:
            return super().rectangle(batch, heads, i, j, device)
        part = flags[:, j] if flags.shape[0] == 1 else flags[batch, j]
        return part[:, None, None]

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Count the tokens of each column range with one prefix sum a sequence."""
        tokens = covered(prefix_counts(self.attention_mask), rectangles.left, rectangles.right)
        return rectangles.answer(empty=tokens == 0, full=tokens == rectangles.right - rectangles.left)

    @property
    def token_spans(self) -> Int[Tensor, "batch 2"]:
        """First token of each sequence, and one after its last; 0 and 0 where there is none."""
        count = self.attention_mask.shape[1]
        places = torch.arange(count, device=self.attention_mask.device)
        first = torch.where(self.attention_mask, places, count).amin(1) if count else places.new_zeros(1)
        end = torch.where(self.attention_mask, places + 1, 0).amax(1) if count else places.new_zeros(1)
        return torch.stack((torch.minimum(first, end), end), 1)

    @property
    def leading(self) -> tuple[int, int]:
        """One set of keys a sequence."""
        return self.attention_mask.shape[0], 1

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Check that there is a flag for every key."""
        if self.attention_mask.shape[1] != kv_len:
            given = self.attention_mask.shape[1]
            raise InputError(f"`attention_mask` must have one flag for each of {kv_len} keys, got {given}")
        return self


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

    def __eq__(self, other: object) -> bool:
        """The same tokens, also of those that lengths have left."""
        if type(other) is not type(self):
            return False
        tokens, others = (getattr(mask, "_named", mask.tokens) for mask in (self, other))
        return tokens is others if isinstance(tokens, Tensor) or isinstance(others, Tensor) else tokens == others

    def __hash__(self) -> int:
        tokens = getattr(self, "_named", self.tokens)
        return id(tokens) if isinstance(tokens, Tensor) else hash(tokens)

    @property  # kept by hand: compilers cannot enter the lock of `cached_property` before Python 3.12
    def _flags(self) -> Tensor:
        if isinstance(self.tokens, Tensor):
            return self.tokens
        kept: Tensor | None = getattr(self, "_listed", None)
        if kept is not None:
            return kept
        flags = torch.zeros(1, 1 + max(self.tokens, default=0), dtype=torch.bool, device="cpu")
        flags[0, list(self.tokens)] = True
        if not torch.compiler.is_compiling():
            object.__setattr__(self, "_listed", flags)
        return flags

    @cached_property
    def _counts(self) -> Tensor:
        return prefix_counts(self._flags)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The query or the key is global."""
        return self._is_global(batch, i) | self._is_global(batch, j)

    def _is_global(self, batch: Tensor, position: Tensor) -> Tensor:
        flags = self._flags
        last = flags.shape[1] - 1
        return entry(flags, batch, position.clamp(0, last)) & (position >= 0) & (position <= last)

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
            return self if len(near) == len(self.tokens) else self._before(near)
        if self.tokens.shape[1] != kv_len:
            raise InputError(f"`tokens` must have one flag for each of {kv_len} keys, got {self.tokens.shape[1]}")
        return self

    def _before(self, near: tuple[int, ...]) -> "Global":
        # What other lengths leave of it is the same rule, and equal: documents of several lengths share one.
        placed = Global(near)
        object.__setattr__(placed, "_named", getattr(self, "_named", self.tokens))
        return placed


def as_booleans(name: str, flags: Tensor) -> Tensor:
    """Give ones (or True) and zeros (or False) as booleans; raise where there is any other number."""
    if flags.dtype == torch.bool:
        return flags
    if not torch.compiler.is_compiling() and not bool(((flags == 0) | (flags == 1)).all()):
        odd = flags[(flags != 0) & (flags != 1)].flatten()[0].item()
        low = isinstance(odd, float | int) and odd < 0
        way_out = "a tensor of 0 and −inf is added to the scores: pass it as `bias=`" if low else "pass zeros and ones"
        raise InputError(f"`{name}` must hold zeros (hidden) and ones (seen) alone, got {odd}: {way_out}")
    return flags.bool()


def entry(
    table: Shaped[Tensor, "sequences positions"], batch: Int[Tensor, "*#pairs"], position: Int[Tensor, "*#pairs"]
) -> Shaped[Tensor, "*#pairs"]:
    """Look up each pair's position in its sequence's row; one row serves every sequence, an empty one gives zeros."""
    table = table.to(position.device) if table.shape[1] else position.new_zeros(table.shape[0], 1).to(table.dtype)
    return table[batch if table.shape[0] > 1 else torch.zeros_like(batch), position]


def prefix_counts(flags: Bool[Tensor, "sequences positions"]) -> Int[Tensor, "sequences edges"]:
    """Count the flags before each position, so that `covered` counts those of any range."""
    return torch.nn.functional.pad(flags.cpu().long().cumsum(1), (1, 0))


def covered(
    counts: Int[Tensor, "sequences edges"], first: Int[Tensor, "*ranges"], end: Int[Tensor, "*ranges"]
) -> Int[Tensor, "sequences 1 *ranges"]:
    """Count the flags in each range of positions [first, end); there are none outside the table."""
    last = counts.shape[1] - 1
    return (counts[:, end.clamp(0, last)] - counts[:, first.clamp(0, last)])[:, None]
