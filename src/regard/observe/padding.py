"""Padding: which rows and columns of a call site are no tokens of a text, on either side of it.

The `attention_mask` of the model's call names it (1 for a token, 0 for padding, as in transformers): it is the zeros at
both ends of the sequence, since a zero between tokens hides one of them, which remains text. Zeros that were at an end
stay padding if tokens follow them in later calls, as in a generation from a text padded right. Where there is no mask
of the site's length, or attention does not heed it, padding is the keys at an end of the sequence that no query sees,
as with a `key_padding_mask`. Where neither shows it, nothing is taken for padding.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.observe.streams import Place
from regard.observe.watched_call import WatchedCall
from regard.observe.weight_rows import RowBlock
from regard.torch_private import DisableTorchFunction, maybe_current_level

__all__ = ["HeardMasks", "Padding", "SitePadding"]

Flags = npt.NDArray[np.bool_]  # (batch, positions), True for padding
ModuleCall = tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]  # with its positional and named arguments

_UNKNOWN: Any = object()
_PAIRS = 2**22  # of a mask that are evaluated at a time


@dataclass(frozen=True, eq=False)
class Padding:
    """Which rows `queries` (batch, queries) and columns `keys` (batch, keys) of a record are padding."""

    queries: Flags
    keys: Flags

    @property
    def identity(self) -> tuple[bytes, bytes]:
        """What equal padding of the same sizes has in common."""
        return self.queries.tobytes(), self.keys.tobytes()

    def visible_rows(self, rows: RowBlock) -> RowBlock | None:
        """Return rows of which those of padding are 0, for sums over queries; None if all of them are padding."""
        hidden = self.queries[rows.batch_index, rows.rows]
        if not hidden.any():
            return rows
        if hidden.all():
            return None
        flags = torch.tensor(hidden).to(rows.weights.device)
        shown = rows.weights.masked_fill(flags[:, None], 0)
        return RowBlock(rows.batch_index, rows.heads, rows.start, rows.key_start, shown, rows.sums)


class HeardMasks:
    """The attention masks (batch, positions) of the model's running call, by stream."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.streams: dict[str, Flags] = {}  # True where a mask is 0
        self.full: set[str] = set()  # streams whose mask is 0 nowhere
        # Padding of the positions of each stack of layers in this run, by batch and length; None if there is none.
        self.of_stack: dict[tuple[Any, ...], Flags | None] = {}

    def begin(self, calls: Sequence[ModuleCall]) -> None:
        """Take the masks of a run: those of the outermost of its running calls that has some."""
        self.of_stack = {}
        found = next(filter(None, (self._masks_in(*call) for call in calls)), {})
        self.streams = {name: flags for name, one in found.items() if (flags := _flags(one)) is not None}
        self.full = {name for name, flags in self.streams.items() if not flags.any()}

    def end(self) -> None:
        """Forget the masks, since calls outside of a run have other inputs."""
        self.streams, self.full, self.of_stack = {}, set(), {}

    def _masks_in(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the masks among the arguments of a call, by stream."""
        given: dict[str, Any] = {}
        for one in (*args, *kwargs.values()):
            if isinstance(one, Mapping):
                given.update((name, value) for name, value in one.items() if isinstance(name, str))
        if len(args) > 1:
            given |= dict(zip(_parameters(type(module).forward), args, strict=False))
        given |= kwargs
        masks = {name: given[name] for name in _ARGUMENTS if _is_mask(given.get(name))}
        is_decoder = given.get("encoder_hidden_states") is not None or "encoder_attention_mask" in masks
        crossed = given.get("decoder_input_ids") is not None
        crossed |= bool(getattr(getattr(self._model, "config", None), "is_encoder_decoder", False))
        own = "target" if is_decoder else "source" if crossed else "text"
        names = {"attention_mask": own, "decoder_attention_mask": "target", "encoder_attention_mask": "source"}
        return {names[name]: one for name, one in masks.items()}


_ARGUMENTS = ("attention_mask", "decoder_attention_mask", "encoder_attention_mask")


@cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the arguments of a module's call, in their order."""
    return tuple(inspect.signature(forward).parameters)[1:]


def _is_mask(one: Any) -> bool:
    return type(one) is Tensor and one.layout is torch.strided and one.ndim == 2 and not one.is_complex()


def _flags(mask: Tensor) -> Flags | None:
    """Return where a mask is 0; None if its numbers are others than 0 and those of tokens, as of a mask that is added
    to scores.
    """
    if mask.is_meta or maybe_current_level() is not None:
        return None
    with DisableTorchFunction(), torch.no_grad():
        numbers = mask.detach().to("cpu", torch.float32).numpy()
    hidden: Flags = numbers == 0
    is_plain = (numbers >= 0).all() and (not mask.is_floating_point() or bool((hidden | (numbers == 1)).all()))
    return hidden if is_plain else None


class SitePadding:
    """The padding of one call site, over all of its calls."""

    def __init__(self, place: Place, masks: HeardMasks) -> None:
        self._place, self._masks = place, masks
        self._keys: Flags | None = None  # of the columns so far; None where none is known to be padding
        self._heeds: bool | None = None  # whether attention heeds the mask of the model's call; None before the first

    def see(
        self, call: WatchedCall, queries: int, keys: int, filled: int, shift: int, *, cross: bool
    ) -> Padding | None:
        """Return the padding of the record's rows and columns, None if there is none.

        Args:
            call: The call that begins.
            queries: The number of rows so far, those of the call included.
            keys: The number of columns so far.
            filled: How many of these hold a key.
            shift: The number of columns before the call's own.
            cross: Whether the keys are those of another text.
        """
        if not cross and self._keys is None and self._is_full(call.batch, filled):  # as of most texts, once a layer
            self._heeds = True if self._heeds is None else self._heeds
            self._masks.of_stack[self._positions(call.batch, filled)] = None
            return None
        found = self._of_cross(call) if cross else self._of_self(call, filled, shift)
        self._keys = found if found is not None and found.any() else None
        rows = self._rows_of_cross(call, queries) if cross else self._keys
        if not cross:
            self._masks.of_stack[self._positions(call.batch, filled)] = rows
            rows = None if rows is None else rows[:, filled - queries :]
        if self._keys is None and (rows is None or not rows.any()):
            return None
        known = np.zeros((call.batch, keys), np.bool_)
        if self._keys is not None:
            known[:, : self._keys.shape[1]] = self._keys[:, :keys]
        return Padding(np.zeros((call.batch, queries), np.bool_) if rows is None else rows, known)

    def reorder(self, rows: Tensor) -> None:
        """Let each sequence go on from the padding of another."""
        self._keys = None if self._keys is None else self._keys[rows.cpu().numpy()]

    def _positions(self, batch: int, count: int) -> tuple[Any, ...]:
        return self._place.stack, self._place.run, self._place.tower, batch, count

    def _mask(self, names: Sequence[str], batch: int) -> Flags | None:
        streams = self._masks.streams
        mask = next((streams[name] for name in names if name in streams), None)
        return None if mask is None or len(mask) not in (1, batch) else np.broadcast_to(mask, (batch, mask.shape[1]))

    def _is_full(self, batch: int, count: int) -> bool:
        """Return whether the mask of the model's call has these positions, and hides none."""
        streams = self._masks.streams
        name = next((name for name in self._place.own_streams if name in streams), None)
        return name in self._masks.full and streams[name].shape in ((batch, count), (1, count))

    def _of_self(self, call: WatchedCall, filled: int, shift: int) -> Flags | None:
        """Return the padding of the positions up to the newest key."""
        before = filled - call.queries
        mask, is_first = self._mask(self._place.own_streams, call.batch), self._heeds is None
        if mask is not None and filled < mask.shape[1] <= call.keys:  # a static cache has unused columns
            mask = mask[:, :filled]
        elif mask is not None and mask.shape[1] == call.queries < filled:  # a part of the text
            before_it = self._up_to(before, call.batch)
            mask = np.concatenate(
                [np.zeros((call.batch, before), np.bool_) if before_it is None else before_it, mask], 1
            )
        if mask is not None and mask.shape[1] != filled:
            mask = None
        if is_first:
            self._heeds = mask is not None and not _contradicts(call, mask[:, before:], mask[:, shift:])
        if mask is not None and self._heeds:
            known = self._up_to(filled, call.batch)
            return _at_ends(mask) if known is None else _at_ends(mask) | (mask & known)
        if is_first and before == 0 and shift == 0:
            known = self._masks.of_stack.get(self._positions(call.batch, filled), _UNKNOWN)
            if known is None or (known is not _UNKNOWN and not _contradicts(call, known, known)):
                return known  # of another layer of the same positions
            return _unseen(call, own=True)
        return self._up_to(filled, call.batch)

    def _of_cross(self, call: WatchedCall) -> Flags | None:
        """Return the padding of the keys, which are those of all calls."""
        if self._heeds is not None:
            return self._keys
        names = [name for name in ("source", *self._masks.streams) if name not in ("target", "text")]
        mask = self._mask(names, call.batch)
        self._heeds = mask is not None and mask.shape[1] == call.keys and not _contradicts(call, None, mask)
        return _at_ends(mask) if mask is not None and self._heeds else _unseen(call, own=False)

    def _rows_of_cross(self, call: WatchedCall, queries: int) -> Flags | None:
        """Return the padding of the queries, which attend to each other in other layers of the stack."""
        found = self._masks.of_stack.get(self._positions(call.batch, queries), _UNKNOWN)
        if found is _UNKNOWN:
            mask = self._mask(("target", "text"), call.batch)
            found = None if mask is None else _at_ends(mask)
        return found if found is not None and found.shape == (call.batch, queries) else None

    def _up_to(self, count: int, batch: int) -> Flags | None:
        """Return what is known of the first positions: later ones than those so far are none."""
        if self._keys is None:
            return None
        known = np.zeros((batch, count), np.bool_)
        known[:, : self._keys.shape[1]] = self._keys[:, :count]
        return known


def _at_ends(flags: Flags) -> Flags:
    """Return those flags of each sequence that all flags on one side of them share."""
    found: Flags = np.logical_and.accumulate(flags, 1) | np.logical_and.accumulate(flags[:, ::-1], 1)[:, ::-1]
    return found


def _contradicts(call: WatchedCall, rows: Flags | None, keys: Flags) -> bool:
    """Return whether a query that is no padding sees a key that is: then attention has another input, or no mask."""
    for batch_index in np.flatnonzero(keys.any(1)):
        visible = np.arange(call.queries) if rows is None else np.flatnonzero(~rows[batch_index])
        if len(visible):
            row, hidden = _row(call, int(visible[-1])), keys[batch_index, : call.keys]
            return bool((row[batch_index if len(row) > 1 else 0, : len(hidden)] & hidden).any())
    return False


def _row(call: WatchedCall, at: int) -> Flags:
    """Return which keys one query sees in some head, (batch or 1, keys)."""
    found: Flags = call.row(at).any(1).cpu().numpy()
    return found


def _unseen(call: WatchedCall, *, own: bool) -> Flags | None:
    """Return the keys at the ends of each sequence that none of its queries sees; None if there are none.

    Of a text that attends to itself (`own`), those up to the newest are asked; and if its last token does not see
    itself, a key that nobody sees may be a token, and None is returned.
    """
    if not call.may_hide_keys:
        return None
    count = call.queries if own else call.keys
    unseen = ~(_row(call, 0) | _row(call, call.queries - 1))[:, :count]
    step = max(1, _PAIRS // max(1, count * call.batch))
    for top in range(0, call.queries, step):
        if not unseen.any():
            return None
        rows = slice(top, min(top + step, call.queries))
        unseen = unseen & ~call.visible(rows, slice(0, count)).any(1).any(1).cpu().numpy()
    at_ends = _at_ends(unseen)
    for batch_index, flags in enumerate(at_ends if own and at_ends.any() else ()):
        last = np.flatnonzero(~flags)[-1:]
        if not len(last) or not _row(call, int(last[0]))[batch_index, last].all():
            return None
    return np.broadcast_to(at_ends, (call.batch, count)) if at_ends.any() else None
