"""What a mask is: a frozen value that answers for single pairs of positions and for whole rectangles of them.

Rectangles are answered by interval arithmetic, so that whoever skips work (backends, observation, FLOP counts) plans
without evaluating n × n pairs. `& | ~` combine both answers; for rectangles that is three-valued logic, in which
PARTIAL means "some pairs, perhaps": combining may call an empty or full rectangle PARTIAL, never the reverse.
"""

from dataclasses import dataclass
from math import prod
from typing import NoReturn, Self

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from regard.errors import InputError
from regard.frozen import copied, tensors, versions

__all__ = ["EMPTY", "FULL", "PARTIAL", "And", "BoundMask", "Mask", "Not", "Or", "Rectangles"]

# Ordered, so that & is the minimum, | the maximum and ~ the mirror image.
EMPTY, PARTIAL, FULL = 0, 1, 2

_PAIRS = 2**22  # pairs that are asked for together
_ALL = 2**30  # rectangles that are asked for one by one: minutes
_AT_ONCE = 2**18  # rectangles that are counted together: a million tokens have 61 million of 128 × 128


@dataclass(frozen=True)
class Rectangles:
    """Arrays of half-open rectangles of positions: queries [top, bottom), keys [left, right); shapes broadcast."""

    top: Int[Tensor, "*rectangles"]
    bottom: Int[Tensor, "*rectangles"]
    left: Int[Tensor, "*rectangles"]
    right: Int[Tensor, "*rectangles"]

    @property
    def shape(self) -> torch.Size:
        """The dimensions of the array of rectangles."""
        edges = self.top, self.bottom, self.left, self.right
        return torch.Size(torch.broadcast_shapes(*(edge.shape for edge in edges)))

    def answer(
        self, empty: Bool[Tensor, "*#rectangles"], full: Bool[Tensor, "*#rectangles"]
    ) -> Int8[Tensor, "#batch #heads *rectangles"]:
        """Turn two claims about each rectangle into EMPTY, FULL or PARTIAL; batch and heads may stand in front."""
        shape = torch.broadcast_shapes((1, 1, *self.shape), empty.shape, full.shape)
        kinds = torch.full(shape, PARTIAL, dtype=torch.int8)
        return kinds.masked_fill(full, FULL).masked_fill(empty, EMPTY)


