"""Follow what a model computes: which tensors are scores of queries and keys, weights, outputs; and of what they are.

    scores   the product of two activations, and the result of any operator on it that preserves queries and keys
    weights  a softmax over scores, and the result of any operator on it
    seen     the product that sums weights over the dimension of the softmax

A language model's output softmax, a router's and a pooling's are not attention: their scores come from a product with
a parameter, or their result multiplies nothing. Recorded are the softmax's weights (before dropout, and before heads
are mixed, since mixtures can be negative), with later masks, factors and sums applied. What cannot be shown as queries
× keys is missing, with its reason.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.observe.call_kinds import CallFromWeights
from regard.observe.following.axes import (
    Axes,
    Axis,
    broadcast,
    joined,
    paired,
    plain,
    project,
    score,
    size_of,
    sliced,
    viewed,
    with_letters,
)
from regard.observe.following.memory import LEARNED, MADE, Cell, Memory, View, is_inexact, key_of, put
from regard.observe.following.operators import ADDED, Operator
from regard.observe.following.origins import Origin, crosses, join
from regard.observe.following.roles import (
    Edges,
    Exponentials,
    Noise,
    Output,
    Pairs,
    Sampled,
    Scores,
    Shares,
    SoftmaxUse,
    Sums,
    Verdicts,
    Weights,
    combined,
    is_pure,
    letters_of,
    show,
    still_blind,
)
from regard.observe.watched_call import WatchedCall
from regard.observe.weigh import HIDDEN
from regard.record import missing_attention as missing
from regard.record.missing_attention import Caller
from regard.torch_private import maybe_current_level

__all__ = ["Rules", "Watcher"]

_EINSUM = torch.functional.einsum.__code__
_TRANSFORMS = {str(Path(torch.__file__).parent / "_functorch" / name) for name in ("vmap.py", "eager_transforms.py")}
_SPREADS = {"mul", "add", "sub", "rsub"}
_KEEPS_OUTPUT = {"mul", "div"}
_SCALARS = (Shares, Sampled, Sums, Noise, Edges)  # what a number added or multiplied leaves as it is


class Watcher(Protocol):
    """Who is told of the attention that was found."""

    def find_caller(self) -> Caller | None:
        """Return the running module, or None if it belongs to another model."""
        ...

    def miss(self, caller: Caller, reason: str) -> None:
        """Count attention that cannot be recorded."""
        ...

    def withdraw(self, ticket: Any, reason: str) -> None:
        """Remove a recorded call that is no attention between tokens."""
        ...

    def record(self, call: WatchedCall, queries: Origin, output: Tensor | None, noted: Callable[[Any], None]) -> None:
        """Record a call whose weights the model has computed; `noted` is called with its ticket."""
        ...

    def functional_call(self, ends: tuple[Origin, Origin]) -> WatchedCall | None:
        """Return the call of F.multi_head_attention_forward that has computed scores, if it has."""
        ...

    def note_nothing(self) -> None:
        """Count a softmax over scores of no queries or no keys, of which there is nothing to record."""
        ...

    def look_up(self, ids: Tensor, table: Tensor, roots: frozenset[int], *, embeds: bool) -> None:
        """Process rows that were looked up in a table, of which these are the roots."""
        ...


@dataclass(eq=False)
class _Slices:
    """Calls over slices of (batch · heads), until they are all there."""

    softmaxes: tuple[SoftmaxUse, ...]
    ends: tuple[Origin, Origin]
    parts: list[tuple[int, int, Tensor, Tensor]]  # start, size, weights, values


class Rules:
    """What is known of the tensors of one thread, by one watch."""

    def __init__(self, watcher: Watcher) -> None:
        self.memory = Memory()
        self._watcher = watcher
        self._verdicts = Verdicts(watcher.miss, watcher.withdraw)
        self._count = count()
        self.latents: dict[int, int] = {}  # roots that are learned vectors, and the number of these
        self._learned_too: dict[Origin, Origin] = {}
        self._slices: dict[Any, _Slices] = {}
        self._func: Any = None  # the operator that is running
        self._before: tuple[View, Tensor | None] | None = None  # the first argument, and rows that saw nothing

    # --- origins

    def origin_of(self, tensor: Tensor) -> Origin:
        """Return the origin of a tensor; an unknown one is a root itself."""
        return self._origin(self.memory.cell(tensor), tensor)

    def _origin(self, cell: Cell, tensor: Tensor) -> Origin:
        if cell.origin is not None:
            return cell.origin
        first, last = _extent(tensor)
        for start, end, origin in cell.roots:
            if start <= first and last <= end:
                return origin
        number = next(self._count)
        origin = Origin(frozenset([number]))
        if cell.learned == LEARNED:
            self.latents[number] = _vectors_of(tensor)
        cell.roots.append((first, last, origin))
        return origin

    def begin(self, tensor: Tensor) -> None:
        """Make a tensor that was computed from others a root."""
        cell = self.memory.cell(tensor)
        cell.origin = Origin(frozenset([next(self._count)]), self._origin(cell, tensor).learned)

    def give(self, tensor: Tensor, origin: Origin, role: Any = None) -> None:
        """Note the result of attention that was recorded otherwise."""
        view = self.memory.view(tensor)
        view.cell.origin, view.cell.learned, view.role = origin, 0, role

    def _learned(self, origin: Origin) -> Origin:
        if origin.learned:
            return origin
        found = self._learned_too.get(origin)
        if found is None:
            found = self._learned_too[origin] = replace(origin, learned=True)
        return found

    def _joined(self, tensors: Sequence[Tensor], views: Sequence[View]) -> Origin:
        """Return the origin of an elementwise result: not of what is broadcast over the others."""
        most = max(tensor.numel() for tensor in tensors) if len(tensors) > 1 else 0
        found: Origin | None = None
        for tensor, view in zip(tensors, views, strict=True):
            if len(tensors) == 1 or tensor.numel() == most:
                own = self._origin(view.cell, tensor)
                found = own if found is None or own is found else join(found, own)
        assert found is not None
        return found

    # --- the rules

    def apply(
        self,
        rule: Callable[..., None],
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        func: Any,
    ) -> None:
        """Process one call that has returned, by one of the rules."""
        self._func = func
        if (args and isinstance(args[0], Tensor) and args[0].is_nested) or (
            isinstance(result, Tensor) and result.is_nested
        ):
            self._nested(args, result)
        else:
            rule(operator, args, kwargs, result)
        self._before = None

    def before(self, operator: Operator, args: tuple[Any, ...]) -> None:
        """Process a call that writes or shifts its first argument, before it runs."""
        if not isinstance(args[0], Tensor) or not is_inexact(args[0]):
            return
        view = self.memory.view(args[0])
        self._before = view, None
        if isinstance(view.role, Scores) and operator.name == "sub" and isinstance(args[1], Tensor):
            self._before = view, _hidden_rows(args[0], args[1])
        elif isinstance(view.role, Weights) and operator.is_in_place and view.role.source is None:
            other = self.memory.view(args[1]).role if len(args) > 1 and isinstance(args[1], Tensor) else None
            if isinstance(other, Noise):
                view.role.source = args[0].detach().clone()

    def _nested(self, args: tuple[Any, ...], result: Any) -> None:
        """Process nested tensors, of which only the origin is followed."""
        flat = [one for part in args for one in (part if isinstance(part, list | tuple) else (part,))]
        views = [(self.memory.view(one), one) for one in flat if is_inexact(one)]
        source = next(((view, one) for view, one in views if not view.cell.learned), None)
        if source is None:
            return
        origin = self._origin(source[0].cell, source[1])
        if any(view.cell.learned for view, _ in views):
            origin = self._learned(origin)
        for one in result if isinstance(result, list | tuple) else (result,):
            if is_inexact(one):
                cell = self.memory.cell(one)
                cell.origin, cell.learned = origin, 0

    def _nothing(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Note that weights were overwritten."""
        if operator.is_in_place:
            self._forget(self.memory.cell(args[0]))

    def _forget(self, cell: Cell, but: View | None = None) -> None:
        """Let weights that were written be recorded as they then are, not as they were before a copy or cast."""
        if cell.has_weights:
            for view in cell.views.values():
                if isinstance(view.role, Weights) and view is not but:
                    view.role.source = None

    def _put(self, result: Tensor, axes: Axes | None, role: Any, whole: Any = None, cell: Cell | None = None) -> View:
        cell = self.memory.cell(result) if cell is None else cell
        if type(role) is Weights:
            cell.has_weights = True
        return put(cell, result, axes, role, whole)

    def _derived(self, source: Tensor, view: View, result: Tensor) -> None:
        """Note what a result of one tensor was made of, if it has memory of its own."""
        cell = self.memory.cell(result)
        if cell is not view.cell:
            cell.learned = view.cell.learned
            cell.origin = self._origin(view.cell, source)

    def _same(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        source = args[0]
        if not is_inexact(source) or not is_inexact(result):
            return
        view = self.memory.view(source)
        self._derived(source, view, result)
        role = view.role
        if type(role) is Weights:
            role = replace(role, source=_source(role, source))
        self._put(result, view.axes, role)

    def _view(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        self._shape(args, kwargs, result, lambda axes, _: viewed(axes, tuple(result.shape)))

    def _permute(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        ndim = args[0].ndim
        if operator.name == "t" and self.memory.cell(args[0]).learned == LEARNED:
            return
        if operator.name == "permute":
            order = [at % ndim for at in args[1]]
        else:
            order = list(range(ndim))
            dims = args[1:3] if operator.name in ("transpose", "swapaxes") else (-1, -2)
            if ndim > 1:
                one, other = (at % ndim for at in dims)
                order[one], order[other] = order[other], order[one]
        view = self._shape(args, kwargs, result, lambda axes, _: tuple(axes[at] for at in order))
        if view is not None and operator.name == "t" and view.cell.learned == MADE:
            view.role = LEARNED  # as F.linear takes the weight that was merged of several parameters

    def _expand(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        shape = tuple(result.shape)

        def expanded(axes: Axes, _: Any) -> Axes:
            more = len(shape) - len(axes)
            own = (
                axis if size_of(axis) == size else (("n", size),) for axis, size in zip(axes, shape[more:], strict=True)
            )
            return (*((("n", size),) for size in shape[:more]), *own)

        self._shape(args, kwargs, result, expanded)

    def _unsqueeze(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        at = args[1] % result.ndim
        self._shape(args, kwargs, result, lambda axes, _: (*axes[:at], (("n", 1),), *axes[at:]))

    def _squeeze(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        dims = args[1] if len(args) > 1 else range(args[0].ndim) if self._before is None else ()
        some = {at % args[0].ndim for at in (dims if not isinstance(dims, int) else (dims,))} if args[0].ndim else set()
        self._shape(
            args, kwargs, result,
            lambda axes, shape: tuple(axis for at, axis in enumerate(axes) if at not in some or shape[at] != 1),
        )  # fmt: skip

    def _select(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        at = args[1] % args[0].ndim
        self._shape(args, kwargs, result, lambda axes, _: axes[:at] + axes[at + 1 :], whole=("select", at))

    def _slice(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        at = (args[1] if len(args) > 1 else 0) % args[0].ndim
        start, step = (args[2] if len(args) > 2 else 0) or 0, args[4] if len(args) > 4 else 1
        size = args[0].shape[at]
        start = max(0, start + size if start < 0 else start)

        def cut(axes: Axes, _: Any) -> Axes:
            axis = sliced(axes[at], start, result.shape[at]) if step == 1 else (("b", result.shape[at]),)
            return (*axes[:at], _resized(axes[at], axis), *axes[at + 1 :])

        self._shape(args, kwargs, result, cut, whole=("slice", at))

    def _parts(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        unbinds = operator.name == "unbind"
        at = (kwargs.get("dim", args[1 if unbinds else 2] if len(args) > (1 if unbinds else 2) else 0)) % args[0].ndim
        start = 0
        for number, part in enumerate(result):
            if unbinds:
                self._shape(args, kwargs, part, lambda axes, _: axes[:at] + axes[at + 1 :], None, number)
                continue
            axes = self.memory.view(args[0]).axes
            axis = None if axes is None else _resized(axes[at], sliced(axes[at], start, part.shape[at]))
            start += part.shape[at]
            self._shape(args, kwargs, part, functools.partial(_with_axis, at, axis), None, number)

    def _numbers(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        real = operator.name == "view_as_real"
        self._shape(
            args, kwargs, result,
            lambda axes, _: (*axes, (("n", 2),)) if real else axes[:-1],
        )  # fmt: skip

    def _shape(
        self,
        args: Any,
        kwargs: Any,
        result: Tensor,
        move: Callable[[Axes, Any], Axes | None],
        whole: Any = None,
        number: int | None = None,
    ) -> View | None:
        """Process a view of one tensor, or number `number` of several."""
        source = args[0]
        if not is_inexact(source):
            return None
        view = self._before[0] if self._before is not None else self.memory.view(source)
        cell = view.cell
        if cell.origin is None and not cell.learned:
            self._origin(cell, source)  # whose parts are no roots of their own
        shape = view.key[1] if view.key else None
        axes = None if view.axes is None or shape is None else move(view.axes, shape)
        role = view.role
        if type(role) is Weights:
            again = None if role.source is None else self._again(role.source, args, kwargs, result, number)
            role = replace(role, source=again)
            if whole is not None and result.numel() < source.numel():
                role.part = (id(view.cell), view.key, key_of(result))
            if number is not None:
                role.altered = True
                role.part = (id(view.cell), view.key, key_of(result))
                if axes is not None and letters_of(axes) & {"q", "k"} < letters_of(view.axes or ()) & {"q", "k"}:
                    axes = None  # which of these it was is not known
        elif type(role) is Pairs and axes is None:
            role = None
        return self._put(result, axes, role, None if whole is None else (view, *whole), cell)

    def _again(self, source: Tensor, args: Any, kwargs: Any, result: Tensor, number: int | None) -> Tensor | None:
        """Return of the weights before dropout what the running call made of those in use."""
        if self._func is None:
            return None
        name = self._func._schema.name
        if name.endswith(("view", "reshape", "_")):
            return source.reshape(result.shape) if source.numel() == result.numel() and "trans" not in name else None
        again: Any = self._func(source, *args[1:], **kwargs)
        found: Tensor = again if number is None else again[number]
        return found

    def _elementwise(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        if self._is_plain(operator, args, kwargs, result):
            return
        tensors = [one for one in args if isinstance(one, Tensor) and is_inexact(one)]
        tensors += [one for one in kwargs.values() if isinstance(one, Tensor) and is_inexact(one)] if kwargs else []
        if len(args) and isinstance(args[0], list | tuple):
            tensors += [one for one in args[0] if isinstance(one, Tensor) and is_inexact(one)]
        if not tensors:
            return
        if not isinstance(result, Tensor):
            results = [one for one in result if is_inexact(one)] if isinstance(result, list | tuple) else []
            if not results:
                return
            result = results[0]
        if not is_inexact(result):
            return
        views = [self.memory.view(one) for one in tensors]
        if self._before is not None and operator.is_in_place:
            views[0] = self._before[0]
        cell = self.memory.cell(result)
        active = [at for at, view in enumerate(views) if not view.cell.learned]
        if not active:
            cell.learned = max(view.cell.learned for view in views)
            if cell.learned == MADE:
                cell.origin = self._origin(views[0].cell, tensors[0])
                self._put(result, broadcast(tuple(view.axes or () for view in views), tuple(result.shape)), None)
            if not any(type(view.role) in (Weights, Scores, Pairs) for view in views):
                return
        else:
            some = tensors if len(active) == len(views) else [tensors[at] for at in active]
            seen = views if len(active) == len(views) else [views[at] for at in active]
            origin = self._joined(some, seen)
            if len(active) < len(views):
                origin = self._learned(origin)
            cell.learned = 0
            cell.origin = origin
        if operator.is_in_place:
            self._forget(cell, views[0])
        fits = _fits(tensors if len(tensors) == len(args) else [one for one in args if isinstance(one, Tensor)], result)
        self._meet(operator, tensors, views, active, result, fits=fits)

    def _is_plain(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> bool:
        """Process a call on one or two tensors of which no role is known, as most are; return whether it is one."""
        if operator.is_in_place or not args or not is_inexact(result) or not isinstance(args[0], Tensor):
            return False
        one = args[0]
        other = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else None
        if len(args) > 2 and any(isinstance(more, Tensor | list | tuple) for more in args[2:]):
            return False
        if not is_inexact(one) or (other is not None and not is_inexact(other)) or kwargs:
            return False
        view = self.memory.view(one)
        if view.role is not None or view.axes is None or view.key[1] != result.shape:
            return False
        origin = view.cell.origin
        if origin is None or view.cell.learned:
            return False
        axes = view.axes
        if other is not None:
            beside = self.memory.view(other)
            if beside.role is not None or beside.axes is None:
                return False
            if beside.cell.learned == LEARNED:
                origin = self._learned(origin)
                axes = broadcast((axes, beside.axes), result.shape)
            elif beside.cell.learned or beside.cell.origin is None or (beside.axes is not axes or _has_copies(axes)):
                return False
            elif beside.cell.origin is not origin:
                origin = join(origin, beside.cell.origin)
        cell = self.memory.cell(result)
        cell.origin, cell.learned = origin, 0
        put(cell, result, axes, None)
        return True

    def _meet(
        self,
        operator: Operator,
        tensors: list[Tensor],
        views: list[View],
        active: list[int],
        result: Tensor,
        *,
        fits: bool,
    ) -> None:
        """Find what the elementwise result of tensors is."""
        roles = [view.role for view in views]
        shape = tuple(result.shape)
        if len(views) == 1:
            role, axes = roles[0], views[0].axes
            if role is None and axes is not None and tensors[0].shape == result.shape:
                self._put(result, axes, None)
                return
        weighted = next((at for at, role in enumerate(roles) if type(role) is Weights), None)
        if weighted is not None:
            self._change_weights(operator, tensors, views, weighted, result, fits=fits)
            return
        scored = [at for at, role in enumerate(roles) if type(role) is Scores]
        if scored:
            self._change_scores(operator, tensors, views, scored, active, result, fits=fits)
            return
        known = tuple(view.axes for view in views if view.axes is not None)
        if len(active) > 1 and not fits:  # an operator that is not looked into may be a product of both
            origins = [self._origin(views[at].cell, tensors[at]) for at in active[:2]]
            self._put(result, None, Scores((origins[0], origins[1])) if result.ndim else None)
            return
        axes = broadcast(known, shape) if known and fits else plain(shape)
        spread = next((at for at, role in enumerate(roles) if type(role) is Pairs), None)
        if spread is not None:
            role = roles[spread]
            others = sum(tensors[at].numel() == result.numel() for at in active)
            edges = (
                operator.name in _SPREADS and others == 2 and role.two_sided and tensors[spread].shape == result.shape
            )
            keeps = edges or (others <= 1 and tensors[spread].numel() == result.numel())
            if role.two_sided or len(active) != 2:
                self._put(result, axes, role if keeps else None)
                return
        weighs = any(type(role) in (Sampled, Edges) for role in roles)
        if len(active) == 2 and operator.name in _SPREADS and fits and not weighs:
            one, other = (views[at] for at in active)
            multiplies, are_two = (
                operator.name == "mul" and spread is None,
                tensors[active[0]] is not tensors[active[1]],
            )
            pair = self._pair(one, other, shape, multiplies=multiplies, are_two=are_two)
            if pair is not None:
                ends = tuple(self._origin(views[at].cell, tensors[at]) for at in active)
                self._put(result, pair[0], Pairs(ends, pair[1] and pair[2]))  # type: ignore[arg-type]
                return
        self._put(result, axes, self._other_role(operator, tensors, views, result))

    def _pair(self, one: View, other: View, shape: tuple[int, ...], *, multiplies: bool, are_two: bool) -> Any:
        """Return the axes of two activations that are spread over each other, or None if they are not."""
        if one.axes is None or other.axes is None or (one.axes is other.axes and not _has_copies(one.axes)):
            return None
        if one is other:  # two views of one entry do not differ
            axes = _of_one_entry(one.axes)
            return None if axes is None or not are_two else (axes, True, True)
        pair = paired(one.axes, other.axes, shape)
        two_sided = pair[1] and pair[2]
        return pair if two_sided or (multiplies and (pair[1] or pair[2])) else None

    def _other_role(self, operator: Operator, tensors: list[Tensor], views: list[View], result: Tensor) -> Any:
        """Return the role of a result of neither scores nor weights."""
        roles = [view.role for view in views]
        kinds = {type(role) for role in roles if role is not None}
        if not kinds:
            return None
        if kinds >= {Shares, Sampled} and operator.name == "mul":
            self._miss(missing.DEFORMABLE)
            return None
        if operator.name == "div" and type(roles[0]) is Exponentials and len(roles) > 1 and type(roles[1]) is Sums:
            return Edges()
        if Edges in kinds and len(views) > 1 and operator.name == "mul":
            others = [view for view in views if type(view.role) is not Edges and not view.cell.learned]
            if Noise in kinds:
                return Edges()
            if others:
                self._miss(missing.EDGES)
            return None
        if operator.name in ("sub", "rsub") and len(views) == 2 and kinds == {Output} and None not in roles:
            if views[0] is not views[1]:
                for ticket in roles[0].tickets | roles[1].tickets:
                    self._verdicts.take_back(ticket, missing.DIFFERENCE)
            return None
        role = next(role for role in roles if role is not None)
        if type(role) is Output:
            same = operator.name in _KEEPS_OUTPUT and result.numel() == tensors[roles.index(role)].numel()
            return role if same else None
        alone = len(views) == 1 or (Noise in kinds and type(role) is not Noise)
        if type(role) is Noise and len(views) > 1:
            role = next((one for one in roles if type(one) is not Noise), None)
            return role if isinstance(role, _SCALARS) else None
        return (
            role
            if alone and isinstance(role, _SCALARS) and operator.name in ("add", "mul", "div", "clamp_min")
            else None
        )

    def _miss(self, reason: str) -> None:
        if (caller := self._watcher.find_caller()) is not None:
            self._watcher.miss(caller, reason)

    def _change_scores(
        self,
        operator: Operator,
        tensors: list[Tensor],
        views: list[View],
        scored: list[int],
        active: list[int],
        result: Tensor,
        *,
        fits: bool,
    ) -> None:
        def rank(at: int) -> tuple[bool, ...]:
            return not views[at].role.weak, views[at].axes is not None, tensors[at].shape == result.shape

        at = max(scored, key=rank)
        view, role = views[at], views[at].role
        letters = {one[0] for axis in view.axes or () for one in axis if one[0] in "qk" and one[1] > 1}
        others = [one for one in active if one not in scored]
        wider = bool(others) and result.numel() > tensors[at].numel()
        if role.exponential and wider and operator.name == "mul" and _has_room(tensors[at], result):
            self._miss(missing.BY_HAND)
            self._put(result, plain(tuple(result.shape)), None)
            return
        axes: Axes | None = None
        if wider and len(letters) < 2 and view.axes is not None:  # a number of each position gates activations
            axes = broadcast(tuple(views[one].axes or () for one in others), tuple(result.shape))
            self._put(result, axes, None)
            return
        if not result.ndim:
            return
        if view.axes is not None and (fits or tensors[at].shape == result.shape):
            axes = broadcast((view.axes,), tuple(result.shape))
        elif view.axes is not None and result.ndim == tensors[at].ndim:
            axes, role = self._lost(view, tensors[at], result)
        blind = role.blind
        if operator.name == "sub" and self._before is not None and self._before[1] is not None:
            blind = self._before[1]
        self._put(result, axes, replace(role, blind=blind, log_of=None))

    def _lost(self, view: View, source: Tensor, result: Tensor) -> tuple[Axes | None, Any]:
        """Return axes and role of scores or weights after they were rearranged: with the same numbers of queries and
        keys they are followed, so that they are missing where they meet values.
        """
        role = replace(view.role, lost=True)
        if view.axes is None or source.ndim != result.ndim:
            return None, role
        same = all(
            source.shape[at] == result.shape[at]
            for at, axis in enumerate(view.axes)
            if letters_of((axis,)) & {"q", "k"}
        )
        return (broadcast((view.axes,), tuple(result.shape)) if same else None), role

    def _change_weights(
        self, operator: Operator, tensors: list[Tensor], views: list[View], at: int, result: Tensor, *, fits: bool
    ) -> None:
        view, one = views[at], tensors[at]
        weights: Weights = view.role
        if any(type(other.role) is Noise for other in views):
            source = _source(weights, one)
            if source.shape == result.shape:
                self._put(result, view.axes, replace(weights, source=source))
                return
        others = [
            tensors[number]
            for number, other in enumerate(views)
            if type(other.role) is not Weights and not other.cell.learned
        ]
        if result.is_complex() and not one.is_complex():
            self._verdicts.fail(weights.softmaxes, missing.UNKNOWN.format(operator.name))
            return
        if not result.ndim:
            return
        if others and not fits:
            self._verdicts.suspect(weights, missing.UNKNOWN.format(operator.name))
            self._put(result, plain(tuple(result.shape)), None)
            return
        if others and operator.name == "mul" and result.numel() > one.numel() and _has_room(one, result):
            if self._sum_of_one(weights, view, one, others, result):
                return
            self._verdicts.suspect(weights, missing.ONE_BY_ONE)
            self._put(result, plain(tuple(result.shape)), None)
            return
        more = [other.role for number, other in enumerate(views) if number != at and type(other.role) is Weights]
        if weights.blended and result.shape == one.shape:
            self._put(result, view.axes, replace(combined(weights, more, weights.source, lost=False)))
            return
        differ = any(
            type(other.role) is Weights and other is not view and other.axes != view.axes for other in views
        )  # fmt: skip
        lost = differ or weights.lost
        axes: Axes | None = view.axes
        if axes is not None and result.shape != one.shape:
            if fits and result.ndim >= one.ndim:
                axes = broadcast((axes,), tuple(result.shape))
            else:
                axes, moved = self._lost(view, one, result)
                lost = lost or moved.lost
        keys = None if axes is None else next((n for n, axis in enumerate(axes) if is_pure(axis, "k")), None)
        blind = None if keys is None else still_blind(weights, keys, result)
        self._put(result, axes, combined(weights, more, blind, lost=lost))

    def _reduce(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        source = args[0]
        result = result[0] if isinstance(result, tuple) else result
        if not is_inexact(source) or not is_inexact(result):
            return
        view = self.memory.view(source)
        self._derived(source, view, result)
        place = 2 if operator.name in ("linalg_vector_norm", "norm") else 1
        dims = kwargs.get("dim", args[place] if len(args) > place else None)
        if isinstance(dims, Tensor):  # the larger of two tensors
            self._elementwise(Operator(operator.name, "", False, True, False), args, kwargs, result)
            return
        if dims is None or dims == [] or not source.ndim:
            return
        if view.axes is None:  # of weights whose dimensions are not known it may be any
            self._put(result, None, view.role if type(view.role) is Weights and result.ndim else None)
            return
        gone = {at % source.ndim for at in (dims if isinstance(dims, list | tuple) else (dims,))}
        keeps = result.ndim == source.ndim
        axes: Axes = tuple(
            (("n", 1),) if at in gone else axis for at, axis in enumerate(view.axes) if keeps or at not in gone
        )
        letters = letters_of(tuple(view.axes[at] for at in gone)) & {"q", "k"}
        role: Any = None
        if not letters and type(view.role) is Pairs:
            if view.role.two_sided or gone == {source.ndim - 1}:
                shared = [one for axis in axes for one in axis if one[0] == "b" and one[1] > 1]
                odd = missing.OWN_KEYS if len(shared) > 1 and not view.role.two_sided else None
                role = Scores(view.role.ends, weak=not view.role.two_sided, odd=odd)
        elif not letters and type(view.role) is Scores:
            role = replace(view.role, log_of=None)
        elif not letters and type(view.role) is Weights:
            role = combined(view.role, (), None, lost=view.role.lost)
            role.part = (id(view.cell), view.key, key_of(result))
        self._put(result, axes, role)

    def _product(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        factors = args[1:3] if operator.name in ADDED or operator.name == "_sparse_addmm" else args[:2]
        if len(factors) < 2:
            factors = tuple(kwargs[name] for name in ("batch1", "batch2") if name in kwargs)
        left, right = factors
        views = [self.memory.view(one) for one in factors]
        learned = [view.cell.learned == LEARNED or view.role is LEARNED for view in views]
        sides: list[Axes | None] = [view.axes for view in views]
        if operator.name in ("linear", "_cdist_forward", "_euclidean_dist"):
            turned = sides[1]
            sides[1] = None if turned is None or len(turned) < 2 else (*turned[:-2], turned[-1], turned[-2])
        cell = self.memory.cell(result)
        number = 0 if not views[0].cell.learned or views[1].cell.learned else 1
        cell.origin = self._origin(views[number].cell, factors[number])
        if any(view.cell.learned for view in views):
            cell.origin = self._learned(cell.origin)
        cell.learned = MADE if all(view.cell.learned for view in views) else 0
        for at, view in enumerate(views):
            if type(view.role) is Weights:
                if all(softmax.used for softmax in view.role.softmaxes):
                    self._verdicts.use_again(view.role)
                    cell.origin = view.role.ends[0]
                    self._put(result, _product_axes(sides, result), None)
                else:
                    self._sum(at, factors, views, sides, learned, result)
                return
        weighs = [
            _weighs(one, factor, other) for one, factor, other in ((views[0], left, right), (views[1], right, left))
        ]
        if any(learned) or any(weighs):
            at = 1 if (learned[0] and not learned[1]) or (weighs[1] and not any(learned)) else 0
            self._project(at, factors, views, sides, result)
        else:
            self._score(factors, views, sides, result)

    def _project(
        self, at: int, factors: Sequence[Tensor], views: Sequence[View], sides: Sequence[Axes | None], result: Tensor
    ) -> None:
        """Process a layer: a product of an activation, factor number `at`, and a parameter."""
        view, role, axes = views[at], views[at].role, None
        known = sides[0] is not None and sides[1] is not None
        if known:
            axes = project(sides[0], sides[1], is_left=at == 0)
            axes = axes if tuple(map(size_of, axes)) == tuple(result.shape) else None
        own = sides[at]
        inner = None if own is None else own[-1] if at == 0 or len(own) == 1 else own[-2]
        crosses_pairs = inner is None or letters_of((inner,)) & {"q", "k"}
        kind = type(role)
        if kind is Scores and not crosses_pairs:
            self._put(result, axes, replace(role, log_of=None))
        elif kind is Weights and not crosses_pairs:
            same = axes is not None and result.shape == factors[at].shape and _ends(axes) == _ends(view.axes or ())
            if same:
                source = _source(role, factors[at])
                self._put(result, view.axes, replace(role, source=source, blended=True))
            else:
                self._put(result, None, replace(role, source=None))
        elif kind is Pairs and not crosses_pairs and role.two_sided:
            self._put(result, axes, Scores(role.ends))
        else:
            self._put(result, axes if axes is not None else plain(tuple(result.shape)), None)

    def _score(
        self, factors: Sequence[Tensor], views: Sequence[View], sides: Sequence[Axes | None], result: Tensor
    ) -> None:
        """Process a product of two activations; of exponentials of scores, it is a softmax written by hand."""
        for at, view in enumerate(views):
            own = sides[at]
            if type(view.role) is Scores and view.role.exponential and own is not None:
                inner = own[-1] if at == 0 or len(own) == 1 else own[-2]
                if is_pure(inner, "q") or is_pure(inner, "k"):
                    self._miss(missing.BY_HAND)
                    self._put(result, plain(tuple(result.shape)), None)
                    return
        ends = self._origin(views[0].cell, factors[0]), self._origin(views[1].cell, factors[1])
        axes, odd = None, None
        if sides[0] is not None and sides[1] is not None:
            clean = (_without_pairs(sides[0]), _without_pairs(sides[1]))
            axes, odd = score(*clean)
            if axes is not None and tuple(map(size_of, axes)) != tuple(result.shape):
                axes = None
        if _is_transformed():
            odd = missing.TRANSFORMED
        self._put(result, axes, Scores(ends, odd=odd, call=None if odd else self._watcher.functional_call(ends)))

    def _sum(
        self,
        at: int,
        factors: Sequence[Tensor],
        views: Sequence[View],
        sides: Sequence[Axes | None],
        learned: Sequence[bool],
        result: Tensor,
    ) -> None:
        """Process the product of weights, factor number `at`, and another tensor."""
        weights: Weights = views[at].role
        one, other = factors[at], factors[1 - at]
        if learned[1 - at]:
            self._project(at, factors, views, sides, result)
            return
        after = plain(tuple(result.shape))
        if _is_transformed():
            self._verdicts.suspect(weights, missing.TRANSFORMED)
            self._put(result, after, None)
            return
        role = views[1 - at].role
        chains = type(role) is Output and any(
            getattr(ticket, "caller", None) == weights.softmaxes[0].caller for ticket in role.tickets
        )
        if type(role) is Weights or chains:
            softmaxes = weights.softmaxes + (role.softmaxes if type(role) is Weights else ())
            if len(set(map(id, softmaxes))) == 1:
                self._verdicts.suspect(weights, missing.LANDMARKS)
            else:
                self._verdicts.fail(dict.fromkeys(softmaxes), missing.LANDMARKS)
            if chains:
                for ticket in role.tickets:
                    self._verdicts.take_back(ticket, missing.LANDMARKS)
                self._put(result, after, None)
            else:
                self._put(result, None, Weights(None, tuple(dict.fromkeys(softmaxes)), weights.ends))
            return
        axes = sides[at]
        if axes is None or weights.lost:
            self._verdicts.suspect(weights, missing.REARRANGED)
            self._put(result, after, None)
            return
        inner = len(axes) - 1 if at == 0 or len(axes) == 1 else len(axes) - 2
        if not is_pure(axes[inner], "k"):
            if not all(softmax.windows for softmax in weights.softmaxes):  # else it mixes streams (hyper-connections)
                self._verdicts.suspect(weights, missing.OTHER_SUM)
            self._put(result, after, None)
            return
        values = other if at == 0 else other.transpose(-1, -2) if other.ndim > 1 else other
        values = values[..., None] if other.ndim < 2 else values
        self._put(result, _product_axes(sides, result), None)
        self.memory.cell(result).origin = weights.ends[0]
        side = sides[1 - at]
        side = None if side is None else side if at == 0 or len(side) < 2 else (*side[:-2], side[-1], side[-2])
        self._used(weights, one, axes, values, side if other.ndim > 1 else None, result)

    def _sum_of_one(self, weights: Weights, view: View, one: Tensor, others: list[Tensor], result: Tensor) -> bool:
        """Process weights on the values of one key, which einsum multiplies instead of summing; return whether it is
        that.
        """
        axes = view.axes
        if axes is None or len(others) != 1 or others[0].ndim != one.ndim or not _is_einsum():
            return False
        other = others[0]
        keys = next((at for at, axis in enumerate(axes) if is_pure(axis, "k")), None)
        wide = [at for at in range(one.ndim) if one.shape[at] == 1 < other.shape[at]]
        if keys is None or one.shape[keys] != 1 or other.shape[keys] != 1 or len(wide) != 1:
            return False
        rest = [at for at in range(one.ndim) if at not in (keys, wide[0])]
        values = other.permute(*rest, keys, wide[0]).expand(*(one.shape[at] for at in rest), 1, -1)
        source = _source(weights, one).permute(*rest, keys, wide[0])[..., 0]
        self._put(result, plain(tuple(result.shape)), None)
        self.memory.cell(result).origin = weights.ends[0]
        short = tuple(axes[at] for at in (*rest, keys))
        self._used(replace(weights, source=source), source, short, values, None, result)
        return True

    def _used(
        self, weights: Weights, one: Tensor, axes: Axes, values: Tensor, side: Axes | None, result: Tensor
    ) -> None:
        """Process weights on values, unless the weights can be negative."""
        matrix = _source(weights, one)
        if weights.altered and bool((matrix < 0).any()):
            self._verdicts.fail(weights.softmaxes, missing.NEGATIVE)
            return
        doubts = [softmax.suspect for softmax in weights.softmaxes if softmax.suspect and weights.part is not None]
        if weights.odd or doubts:
            self._verdicts.fail(weights.softmaxes, weights.odd or str(doubts[0]))
            return
        slice_factor = next((one for axis in axes for one in axis if one[0] == "p" and one[1] and len(axis) == 1), None)
        if slice_factor is not None and axes[0] == (slice_factor,) and values.ndim == one.ndim:
            self._gather(weights, matrix, axes, values, slice_factor, result)
            return
        for softmax in weights.softmaxes:
            softmax.used, softmax.part = True, weights.part
        call = show(matrix.detach(), axes, values.detach(), side)
        is_plain = result.ndim == 3 and one.ndim == 3
        self._record(weights, call, result if is_plain else None, result)

    def _record(self, weights: Weights, call: CallFromWeights, output: Tensor | None, result: Tensor) -> None:
        view = self.memory.view(result)

        def noted(ticket: Any) -> None:
            for softmax in weights.softmaxes:
                softmax.ticket = ticket
            if ticket is not None:
                view.role = Output(frozenset([ticket]))

        self._watcher.record(call.having(cross=crosses(*weights.ends)), weights.ends[0], output, noted)

    def _gather(
        self, weights: Weights, matrix: Tensor, axes: Axes, values: Tensor, factor: Any, result: Tensor
    ) -> None:
        """Collect the slices of one module's heads, computed one after the other as by diffusers' attention slicing."""
        _, size, start, whole = factor
        key = weights.softmaxes[0].caller, whole, matrix.shape[1:]
        for softmax in weights.softmaxes:
            softmax.used = True
        if key not in self._slices or start == 0:
            self._drop_slices(key)
            self._slices[key] = _Slices((), weights.ends, [])
        slices = self._slices[key]
        slices.softmaxes += weights.softmaxes
        slices.parts.append((start, size, matrix.detach(), values.detach()))
        if start + size < size_of(whole):
            return
        del self._slices[key]
        if [begin for begin, *_ in slices.parts] != [
            sum(part[1] for part in slices.parts[:at]) for at in range(len(slices.parts))
        ]:
            self._fail_slices(slices)
            return
        matrix = torch.cat([part[2] for part in slices.parts])
        values = torch.cat([part[3] for part in slices.parts])
        call = show(matrix, (whole, *axes[1:]), values, None)
        self._record(replace(weights, softmaxes=slices.softmaxes), call, None, result)

    def _drop_slices(self, key: Any) -> None:
        slices = self._slices.pop(key, None)
        if slices is not None:
            self._fail_slices(slices)

    def _fail_slices(self, slices: _Slices) -> None:
        for softmax in slices.softmaxes:
            softmax.used = False
        self._verdicts.fail(slices.softmaxes, missing.REARRANGED)

    def finish(self) -> None:
        """Report what was only suspected, and slices that did not become whole."""
        for key in list(self._slices):
            self._drop_slices(key)
        self._verdicts.finish()

    def _convolution(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        x, weight = args[:2]
        view, kernel = self.memory.view(x), self.memory.view(weight)
        cell = self.memory.cell(result)
        if not kernel.cell.learned:
            if type(view.role) is Weights or type(kernel.role) is Weights:
                weights = view.role if type(view.role) is Weights else kernel.role
                self._verdicts.suspect(weights, missing.UNKNOWN.format(operator.name))
                return
            ends = self._origin(view.cell, x), self._origin(kernel.cell, weight)
            cell.origin = ends[0]
            self._put(result, None, Scores(ends))
            return
        cell.origin, cell.learned = self._learned(self._origin(view.cell, x)), MADE if view.cell.learned else 0
        axes = view.axes
        role: Any = None
        spatial = weight.ndim - 2
        channel = x.ndim - 1 - spatial
        if axes is not None and type(view.role) in (Scores, Weights, Pairs):
            free = channel >= 0 and not letters_of((axes[channel],)) & {"q", "k"}
            same = x.shape[channel + 1 :] == result.shape[channel + 1 :]
            moved = (*axes[:channel], (("b", result.shape[channel]),), *axes[channel + 1 :]) if free and same else None
            if free and type(view.role) is Scores:
                self._put(result, moved, replace(view.role, log_of=None))
                return
            if free and type(view.role) is Pairs and view.role.two_sided and moved is not None:
                self._put(result, moved, Scores(view.role.ends))
                return
            if free and type(view.role) is Weights:
                same = same and x.shape == result.shape
                role = replace(view.role, source=_source(view.role, x) if same else None, blended=same)
                self._put(result, axes if same else None, role)
                return
        found = list(plain(tuple(result.shape)))
        if channel >= 0:
            found[channel] = (("f", result.shape[channel]),)
            if axes is not None and channel:
                found[0] = axes[0]
        self._put(result, tuple(found), None)

    def _softmax(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        place = 2 if operator.name == "_masked_softmax" else 1
        dim = kwargs.get("dim", args[place] if len(args) > place else None)
        self._soften(args[0], -1 if dim is None else dim, result)

    def _soften(self, scores: Tensor, dim: int, result: Tensor) -> None:
        """Process a softmax."""
        if not result.ndim or not result.numel():
            if result.ndim and type(self.memory.view(scores).role) is Scores:
                self._watcher.note_nothing()
            return
        view = self.memory.view(scores)
        self._derived(scores, view, result)
        role, axes, windows = view.role, view.axes, False
        if type(role) not in (Scores, Weights):
            if type(role) is not Pairs and (found := _windows(axes, dim)) is not None:
                axes, origin, windows = found, self._origin(view.cell, scores), True
                role = Scores((origin, origin))
            else:
                self._put(result, axes, Shares(None))
                return
        if axes is not None and size_of(axes[dim]) == 1 and not (type(role) is Scores and role.weak):
            axes = _with_one_key(axes, dim)
        axis = None if axes is None else axes[dim]
        placed = axis is not None and (is_pure(axis, "q") or is_pure(axis, "k")) and not role.lost
        if placed and axes is not None and axis is not None:  # and over all of them
            letter = next(one[0] for one in axis if one[0] in "qk")
            placed = sum(letter in letters_of((one,)) for one in axes) == 1
        if type(role) is Scores and role.weak and not placed:
            self._put(result, plain(tuple(result.shape)), Shares(None))
            return
        if (caller := self._watcher.find_caller()) is None:
            self._put(result, None, None)
            return  # of another model
        if _is_transformed():
            self._watcher.miss(caller, missing.TRANSFORMED)
            self._put(result, None, None)
            return
        softmax = SoftmaxUse(caller, windows=windows)
        ends = role.ends
        if type(role) is Scores and role.call is not None:
            softmax.used = True
            self._watcher.record(role.call, ends[0], None, lambda ticket: setattr(softmax, "ticket", ticket))
            self._put(result, None, Weights(None, (softmax,), ends))
            return
        if not placed or axes is None or axis is None or result.layout is not torch.strided:
            lost = axes if axes is not None and role.lost and result.layout is torch.strided else None
            self._put(result, lost, Weights(None, (softmax,), ends, lost=True))
            return
        if is_pure(axis, "q"):
            axes, ends = with_letters(axes, "qk", "kq"), (ends[1], ends[0])
        axes = (
            *axes[: dim % len(axes)],
            tuple(one for one in axes[dim] if one[0] == "k"),
            *axes[dim % len(axes) + 1 :],
        )
        axes = _with_heads(_with_last_queries(axes))
        self.memory.cell(result).origin = ends[0]
        # In a fully masked row the model has even weights or NaN; the recorded weights are 0.
        blind = scores.detach().amax(dim, keepdim=True) <= HIDDEN
        before = role.blind if type(role) is Scores else None
        blind = blind if before is None or before.shape != blind.shape else blind | before
        source = result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None
        self._put(result, axes, Weights(source, (softmax,), ends, odd=role.odd))

    def _log_softmax(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        self._elementwise(operator, args[:1], {}, result)
        view = self.memory.view(args[0])
        if type(view.role) is Scores:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            after = self.memory.view(result)
            after.role = replace(after.role, log_of=((args[0].detach(), view), dim))

    def _exponential(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        source = args[1] if operator.name == "pow" else args[0]
        if not is_inexact(source):
            return
        view = self._before[0] if self._before is not None else self.memory.view(source)
        role = view.role
        if type(role) is Scores and role.log_of is not None and operator.name == "exp":
            (scores, known), dim = role.log_of
            self._put(scores, known.axes, known.role)
            self._soften(scores, dim, result)
            return
        self._elementwise(operator, (source,), {}, result)
        after = self.memory.view(result)
        if type(role) is Scores:
            after.role = replace(role, exponential=True, log_of=None)
            after.axes = view.axes
        elif type(role) is not Weights and operator.name == "exp":
            after.role = Exponentials()

    def _concatenate(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [one for one in args[0] if is_inexact(one)]
        if not tensors or not is_inexact(result):
            return
        dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.ndim
        tensors = [one for one in tensors if one.ndim == result.ndim]  # a cache may begin as an empty list of numbers
        if not tensors:
            return
        self._join(tensors, result, lambda known: joined(known, dim, result.shape[dim]), dim)

    def _stack(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [one for one in args[0] if is_inexact(one)]
        if not tensors:
            return
        dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.ndim
        views = [self.memory.view(one) for one in tensors]
        cells = {id(view.cell) for view in views}
        positions = sum(factor[0] == "b" and factor[1] > 1 for axis in views[0].axes or () for factor in axis)
        letter = "n" if all(one is tensors[0] for one in tensors) else "l" if len(cells) > 1 and positions > 1 else "s"
        if any(type(view.role) in (Weights, Scores) for view in views):
            letter = "b"  # of heads or of texts

        def stacked(known: tuple[Axes, ...]) -> Axes:
            axes = broadcast(known, tuple(tensors[0].shape)) if len(known) > 1 else known[0]
            return (*axes[:dim], ((letter, len(tensors)),), *axes[dim:])

        self._join(tensors, result, stacked, None)

    def _join(
        self, tensors: list[Tensor], result: Tensor, move: Callable[[tuple[Axes, ...]], Axes], dim: int | None
    ) -> None:
        """Process tensors that are put side by side."""
        views = [self.memory.view(one) for one in tensors]
        cell = self.memory.cell(result)
        several = [view.cell.learned == 0 or _vectors_of(one) > 1 for view, one in zip(views, tensors, strict=True)]
        is_learned = [view.cell.learned > 0 for view in views]
        if all(is_learned):
            cell.learned = max(view.cell.learned for view in views)
            cell.origin = self._origin(views[0].cell, tensors[0]) if cell.learned == MADE else None
        else:
            # The keys of a resampler are those of an image and its own latents.
            found = [
                self._origin(view.cell, one) for view, one, has in zip(views, tensors, several, strict=True) if has
            ]
            origin = found[0]
            for other in found[1:]:
                origin = join(origin, other)
            single = [
                self._origin(view.cell, one).roots
                for view, one, has in zip(views, tensors, several, strict=True)
                if not has and _vectors_of(one) == 1
            ]
            if any(is_learned):
                origin = replace(origin, learned=True, vectors=origin.vectors.union(*single))
            cell.origin, cell.learned = origin, 0
        known = tuple(view.axes for view in views if view.axes is not None)
        axes = move(known) if len(known) == len(views) else None
        roles = [view.role for view in views]
        weighted = [role for role in roles if type(role) is Weights]
        if weighted:
            same = axes is not None and _is_once(axes)
            self._put(result, axes if same else None, combined(weighted[0], weighted[1:], None, lost=False))
            return
        scored = [at for at, role in enumerate(roles) if type(role) is Scores]
        if scored:
            role = roles[scored[0]]
            ends = role.ends
            for at in scored[1:]:
                ends = join(ends[0], roles[at].ends[0]), join(ends[1], roles[at].ends[1])
            self._put(
                result, axes if axes is not None and _is_once(axes) else None, replace(role, ends=ends, log_of=None)
            )
            return
        pairs = [role for role in roles if type(role) is Pairs]
        if pairs and pairs[0].two_sided and dim is not None:
            self._put(result, axes, pairs[0])
            return
        if dim is not None and len(views) > 1 and not any(is_learned) and len(known) == len(views):
            of_one, of_other = (tuple(view.axes[:dim] + view.axes[dim + 1 :]) for view in views[:2])  # type: ignore[index]
            shape = tuple(result.shape[:dim] + result.shape[dim + 1 :])
            pair = paired(of_one, of_other, shape) if of_one is not of_other else None
            if pair is not None and pair[1] and pair[2]:
                left, right = (
                    self._origin(view.cell, tensor) for view, tensor in zip(views[:2], tensors[:2], strict=True)
                )
                axes = (*pair[0][:dim], (("f", result.shape[dim]),), *pair[0][dim:])
                self._put(result, axes, Pairs((left, right), two_sided=True))
                return
        outputs = [role for role in roles if type(role) is Output]
        role = Output(frozenset[Any]().union(*(one.tickets for one in outputs))) if outputs else None
        if roles and all(type(one) is Sampled for one in roles):
            role = roles[0]
        self._put(result, axes, role)

    def _copy(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Process a tensor that is written to another, or to a part of one."""
        target, source = args[:2]
        if not is_inexact(target) or not is_inexact(source):
            return
        view, given = self.memory.view(target), self.memory.view(source)
        self._write(view.cell, target, [source], [given])
        self._forget(view.cell)
        role, axes = given.role, given.axes
        if target.shape != source.shape:
            axes, role = plain(tuple(target.shape)), None
        if view.whole is None:
            view.axes, view.role = axes, replace(role) if type(role) is Weights else role
            view.cell.has_weights |= type(role) is Weights
            return
        while view.whole is not None and type(role) in (Weights, Scores):
            base, kind, at = view.whole
            if axes is None:  # its dimensions are not known, nor are those of what it is written to
                role = replace(role, lost=True, source=None) if type(role) is Weights else replace(role, lost=True)
                base.axes, base.role, view = None, role, base
                base.cell.has_weights |= type(role) is Weights
                continue
            letters = letters_of(axes)
            missing_end = "q" if "q" not in letters else "k" if "k" not in letters else "b"
            if kind == "slice":
                axes = (*axes[:at], _grown(axes[at], base.key[1][at]), *axes[at + 1 :])
            else:
                axes = (*axes[:at], ((missing_end, base.key[1][at]),), *axes[at:])
            if type(role) is Weights:
                before = base.role if type(base.role) is Weights else None
                role = combined(role, () if before is None else (before,), None, lost=False)
                role.part = None
                base.cell.has_weights = True
            base.axes, base.role, view = axes, role, base

    def _write(self, cell: Cell, target: Tensor, sources: list[Tensor], views: list[View]) -> None:
        """Join the origin of what is written to that of the rest."""
        active = [(view, one) for view, one in zip(views, sources, strict=True) if not view.cell.learned]
        if not active:
            return
        origin = self._origin(active[0][0].cell, active[0][1])
        for view, one in active[1:]:
            origin = join(origin, self._origin(view.cell, one))
        known = cell.origin if cell.origin is not None or not cell.roots else cell.roots[0][2]
        cell.origin = origin if known is None or cell.learned else join(known, origin)
        cell.learned = 0

    def _scatter(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [one for one in args if isinstance(one, Tensor) and is_inexact(one)]
        if not is_inexact(result) or not tensors:
            return
        views = [self.memory.view(one) for one in tensors]
        cell = self.memory.cell(result)
        if not operator.is_in_place:
            cell.origin, cell.learned = self._origin(views[0].cell, tensors[0]), views[0].cell.learned
        self._write(cell, result, tensors[1:], views[1:])
        self._forget(cell)
        given = views[-1].role
        adds = operator.name in ("scatter_add", "index_add") or (operator.name == "scatter_reduce" and "sum" in args)
        if type(given) is Exponentials and adds:
            self._put(result, plain(tuple(result.shape)), Sums())
        elif type(given) in (Weights, Scores):
            self._put(result, None, replace(given, lost=True))
        elif type(given) is Edges:
            self._put(result, plain(tuple(result.shape)), given)

    def _norm(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        result = result[0] if isinstance(result, tuple) else result
        view = self.memory.view(args[0])
        cell = self.memory.cell(result)
        if cell is not view.cell:
            cell.learned, cell.origin = view.cell.learned, self._learned(self._origin(view.cell, args[0]))
        axes, role = view.axes, view.role
        if type(role) is Weights:
            self._put(result, axes, replace(role, source=_source(role, args[0]), blended=True))
            return
        if (axes is not None and "layer" in operator.name) or "rms" in operator.name:
            last = axes[-1] if axes is not None else ()
            if axes is not None and all(factor[0] == "b" for factor in last):
                axes = (*axes[:-1], (("f", size_of(last)),))
        self._put(result, axes, role if type(role) is Scores else None)

    def _embed(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        table, ids = args[:2]
        self._rows(table, ids, result)
        self._watcher.look_up(ids, table, self.origin_of(result).roots, embeds=True)

    def _one_hot(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        self._watcher.look_up(args[0], result.new_empty(result.shape[-1], 0), frozenset(), embeds=False)

    def _rows(self, table: Tensor, ids: Tensor, result: Tensor) -> None:
        """Process rows that were looked up in a table: those of other ids are another text."""
        if not is_inexact(result):
            return
        view, cell = self.memory.view(table), self.memory.cell(result)
        if view.cell.learned:
            known = self.memory.cell(ids)
            if known.learned:  # a buffer of positions
                cell.origin = Origin(frozenset([next(self._count)]))
            else:
                if known.ids is None:
                    known.ids = Origin(frozenset([next(self._count)]))
                cell.origin = Origin(frozenset([next(self._count)]), ids=known.ids.roots)
        else:
            cell.origin = self._origin(view.cell, table)
        axes = plain(tuple(result.shape))
        self._put(result, (*axes[:-1], (("f", result.shape[-1]),)) if result.ndim > 1 else axes, None)

    def _pick(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Process entries that were chosen by tensors of indices."""
        source = args[0]
        if not is_inexact(result):
            return
        index = args[1] if operator.name == "index" else [args[2]] if operator.name == "index_select" else []
        index = list(index) if isinstance(index, list | tuple) else []
        first = index[0] if index and all(one is None for one in index[1:]) else None
        by_rows = operator.name == "index" or (operator.name == "index_select" and args[1] in (0, -source.ndim))
        if (
            by_rows
            and source.ndim == 2
            and isinstance(first, Tensor)
            and first.dtype in (torch.int64, torch.int32)
            and source.is_floating_point()
        ):
            is_table = bool(self.memory.cell(source).learned)
            if is_table:
                self._rows(source, first, result)
            self._watcher.look_up(
                first, source, self.origin_of(result).roots if is_table else frozenset(), embeds=False
            )
            if is_table:
                return
        self._rearrange(operator, args, kwargs, result)

    def _rearrange(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Process entries in another order, or in other numbers."""
        source = args[0]
        result = result[0] if isinstance(result, tuple) else result
        if not is_inexact(source) or not is_inexact(result):
            return
        view = self.memory.view(source)
        self._derived(source, view, result)
        role, axes = view.role, view.axes
        if type(role) in (Scores, Weights):
            last = () if axes is None else axes[-1]
            pads = operator.name == "constant_pad_nd" and len(args[1]) == 2 and last
            if pads and axes is not None and (is_pure(last, "q") or is_pure(last, "k")):  # a sink
                axes = (*axes[:-1], _grown(last, result.shape[-1]))
                role = replace(role, source=None) if type(role) is Weights else replace(role, log_of=None)
                self._put(result, axes, role)
                return
            axes, role = self._lost(view, source, result)
            if type(role) is Weights:
                role.source, role.altered = None, True
            self._put(result, axes, role)
            return
        if axes is not None and result.ndim == source.ndim:
            axes = tuple(
                axis if size_of(axis) == size else (((axis[0][0] if len(axis) == 1 else "b"), size),)
                for axis, size in zip(axes, result.shape, strict=True)
            )
            axes = tuple(((("b", *one[0][1:2]),) if one[0][0] in "np" else one) for one in axes)
        else:
            axes = plain(tuple(result.shape))
        self._put(result, axes, role if isinstance(role, Sums | Sampled | Shares) else None)

    def _repeat(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        source, times = args[:2]
        if not is_inexact(source):
            return
        view = self.memory.view(source)
        if type(view.role) in (Scores, Weights) or view.axes is None:
            self._rearrange(operator, args, kwargs, result)
            return
        self._derived(source, view, result)
        more = len(times) - source.ndim
        axes: list[Axis] = [(("n", size),) for size in times[:more]]
        for axis, number in zip(view.axes, times[more:], strict=True):
            if number == 1:
                axes.append(axis)
            else:
                axes.append((("n", number),) if size_of(axis) == 1 else (("n", number), *axis))
        self._put(result, tuple(axes), None)

    def _sample(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Process values that are sampled at places; places that were computed are those of deformable attention."""
        self._rearrange(operator, args, kwargs, result)
        if not self.memory.cell(args[0]).learned:
            self._put(result, plain(tuple(result.shape)), Sampled())

    def _noise(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        self._put(result, plain(tuple(result.shape)), Noise())

    def _dropout(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        self._same(operator, args, kwargs, result[0])

    def _recurrent(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Process a recurrent layer, whose states have no positions, even if they summarize a text."""
        output = result[0] if isinstance(result, tuple) else result
        view = self.memory.view(args[0])
        cell = self.memory.cell(output)
        cell.origin, cell.learned = self._learned(self._origin(view.cell, args[0])), 0
        axes = plain(tuple(output.shape))
        self._put(output, (*axes[:-1], (("f", output.shape[-1]),)), None)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first and the last place in memory that a tensor reads."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return 0, 0
    first = tensor.storage_offset()
    last = first + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size)
    return int(first), int(last)


def _vectors_of(tensor: Tensor) -> int:
    """Return the number of vectors that a tensor has in memory, before one is broadcast; 0 if it is unknown."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.ndim < 2:
        return 0
    first, last = _extent(tensor)
    return (last - first + 1) // max(1, tensor.shape[-1])


def _hidden_rows(scores: Tensor, other: Tensor) -> Tensor | None:
    """Return which rows of scores see no key, before their maximum is subtracted."""
    if scores.is_complex() or scores.ndim != other.ndim:
        return None
    summed = [at for at, size in enumerate(scores.shape) if other.shape[at] < size]
    return scores.detach().amax(summed[0], keepdim=True) <= HIDDEN if len(summed) == 1 else None


def _source(weights: Weights, one: Tensor) -> Tensor:
    """Return the tensor to record for weights that are now `one`."""
    return one.detach() if weights.source is None else weights.source


def _resized(axis: Any, after: Any) -> Any:
    """Return a sliced dimension of which the letter of queries or keys is kept."""
    letters = {factor[0] for factor in axis if factor[0] in "qk"}
    if len(letters) == 1 and is_pure(axis, next(iter(letters))):
        return ((next(iter(letters)), size_of(after)),)
    return after


def _grown(axis: Any, size: int) -> Any:
    """Return a dimension of another size."""
    letter = next((factor[0] for factor in axis if factor[0] in "qk"), axis[0][0])
    return ((letter if letter != "p" else "b", size),)


@functools.cache
def _has_copies(axes: Axes) -> bool:
    return any(factor[0] == "n" for axis in axes for factor in axis)


def _of_one_entry(axes: Axes) -> Axes | None:
    """Return axes of pairs of one query and one key, where views of both are the same; None if they are none."""
    places = [at for at, axis in enumerate(axes) if axis in ((("n", 1),), (("b", 1),))]
    if len(places) < 2 or not _has_copies(axes):
        return None
    found = list(axes)
    found[places[-2]], found[places[-1]] = (("q", 1),), (("k", 1),)
    return tuple(found)


def _fits(tensors: Sequence[Tensor], result: Tensor) -> bool:
    """Return whether a result has the sizes of an elementwise operator's."""
    return _broadcasts(tuple([one.shape for one in tensors]), result.shape)


@functools.cache
def _broadcasts(shapes: tuple[torch.Size, ...], shape: torch.Size) -> bool:
    try:
        return not shapes or np.broadcast_shapes(*shapes) == tuple(shape)  # PyTorch's own loads its compiler
    except ValueError:
        return False


def _with_axis(at: int, axis: Axis | None, axes: Axes, _: Any) -> Axes | None:
    """Return axes of which one is another, or None."""
    return None if axis is None else (*axes[:at], axis, *axes[at + 1 :])


def _has_room(one: Tensor, result: Tensor) -> bool:
    """Return whether weights have a dimension of one where their product with others has more."""
    return one.ndim == result.ndim and any(own == 1 < size for own, size in zip(one.shape, result.shape, strict=True))


def _weighs(view: View, factor: Tensor, other: Tensor) -> bool:
    """Return whether pairs are multiplied by one vector of their width, which makes one score of each."""
    return type(view.role) is Pairs and view.role.two_sided and other.numel() == factor.shape[-1]


def _without_pairs(axes: Axes) -> Axes:
    return with_letters(axes, "qk", "bb")


def _with_last_queries(axes: Axes) -> Axes:
    """Return axes of weights whose queries are one dimension: of several, the last."""
    places = [at for at, axis in enumerate(axes) if any(one[0] == "q" for one in axis)]
    if len(places) < 2:
        return axes
    cut = places[-1]
    return (*with_letters(axes[:cut], "q", "b"), *axes[cut:])


def _with_heads(axes: Axes) -> Axes:
    """Return axes of weights (batch, heads, queries, keys), of which the second beside the pairs is that of heads."""
    leading = [at for at, axis in enumerate(axes) if not letters_of((axis,)) & {"q", "k"}]
    if len(axes) != 4 or len(leading) != 2:
        return axes
    first, second = leading
    found = list(axes)
    found[first] = tuple(("b", one[1]) if one[0] == "h" else one for one in axes[first])
    found[second] = tuple(one if one[0] == "p" else ("h", one[1]) for one in axes[second])
    return tuple(found)


def _with_one_key(axes: Axes, dim: int) -> Axes:
    """Return axes of scores of one key, over whose dimension a softmax runs: views do not show which one that is."""
    dim %= len(axes)
    places = {letter: [at for at, axis in enumerate(axes) if letter in letters_of((axis,))] for letter in "qk"}
    if dim in places["q"] + places["k"] and len(places["q"]) < 2 and len(places["k"]) < 2 and len(axes[dim]) == 1:
        return axes
    found = [tuple(("n", 1) if one[1] == 1 and one[0] in "qk" else one for one in axis) for axis in axes]
    found = list(with_letters(tuple(found), "k", "q"))
    found[dim] = (("k", 1),)
    queries = [at for at, axis in enumerate(axes) if at != dim and size_of(axis) == 1]
    if queries and "q" not in letters_of(tuple(found)):
        found[queries[-1]] = (("q", 1),)
    return tuple(found)


def _is_transformed() -> bool:
    """Return whether the code runs under torch.func, which leaves its level before it calls an operator."""
    if maybe_current_level() is not None:
        return True
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in _TRANSFORMS:
            return True
        frame = frame.f_back
    return False


def _is_einsum() -> bool:
    """Return whether the running operator is a part of torch.einsum."""
    frame: Any = sys._getframe(1)
    for _ in range(12):
        if frame is None or frame.f_code is _EINSUM:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code is _EINSUM


def _ends(axes: Axes) -> list[tuple[int, str]]:
    return [(at, factor[0]) for at, axis in enumerate(axes) for factor in axis if factor[0] in "qk"]


def _is_once(axes: Axes) -> bool:
    """Return whether queries and keys are in one dimension each."""
    found = [letter for axis in axes for letter in letters_of((axis,)) & {"q", "k"}]
    return len(found) == len(set(found))


def _product_axes(sides: Sequence[Axes | None], result: Tensor) -> Axes:
    """Return the axes of attention's output: rows of the weights, width of the values."""
    left, right = sides
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return plain(tuple(result.shape))
    axes = (*broadcast((left[:-2], right[:-2]), tuple(result.shape[:-2])), left[-2], right[-1])
    clean = _without_pairs(axes)
    return clean if tuple(map(size_of, clean)) == tuple(result.shape) else plain(tuple(result.shape))


def _windows(axes: Axes | None, dim: int) -> Axes | None:
    """Return the axes of weights that a layer computed as square matrices, of a window around each position."""
    if axes is None or len(axes) < 3 or dim not in (-1, len(axes) - 1):
        return None
    last, before = axes[-1], axes[-2]
    if len(last) != 1 or len(before) != 1 or last[0][0] != "f" or before[0][0] not in "hf":
        return None
    if last[0][1] != before[0][1] or last[0][1] < 2 or not any(one[0] == "b" for axis in axes for one in axis):
        return None
    leading = with_letters(axes[:-2], "n", "h")
    if "h" not in letters_of(leading):  # each position has one head
        leading = ((*leading[0], ("h", 1)), *leading[1:])
    return (*leading, (("q", before[0][1]),), (("k", last[0][1]),))
