"""Operators that report an attention call: what a watch puts into the graphs of compiled code.

    watch_call(q, k, v, mask, blind, order, watch, number, is_causal, scale)      beside PyTorch's kernel
    watch_operator_call(q, k, v, held, order, watch, number, form, ints, floats)  beside an operator of a backend

Nothing is returned. `order` is declared to be written, so that compilers neither remove calls nor change their order.
`watch` says which of several watches it is for, and `number` which call of the graph it is; `blind` marks queries
that see nothing, whatever `mask` shows them.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.backends.call_form import read
from regard.observe.call_kinds import CallFromQK
from regard.observe.intercept.torch_attention_calls import groups_of, read_sdpa
from regard.observe.weigh import plain_mode
from regard.torch_private import DisableTorchFunction

__all__ = ["WATCH_CALL", "WATCH_OPERATOR_CALL", "Report", "reporting_to"]

Report = Callable[[int, Callable[[nn.Module | None], CallFromQK]], None]  # number, and how a module's call is read


class _Reports(threading.local):
    def __init__(self) -> None:
        self.by_watch: dict[int, Report] = {}


_reports = _Reports()


@contextlib.contextmanager
def reporting_to(watch: int, report: Report) -> Iterator[None]:
    """Pass the calls of a graph that runs in this thread to `report`, those for this watch."""
    before = _reports.by_watch
    _reports.by_watch = before | {watch: report}
    try:
        yield
    finally:
        _reports.by_watch = before


_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_CALL, _ORDER = "Tensor q, Tensor k, Tensor v", "Tensor(a!) order, int watch, int number"
# q and k stay as the model's own kernel takes them, and no CUDA graph is made of what has to run each time.
_TAGS = [torch.Tag.flexible_layout]
if hasattr(torch.Tag, "cudagraph_unsafe"):
    _TAGS.append(torch.Tag.cudagraph_unsafe)
_LIBRARY.define(
    f"watch_call({_CALL}, Tensor? mask, Tensor? blind, {_ORDER}, bool is_causal, float? scale) -> ()",
    tags=tuple(_TAGS),
)
_LIBRARY.define(
    f"watch_operator_call({_CALL}, Tensor[] held, {_ORDER}, str form, SymInt[] ints, float[] floats) -> ()",
    tags=tuple(_TAGS),
)


def _watch_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    blind: Tensor | None,
    order: Tensor,  # noqa: ARG001  # for the compiler
    watch: int,
    number: int,
    is_causal: bool,
    scale: float | None,
) -> None:
    def call(module: nn.Module | None) -> CallFromQK:
        attend = None if mask is None else _hiding(mask, blind)
        given = {"query": _own(q), "key": _own(k), "value": _own(v), "attn_mask": attend}
        return read_sdpa(groups_of(module), {**given, "is_causal": is_causal, "scale": scale})

    _report(q, watch, number, call)


def _watch_operator_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    held: Sequence[Tensor],
    order: Tensor,  # noqa: ARG001  # for the compiler
    watch: int,
    number: int,
    form: str,
    ints: Sequence[int],
    floats: Sequence[float],
) -> None:
    def call(_: nn.Module | None) -> CallFromQK:
        problem = read(_own(q), _own(k), _own(v), [_own(one) for one in held], form, ints, floats)
        return CallFromQK(replace(problem, dropout=None), v=problem.v)

    _report(q, watch, number, call)


def _report(q: Tensor, watch: int, number: int, call: Callable[[nn.Module | None], CallFromQK]) -> None:
    if (report := _reports.by_watch.get(watch)) is not None:
        with DisableTorchFunction(), plain_mode(q.device):
            report(number, call)


def _own(one: Tensor) -> Tensor:
    """Return a tensor that stays as it is when the graph uses its memory again."""
    return one.detach().clone()


def _hiding(mask: Tensor, blind: Tensor | None) -> Tensor:
    if blind is None:
        return _own(mask)
    return mask & ~blind if mask.dtype == torch.bool else mask.masked_fill(blind, -torch.inf)


def _nothing(*_: object) -> None:
    """What a compiler needs to know of an operator that returns nothing."""


for _name, _function in (("watch_call", _watch_call), ("watch_operator_call", _watch_operator_call)):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"regard::{_name}", _nothing, lib=_LIBRARY)

WATCH_CALL = torch.ops.regard.watch_call.default
WATCH_OPERATOR_CALL = torch.ops.regard.watch_operator_call.default