class Mask:
    """A mask over positions; True means that the query may see the key.

    To define a mask of your own, write a frozen dataclass with a method `__call__`. The mask may differ between
    sequences and heads. Four more methods and properties are optional:

    - `blocks` classifies rectangles. Without it every pair is evaluated and no block is skipped.
    - `leading` is the batch size and the number of heads that the mask is for. Define it if `blocks` has an answer for
      each of them, or if the mask's tensors have exactly this size; the call then checks the size.
    - `relative` is True if the mask depends only on i − j.
    - `resolve` is needed if the mask depends on the lengths. It returns a mask over positions only.

    Queries are the last positions: query i of `q_len` is at position i + (kv_len − q_len), unless the mask is bound to
    another offset.

    A mask is a value. The tensors in its fields are copied when it is made (one byte for each boolean, eight bytes for
    each 64-bit integer), so a later change of the original tensor has no effect on the mask. The copy must not be
    changed. PyTorch counts changes in place, and a mask whose copy was changed is refused. Changes through `.data` and
    `.numpy()` are not counted: do not write there, because the cached plan of the mask would be wrong. Make a new mask
    instead.

    If a mask of your own defines `__post_init__`, call `super().__post_init__()` at its end. Without this call nothing
    is copied, and the plan of the mask is made again in each call.
    """

    def __post_init__(self) -> None:
        """Copy the tensors in the fields."""
        for name, held in self._held().items():
            if tensors(held):
                object.__setattr__(self, name, copied(held))
        if not torch.compiler.is_compiling():  # a graph knows no identities
            object.__setattr__(self, "_own", versions(self._held()))

    def owns_tensors(self) -> bool:
        """Check that every tensor in the fields is a copy of the mask's own; raise if one was changed in place."""
        own, now = vars(self).get("_own", ()), versions(self._held())
        if own != now and [tensor for tensor, _ in own] == [tensor for tensor, _ in now]:
            raise InputError(
                f"a tensor of {type(self).__name__} was changed in place after the mask was made, and what was planned "
                "for the mask does not know it: make a new mask of the changed tensor"
            )
        return bool(own == now)

    def _held(self) -> dict[str, object]:
        """The fields that are no masks themselves."""
        held = {name: getattr(self, name) for name in getattr(self, "__dataclass_fields__", ())}
        return {name: one for name, one in held.items() if not isinstance(one, Mask)}

    def with_place(self, **fields: object) -> Self:
        """The same mask with other numbers in some fields; tensors, and what was computed from them, are shared."""
        placed = object.__new__(type(self))
        for name, value in (vars(self) | fields).items():
            object.__setattr__(placed, name, value)
        return placed

    def __call__(
        self,
        batch: Int[Tensor, "*#pairs"],
        head: Int[Tensor, "*#pairs"],
        i: Int[Tensor, "*#pairs"],
        j: Int[Tensor, "*#pairs"],
    ) -> Bool[Tensor, "*#pairs"]:
        """Tell for each pair of positions whether query i may see key j; the four arguments broadcast."""
        raise NotImplementedError  # each mask defines it

    def blocks(self, rectangles: Rectangles, /) -> Int8[Tensor, "batch heads *rectangles"]:
        """Tell of each rectangle whether it is EMPTY, FULL or PARTIAL; batch and heads are 1 where all are alike.

        PARTIAL everywhere unless a mask defines it: its pairs are asked for one by one, and no block is skipped.
        """
        nowhere = torch.zeros((), dtype=torch.bool)
        return rectangles.answer(empty=nowhere, full=nowhere)

    @property
    def leading(self) -> tuple[int, int]:
        """Batch and heads that the mask is for; 1 where it holds for all."""
        return 1, 1

    @property
    def relative(self) -> bool:
        """Whether the mask depends on the distance i − j alone, so that one row tells of all."""
        return False

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> "Mask":
        """Replace what depends on where the queries start by a mask over positions alone; check sizes."""
        return self

    @property
    def clips_at_end(self) -> bool:
        """Whether something is counted to the end of the keys, so that padding beside it would be counted too."""
        return False

    @property
    def token_spans(self) -> Int[Tensor, "batch 2"] | None:
        """First token of each sequence, and one after its last, if the mask hides padding; None if it hides none."""
        return None

    def resolve_within(self, spans: Int[Tensor, "batch 2"], place: tuple[int, int, int], /) -> "Mask":
        """Resolve for sequences of these spans: what is clipped at the end of the keys is clipped at their own."""
        return self.resolve(*place)

    def bind(self, q_len: int, kv_len: int, q_offset: int | None = None) -> "BoundMask":
        """Place `q_len` rows from position `q_offset` on, by default the last ones, and `kv_len` columns."""
        for name, number in (("q_len", q_len), ("kv_len", kv_len), ("q_offset", q_offset or 0)):
            if isinstance(number, bool) or not isinstance(number, int | torch.SymInt):
                raise InputError(f"`{name}` counts positions and must be an integer, got {number!r}")
        start = kv_len - q_len if q_offset is None else q_offset
        return BoundMask(self.resolve(q_len, kv_len, start), q_len, kv_len, start, given=self)

    def __and__(self, other: "Mask") -> "Mask":
        """See what both let see."""
        return And(self, _a_mask(other))

    def __or__(self, other: "Mask") -> "Mask":
        """See what either lets see."""
        return Or(self, _a_mask(other))

    def __rand__(self, other: object) -> NoReturn:
        """Refuse what is no mask on the left, such as a tensor."""
        _refuse(other)

    __ror__ = __rand__

    def __invert__(self) -> "Mask":
        """See what this one hides."""
        return Not(self)


