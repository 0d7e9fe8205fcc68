"""What a mask is: a frozen value that answers for single pairs of positions and for whole rectangles of them.

Rectangles are answered by interval arithmetic, so that whoever skips work (backends, observation, FLOP counts) plans
without evaluating n × n pairs. `& | ~` combine both answers; for rectangles that is three-valued logic, in which
PARTIAL means "some pairs, perhaps": combining may call an empty or full rectangle PARTIAL, never the reverse.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NoReturn, Self

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from regard.errors import InputError
from regard.masks.rectangles import EMPTY, FULL, Rectangles, edges
from regard.torch_private import is_tracing
from regard.values import Form, copied, field_names, flatten, is_fixed, names, tensors

__all__ = ["And", "BoundMask", "Mask", "Not", "Or", "check_blocks", "check_kind", "refuse_to_combine"]

_PAIRS = 2**22  # pairs that are asked for together
_ALL = 2**30  # rectangles that are asked for one by one: minutes
_AT_ONCE = 2**18  # rectangles that are counted together: a million tokens have 61 million of 128 × 128
Positions = Int[Tensor, "*#pairs"]


def _evaluated(mask: "Mask", *parts: Any) -> Tensor:
    return Mask.rectangle(mask, *parts)


class Mask:
    """A mask over positions; True means that the query may see the key.

    To define a mask of your own, write a frozen dataclass with a method `__call__`. The mask may differ between
    sequences and heads. Four more methods and properties are optional:

    - `blocks` classifies rectangles. Without it every pair is evaluated and no block is skipped.
    - `leading` is the batch size and the number of heads that the mask is for. Define it if `blocks` has an answer for
      each of them, or if the mask's tensors have exactly this size; the call then checks the size.
    - `relative` is True if the mask depends only on i − j.
    - `resolve` is needed if the mask depends on the lengths. It returns a mask over positions only.

    Queries are the last positions: query i of `q_len` is at position i + (kv_len − q_len), unless bound elsewhere.

    A mask is a value. Its tensors are copied when it is made (a byte for each boolean, eight for a 64-bit integer), so
    later changes of the original have no effect. The copy must not be changed: in place, that is refused; through
    `.data` or `.numpy()` PyTorch does not count it, and the cached plan would be wrong. Make a new mask instead.

    If a mask of your own defines `__post_init__`, end it with `super().__post_init__()`, which copies the tensors.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Have a mask that answers in another way than its parent evaluate pairs, and not what its parent knows."""
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            for name, own in (("rectangle", _evaluated), ("blocks", Mask.blocks), ("relative", Mask.relative)):
                owner = next(parent for parent in cls.__mro__ if name in vars(parent))
                if owner is not cls and owner.__call__ is not Mask.__call__:
                    setattr(cls, name, own)

    def __post_init__(self) -> None:
        """Copy the tensors in the fields."""
        parts: list[tuple[str, object]] = []
        if hasattr(self, "__dataclass_fields__"):
            parts = [(name, getattr(self, name)) for name in field_names(self)]
        for name, part in parts:
            if not isinstance(part, Mask) and tensors(part):
                object.__setattr__(self, name, _copied(part))
        if torch.compiler.is_compiling():  # a graph knows no identities
            return
        own: dict[int, int] = {}
        for name, part in parts:
            own |= vars(part).get("_own", {}) if isinstance(part, Mask) else _versions(getattr(self, name))
        object.__setattr__(self, "_own", own)

    def identity(self) -> tuple[list[Tensor], Form] | None:
        """Return the tensors and the form of the mask, which are a key as long as the tensors live; None if the mask
        may change unseen: it is not frozen, is made of functions, or holds tensors that are not its own.

        Raises:
            InputError: A tensor of the mask was changed in place.
        """
        held = {} if torch.compiler.is_compiling() else vars(self)
        known: tuple[list[Tensor], Form] | None = held.get("_identity")
        if known is None:
            known = flatten(self)
            if not is_fixed(known[1]) or _has_more(self):  # what is no dataclass has itself as its form
                return None
            if held:
                object.__setattr__(self, "_identity", known)
        if not known[0]:
            return known
        own, now = held.get("_own", {}), _versions(known[0])
        if not now.keys() <= own.keys() or -1 in now.values():
            return None
        if any(own[tensor] != version for tensor, version in now.items()):
            changed = [
                name for leaf, name in zip(known[0], names(known[1]), strict=True) if own[id(leaf)] != now[id(leaf)]
            ]
            raise InputError(
                f"`{changed[0]}` of {type(self).__name__} was changed in place after the mask was made, and what was "
                "planned for the mask does not know it: make a new mask of the changed tensor"
            )
        return known

    def __getstate__(self) -> dict[str, Any]:
        """Leave out addresses, which are others in a copy and in another process."""
        held = vars(self)
        kept = {name: value for name, value in held.items() if name not in _BOOKS}
        return kept | {"_own": {id(leaf) for leaf in tensors(self)} <= held.get("_own", {}).keys()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Own the tensors that were copied, if they were owned before."""
        vars(self).update(state)
        object.__setattr__(self, "_own", _versions(self) if state["_own"] else {})

    def with_place(self, **fields: object) -> Self:
        """The same mask with other numbers in some fields; tensors, and what was computed from them, are shared."""
        placed = object.__new__(type(self))
        held = {} if torch.compiler.is_compiling() else vars(self)  # which compilers of PyTorch 2.11 cannot follow
        for name in held.keys() - (_BOOKS - {"_own"}) or set(field_names(self)):
            object.__setattr__(placed, name, getattr(self, name))
        for name, value in fields.items():
            object.__setattr__(placed, name, value)
        return placed

    def __call__(self, batch: Positions, head: Positions, i: Positions, j: Positions) -> Bool[Tensor, "*#pairs"]:
        """Tell for each pair of positions whether query i may see key j; the four arguments broadcast."""
        raise NotImplementedError  # each mask defines it

    def rectangle(
        self, batch: slice, heads: slice, i: slice, j: slice, device: torch.device
    ) -> Bool[Tensor, "#batch #heads #rows #columns"]:
        """Evaluate the mask for ranges of sequences, heads and positions, of which none is evaluated twice where all
        are alike: a mask that holds a tensor of pairs gives a part of it, which is not to be written to.
        """
        b, h, rows, columns = (torch.arange(x.start, x.stop, device=device) for x in (batch, heads, i, j))
        places = b[:, None, None, None], h[None, :, None, None], rows[None, None, :, None], columns[None, None, None]
        visible = self.__call__(*places)
        return visible.reshape((1,) * (4 - visible.ndim) + tuple(visible.shape))

    def blocks(self, rectangles: Rectangles, /) -> Int8[Tensor, "batch heads *rectangles"]:
        """Tell of each rectangle whether it is EMPTY, FULL or PARTIAL; batch and heads are 1 where all are alike.

        PARTIAL everywhere unless a mask defines it: its pairs are asked for one by one, and no block is skipped.
        """
        nowhere = torch.zeros((), dtype=torch.bool, device="cpu")
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
        for name, number in (("q_len", q_len), ("kv_len", kv_len), ("q_offset", 0 if q_offset is None else q_offset)):
            if isinstance(number, bool) or not isinstance(number, int | torch.SymInt):
                traced = "; torch.jit.trace makes tensors of sizes: export by torch.export.export or with dynamo=True"
                raise InputError(
                    f"`{name}` counts positions and must be an integer, got {number!r}{traced * is_tracing()}"
                )
        start = kv_len - q_len if q_offset is None else q_offset
        return BoundMask(self.resolve(q_len, kv_len, start), q_len, kv_len, start, given=self)

    def __and__(self, other: "Mask") -> "Mask":
        """See what both let see."""
        return And(self, other if isinstance(other, Mask) else refuse_to_combine(other))

    def __or__(self, other: "Mask") -> "Mask":
        """See what either lets see."""
        return Or(self, other if isinstance(other, Mask) else refuse_to_combine(other))

    def __rand__(self, other: object) -> NoReturn:
        """Refuse what is no mask on the left, such as a tensor."""
        refuse_to_combine(other)

    __ror__ = __rand__

    def __invert__(self) -> "Mask":
        """See what this one hides."""
        return Not(self)


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
        refuse_to_combine(self)

    __or__ = __rand__ = __ror__ = __and__

    def __invert__(self) -> NoReturn:
        """Refuse to be inverted."""
        refuse_to_combine(self)

    def tile(
        self, rows: slice, columns: slice, *, batch: slice | int = 1, heads: slice | int = 1, device: torch.device
    ) -> Bool[Tensor, "#batch #heads rows columns"]:
        """Evaluate the mask for some rows and columns (indices, not positions), broadcast over batch and heads.

        It may be a view of the mask's own tensor, and is not to be written to; what `dense` gives is.
        """
        count, width = rows.stop - rows.start, columns.stop - columns.start
        # A loop over lengths would fix them in a graph.
        if not torch.compiler.is_compiling() and count > 1 and count * width > _PAIRS:
            # Positions are 64 bits a pair while a mask is asked: some rows at a time.
            step = max(1, _PAIRS // width)
            parts = [slice(top, min(top + step, rows.stop)) for top in range(rows.start, rows.stop, step)]
            if len(parts) > 1:
                where: dict[str, Any] = {"batch": batch, "heads": heads, "device": device}
                return torch.cat([self.tile(part, columns, **where) for part in parts], 2)
        visible = self._rectangle(rows, columns, batch, heads, device)
        return visible.expand(*visible.shape[:2], count, width)

    def broadcast(self, batch: int, heads: int, device: torch.device) -> Bool[Tensor, "#batch #heads #queries #keys"]:
        """Evaluate the mask for all rows and columns, each dimension of size 1 where all along it are alike."""
        return self._rectangle(slice(0, self.q_len), slice(0, self.kv_len), batch, heads, device)

    def _rectangle(
        self, rows: slice, columns: slice, batch: slice | int, heads: slice | int, device: torch.device
    ) -> Tensor:
        sequences, others = (x if isinstance(x, slice) else slice(0, x) for x in (batch, heads))
        positions = slice(rows.start + self.q_offset, rows.stop + self.q_offset)
        return self.mask.rectangle(sequences, others, positions, columns, device)

    def dense(
        self, batch: int | None = None, heads: int | None = None, device: torch.device | None = None
    ) -> Bool[Tensor, "#batch #heads queries keys"]:
        """Evaluate the mask for all rows and columns of so many sequences and heads, by default those that it declares
        (`Mask.leading`); of a function that reads `batch` or `head`, which declares none, give both.
        """
        own = self.mask.leading
        batch, heads = own[0] if batch is None else batch, own[1] if heads is None else heads
        rows, columns = slice(0, self.q_len), slice(0, self.kv_len)
        visible = self.tile(rows, columns, batch=batch, heads=heads, device=device or torch.device("cpu"))
        return visible if torch.compiler.is_compiling() else visible.clone()

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


def refuse_to_combine(other: object) -> NoReturn:
    """Raise where a mask is combined with what is bound already, or is none."""
    raise InputError(
        f"masks combine with masks that are not bound yet, got {type(other).__name__}: write masks.Dense(tensor) "
        "for a boolean tensor, and bind the whole at the end"
    )


def check_kind(name: str, value: object, kind: type) -> None:
    """Raise unless `value` is of a kind."""
    if not isinstance(value, kind):
        way_out = ": call mask.bind(q_len, kv_len) first" if kind.__name__ == "BoundMask" else ""
        raise InputError(f"`{name}` must be a {kind.__name__}, got {type(value).__name__}{way_out}")


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
        return type(self)(self.left.resolve(q_len, kv_len, q_offset), self.right.resolve(q_len, kv_len, q_offset))

    def resolve_within(self, spans: Int[Tensor, "batch 2"], place: tuple[int, int, int], /) -> Mask:
        """Resolve both sides for sequences of these spans."""
        return type(self)(self.left.resolve_within(spans, place), self.right.resolve_within(spans, place))


class And(_Pair):
    """Both masks at once: `Causal() & Window(512)`."""

    def rectangle(self, batch: slice, heads: slice, i: slice, j: slice, device: torch.device) -> Tensor:
        """Both see the pairs."""
        parts = batch, heads, i, j, device
        return self.left.rectangle(*parts) & self.right.rectangle(*parts)

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
        # `__call__` by name: PyTorch 2.11 compiles no call of an object that is made in the graph.
        return self.left.__call__(batch, head, i, j) & self.right.__call__(batch, head, i, j)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """The lesser of both answers."""
        return torch.minimum(self.left.blocks(rectangles), self.right.blocks(rectangles))


class Or(_Pair):
    """Either mask: `Window(512) | Padding(...)`."""

    def rectangle(self, batch: slice, heads: slice, i: slice, j: slice, device: torch.device) -> Tensor:
        """One of both sees the pairs."""
        parts = batch, heads, i, j, device
        return self.left.rectangle(*parts) | self.right.rectangle(*parts)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """One of both sees the pair."""
        return self.left.__call__(batch, head, i, j) | self.right.__call__(batch, head, i, j)

    def blocks(self, rectangles: Rectangles, /) -> Tensor:
        """The greater of both answers."""
        return torch.maximum(self.left.blocks(rectangles), self.right.blocks(rectangles))


@dataclass(frozen=True)
class Not(Mask):
    """What a mask hides."""

    hidden: Mask

    def rectangle(self, batch: slice, heads: slice, i: slice, j: slice, device: torch.device) -> Tensor:
        """The mask hides the pairs."""
        return ~self.hidden.rectangle(batch, heads, i, j, device)

    def __call__(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The mask hides the pair."""
        return ~self.hidden.__call__(batch, head, i, j)

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
        return type(self)(self.hidden.resolve(q_len, kv_len, q_offset))

    def resolve_within(self, spans: Int[Tensor, "batch 2"], place: tuple[int, int, int], /) -> Mask:
        """Resolve what is hidden for sequences of these spans."""
        return type(self)(self.hidden.resolve_within(spans, place))


_BOOKS = frozenset({"_own", "_identity"})  # what a mask knows of its tensors, besides its fields


def _copied(part: Any) -> Any:
    """Copies that count their changes, also where the mask is made in inference mode."""
    if torch.compiler.is_compiling():
        return copied(part)
    with torch.inference_mode(False):
        return copied(part)


def _has_more(mask: Mask) -> bool:
    """Whether a mask that a user wrote, or one inside, has attributes that are no fields, and so not in its form."""
    names_ = set(field_names(mask))
    if any(isinstance(part, Mask) and _has_more(part) for part in map(vars(mask).get, names_)):
        return True
    more = vars(mask).keys() - names_ - _BOOKS
    computed = {name for name in more if isinstance(getattr(type(mask), name, None), cached_property)}
    return not type(mask).__module__.startswith("regard.") and bool(more - computed)


def _versions(value: object) -> dict[int, int]:
    """How often each tensor of a value was changed in place, by its address; −1 where that is not counted."""
    return {id(tensor): -1 if tensor.is_inference() else tensor._version for tensor in tensors(value)}
