"""Operators that write rows of weights into buffers: what a tap puts into the graphs of compiled code.

    tap_rows(q, k, mask, rows, buffer, filled, heads, is_causal, scale)         beside PyTorch's kernel
    tap_call_rows(q, k, held, rows, buffer, filled, form, ints, floats, heads)  beside an operator of regard's backends

The weights (batch, heads, rows, keys) fill the beginning of `buffer`, one long dimension of a size that never changes,
so that a CUDA graph can be replayed (of `tap_rows`; the other reads the numbers of the rows). Nothing is returned.
`rows` are indices of queries, counted from the end where they are negative; without it, all. `filled` receives batch,
queries, rows and keys where a compiler has symbols for them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.backends.call_form import read
from regard.errors import ObservationError
from regard.observe.call_kinds import CallFromQK
from regard.observe.intercept.torch_attention_calls import problem_of_sdpa
from regard.observe.weigh import plain_mode

__all__ = ["TAP_CALL_ROWS", "TAP_ROWS"]

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_ROWS = "Tensor? rows, Tensor(a!) buffer, Tensor(b!)? filled"
_LIBRARY.define(
    f"tap_rows(Tensor q, Tensor k, Tensor? mask, {_ROWS}, int[] heads, bool is_causal, float? scale) -> ()",
    tags=(torch.Tag.flexible_layout,),  # q and k stay as the model's own kernel takes them
)
_LIBRARY.define(
    f"tap_call_rows(Tensor q, Tensor k, Tensor[] held, {_ROWS}, str form, SymInt[] ints, float[] floats, int[] heads)"
    " -> ()",
    tags=(torch.Tag.flexible_layout,),
)


def _tap_rows(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    rows: Tensor | None,
    buffer: Tensor,
    filled: Tensor | None,
    heads: Sequence[int],
    is_causal: bool,
    scale: float | None,
) -> None:
    queries = q.shape[2]
    with plain_mode(q.device):
        if rows is not None:
            at = torch.where(rows < 0, rows + queries, rows)
            q = q.index_select(2, at)
            if mask is not None and mask.shape[-2] > 1:
                mask = mask.index_select(-2, at)
            if is_causal:
                mask, is_causal = torch.arange(k.shape[2], device=k.device) <= at[:, None], False
        call = CallFromQK(problem_of_sdpa(q, k, mask, is_causal=is_causal, scale=scale))
        _write(call.weights_of(slice(0, q.shape[2]), heads), queries, buffer, filled)


def _tap_call_rows(
    q: Tensor,
    k: Tensor,
    held: Sequence[Tensor],
    rows: Tensor | None,
    buffer: Tensor,
    filled: Tensor | None,
    form: str,
    ints: Sequence[int],
    floats: Sequence[float],
    heads: Sequence[int],
) -> None:
    queries = q.shape[2]
    with plain_mode(q.device):
        at = slice(0, queries) if rows is None else [row % queries for row in rows.tolist()]
        call = CallFromQK(read(q, k, k, held, form, ints, floats))
        _write(call.weights_of(at, heads), queries, buffer, filled)


def _write(weights: Tensor, queries: int, buffer: Tensor, filled: Tensor | None) -> None:
    if weights.numel() > buffer.numel():
        raise ObservationError(
            f"a call has {weights.numel():,} weights for the tap, and compiled code has room for {buffer.numel():,}: "
            "choose fewer `queries`, or compile the model with a cache of fixed size (transformers' StaticCache)"
        )
    buffer[: weights.numel()].view(weights.shape).copy_(weights)
    if filled is not None:
        for at, size in enumerate((len(weights), queries, weights.shape[2], weights.shape[3])):
            filled[at] = size


def _nothing(*_: object) -> None:
    """What a compiler needs to know of an operator that returns nothing."""


for _name, _function in (("tap_rows", _tap_rows), ("tap_call_rows", _tap_call_rows)):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"regard::{_name}", _nothing, lib=_LIBRARY)

TAP_ROWS = torch.ops.regard.tap_rows.default
TAP_CALL_ROWS = torch.ops.regard.tap_call_rows.default