@dataclass(frozen=True)
class _Pair(Mask):
    left: Mask
    right: Mask

    @property
    def leading(self) -> tuple[int, int]:
        """The larger of both sides."""
        one, other = self.left.leading, self.right.leading
        for name, size, wanted in zip(("batch", "heads"), one, other, strict=True):
            if 1 != size != wanted != 1:
                raise InputError(f"masks combine only for equal sizes or 1, got {name} {size} and {wanted}")
        return max(one[0], other[0]), max(one[1], other[1])

    @property
    def relative(self) -> bool:
        """Both sides depend on the distance alone."""
        return self.left.relative and self.right.relative

    @property
    def clips_at_end(self) -> bool:
        """Either side does."""
        return self.left.clips_at_end or self.right.clips_at_end

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Resolve both sides."""
        place = q_len, kv_len, q_offset
        return type(self)(self.left.resolve(*place), self.right.resolve(*place))

    def resolve_within(self, spans: Int[Tensor, "batch 2"], place: tuple[int, int, int], /) -> Mask:
        """Resolve both sides for sequences of these spans."""
        return type(self)(self.left.resolve_within(spans, place), self.right.resolve_within(spans, place))


class And(_Pair):
    """Both masks at once: `Causal() & Window(512)`."""

    @property
    def token_spans(self) -> Int[Tensor, "batch 2"] | None:
        """What both spans have in common."""
        one, other = self.left.token_spans, self.right.token_spans
        if one is None or other is None:
            return other if one is None else one
        return torch.stack((torch.maximum(one[:, 0], other[:, 0]), torch.minimum(one[:, 1], other[:, 1])), 1)

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Resolve both sides, each within the sequences whose padding the other hides."""
        spans, place = self.token_spans if self.clips_at_end else None, (q_len, kv_len, q_offset)
        return super().resolve(*place) if spans is None else self.resolve_within(spans, place)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Both see the pair."""
        return self.left(batch, head, i, j) & self.right(batch, head, i, j)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """The lesser of both answers."""
        return torch.minimum(self.left.blocks(rectangles), self.right.blocks(rectangles))


class Or(_Pair):
    """Either mask: `Window(512) | Padding(...)`."""

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """One of both sees the pair."""
        return self.left(batch, head, i, j) | self.right(batch, head, i, j)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """The greater of both answers."""
        return torch.maximum(self.left.blocks(rectangles), self.right.blocks(rectangles))


@dataclass(frozen=True)
class Not(Mask):
    """What a mask hides."""

    hidden: Mask

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The mask hides the pair."""
        return ~self.hidden(batch, head, i, j)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """Full where the mask is empty, and the reverse."""
        return FULL - self.hidden.blocks(rectangles)

    @property
    def leading(self) -> tuple[int, int]:
        """Those of what is hidden."""
        return self.hidden.leading

    @property
    def relative(self) -> bool:
        """What is hidden depends on the distance alone."""
        return self.hidden.relative

    @property
    def clips_at_end(self) -> bool:
        """What is hidden does."""
        return self.hidden.clips_at_end

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Resolve what is hidden."""
        return Not(self.hidden.resolve(q_len, kv_len, q_offset))

    def resolve_within(self, spans: Int[Tensor, "batch 2"], place: tuple[int, int, int], /) -> Mask:
        """Resolve what is hidden for sequences of these spans."""
        return Not(self.hidden.resolve_within(spans, place))


@dataclass(frozen=True, eq=False)
class BoundMask:
    """A mask with its place: `q_len` rows from position `q_offset` on, `kv_len` columns from position 0 on."""

    mask: Mask
    q_len: int
    kv_len: int
    q_offset: int
    given: Mask  # as it was before it was bound

    def __and__(self, _: object) -> NoReturn:
        """Refuse to be combined: masks are, before they are bound."""
        _refuse(self)

    __or__ = __rand__ = __ror__ = __and__

    def __invert__(self) -> NoReturn:
        """Refuse to be inverted."""
        _refuse(self)

    def tile(
        self, rows: slice, columns: slice, *, batch: slice | int = 1, heads: slice | int = 1, device: torch.device
    ) -> Bool[Tensor, "#batch #heads rows columns"]:
        """Evaluate the mask for some rows and columns (indices, not positions), broadcast over batch and heads."""
        i = torch.arange(rows.start, rows.stop, device=device)[None, None, :, None] + self.q_offset
        j = torch.arange(columns.start, columns.stop, device=device)[None, None, None, :]
        b = _range(batch, device)[:, None, None, None]
        h = _range(heads, device)[None, :, None, None]
        visible = self.mask(b, h, i, j)
        return visible.expand(*visible.shape[:2], i.shape[2], j.shape[3])

    def dense(
        self, batch: int = 1, heads: int = 1, device: torch.device | None = None
    ) -> Bool[Tensor, "#batch #heads queries keys"]:
        """Evaluate the mask for all rows and columns."""
        device, columns = device or torch.device("cpu"), slice(0, self.kv_len)
        if torch.compiler.is_compiling():  # a loop over lengths would fix them, where they may be symbols
            return self.tile(slice(0, self.q_len), columns, batch=batch, heads=heads, device=device)
        # Positions are 64 bits a pair while a mask is asked: some rows at a time.
        rows = max(1, _PAIRS // max(1, self.kv_len))
        parts = [
            self.tile(slice(top, min(top + rows, self.q_len)), columns, batch=batch, heads=heads, device=device)
            for top in range(0, max(1, self.q_len), rows)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    def blocks(self, row_edges: Tensor, column_edges: Tensor, /) -> Int8[Tensor, "batch heads rows columns"]:
        """Tell of every rectangle between consecutive edges (indices) whether it is EMPTY, PARTIAL or FULL."""
        top = row_edges[:-1, None] + self.q_offset
        bottom = row_edges[1:, None] + self.q_offset
        return self.mask.blocks(Rectangles(top, bottom, column_edges[None, :-1], column_edges[None, 1:]))

    def share_visible(self, block: int = 128) -> float:
        """The share of blocks of `block` × `block` that hold a visible pair, of which all are asked for."""
        check_blocks(self, block, _ALL)
        rows, columns = edges(self.q_len, block), edges(self.kv_len, block)
        seen = total = 0
        step = max(1, _AT_ONCE // len(columns))
        for top in range(0, len(rows) - 1, step):
            kinds = self.blocks(rows[top : top + step + 1], columns)
            seen, total = seen + int((kinds != EMPTY).sum()), total + kinds.numel()
        return seen / total


def check_blocks(bound: BoundMask, block: int, most: int) -> None:
    """Raise where there are more blocks than may be gone through one by one."""
    count = -(-bound.q_len // block) * -(-bound.kv_len // block) * prod(bound.mask.leading)
    if count > most:
        raise InputError(
            f"{bound.q_len:,} queries and {bound.kv_len:,} keys are {count:,} blocks of {block} × {block}, more than "
            f"{most:,}: take larger ones, `block={2 * block}` or more"
        )


def _a_mask(other: object) -> Mask:
    return other if isinstance(other, Mask) else _refuse(other)


def _refuse(other: object) -> NoReturn:
    raise InputError(
        f"masks combine with masks that are not bound yet, got {type(other).__name__}: write masks.Dense(tensor) "
        "for a boolean tensor, and bind the whole at the end"
    )


def edges(length: int, block: int) -> Int[Tensor, " edges"]:
    """Edges 0, block, 2·block, … up to `length`, which is always the last."""
    return torch.cat([torch.arange(0, length, block), torch.tensor([length])])


def _range(which: slice | int, device: torch.device) -> Tensor:
    if not isinstance(which, slice):  # where lengths are exported, a number is a symbol and no int
        return torch.arange(which, device=device)
    return torch.arange(which.start, which.stop, device=device)
