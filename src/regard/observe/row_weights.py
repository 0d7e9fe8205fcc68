"""Weights of a few heads and rows of one call: what a tap reads while the fused kernel computes the output.

`weights_of_rows` applies the formula to any watched call. `weights_of_sdpa` is the short way for a call of PyTorch's
kernel: one product of (heads × rows × dim) and (dim × keys) for each key head, one mask and one softmax.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ObservationError
from regard.observe.watched_call import WatchedCall
from regard.observe.weights_from_qk import HIDDEN, CallFromQK, CallFromWeights
from regard.problem import Problem

__all__ = ["SHARDED", "Rows", "is_plain", "plain_mode", "weights_of_rows", "weights_of_sdpa"]

Rows = slice | list[int]

SHARDED = (
    "the sequence of a call is sharded over ranks, and a tap reads rows of whole sequences: run it in one process, or "
    "record it with regard.watch"
)


_UNCHANGED = contextlib.nullcontext()


def plain_mode(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context for further computations: no gradients, and the precision of the tensors themselves."""
    kind = device.type
    if _has_autocast(kind) and torch.is_autocast_enabled(kind):
        return _without_autocast(kind)
    return torch.no_grad() if torch.is_grad_enabled() else _UNCHANGED


_has_autocast = functools.cache(torch.amp.is_autocast_available)


@contextlib.contextmanager
def _without_autocast(kind: str) -> Iterator[None]:
    with torch.autocast(kind, enabled=False), torch.no_grad():
        yield


def weights_of_rows(call: WatchedCall, rows: Rows, heads: Sequence[int]) -> Float[Tensor, "batch heads rows keys"]:
    """Return the weights of some heads and rows of a call, in float32 or the wider type of the model.

    Raises:
        ObservationError: The call is of an unknown kind.
    """
    if isinstance(call, CallFromWeights):
        found = call.weights.detach()[:, list(heads)][:, :, rows]
        return found.to(torch.promote_types(found.dtype, torch.float32))
    if call.is_sharded:
        raise ObservationError(SHARDED)
    if not isinstance(call, CallFromQK):
        raise ObservationError(f"the weights of a {type(call).__name__} cannot be computed row by row")
    parts = [_of_head(call.problem, part, head) for part in _runs(rows) for head in heads]
    per_run = [torch.cat(parts[at : at + len(heads)], 1) for at in range(0, len(parts), len(heads))]
    if not per_run:
        problem = call.problem
        return problem.q.new_zeros(problem.batch, len(heads), 0, problem.keys)
    return per_run[0] if len(per_run) == 1 else torch.cat(per_run, 2)


def _runs(rows: Rows) -> list[slice]:
    """Return rows as slices of neighbours."""
    if isinstance(rows, slice):
        return [rows] if rows.start < rows.stop else []
    found: list[slice] = []
    for one in rows:
        if found and found[-1].stop == one:
            found[-1] = slice(found[-1].start, one + 1)
        else:
            found.append(slice(one, one + 1))
    return found


def _of_head(problem: Problem, rows: slice, head: int) -> Tensor:
    """Return (batch, 1, rows, keys): the formula, for one head and some rows."""
    one, kv_head = slice(head, head + 1), head // (problem.heads // problem.kv_heads)
    wide = torch.promote_types(problem.q.dtype, torch.float32)
    q, k = problem.q[:, one, rows].to(wide), problem.k[:, kv_head : kv_head + 1].to(wide)
    part = replace(problem.everything, heads=one, rows=rows)
    scores = part.scores(problem.score, problem.scale, q, k)
    if (cap := problem.score.softcap) is not None:
        scores = cap * torch.tanh(scores / cap)
    visible = part.visible(problem.mask, q.device)
    if problem.bias is not None:
        bias = part.numbers(problem.bias, q.device).to(wide)
        scores = scores + bias
        visible = (bias > HIDDEN) if visible is None else visible & (bias > HIDDEN)
    weights = problem.normalizer.of_heads(one).normalize(scores, visible, wants_sums=False)[0]
    if problem.weight_factor is not None:
        weights = weights * part.numbers(problem.weight_factor, q.device).to(wide)
    return weights.expand(problem.batch, 1, *weights.shape[2:])


def is_plain(given: Mapping[str, Any]) -> bool:
    """Return whether a kernel's call, its arguments by name, is one that `weights_of_sdpa` takes: four dimensions, and
    as many sequences of keys as of queries.
    """
    q, k = given["query"], given["key"]
    return not q.is_nested and q.ndim == k.ndim == 4 and q.shape[0] == k.shape[0] and k.shape[1] > 0


def weights_of_sdpa(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    rows: slice,
    heads: Sequence[int],
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "batch heads rows keys"]:
    """Return the weights of some heads and neighbouring rows of a call of `F.scaled_dot_product_attention`."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    with plain_mode(q.device):
        return _of_sdpa(q, k, rows, tuple(heads), mask, is_causal=is_causal, scale=scale)


def _of_sdpa(
    q: Tensor, k: Tensor, rows: slice, heads: tuple[int, ...], mask: Tensor | None, *, is_causal: bool, scale: float
) -> Tensor:
    batch, count, keys = len(q), rows.stop - rows.start, k.shape[2]
    wide = None if q.dtype in (torch.float32, torch.float64) else torch.float32
    parts = []
    for run, kv_head in _of_kv_heads(heads, q.shape[1] // k.shape[1]):
        left, right = q[:, run, rows], k[:, kv_head]  # (batch, run, rows, dim), (batch, keys, dim)
        left, right = (left, right) if wide is None else (left.to(wide), right.to(wide))
        flat = torch.bmm((left * scale).reshape(batch, -1, q.shape[-1]), right.transpose(-2, -1))
        parts.append(flat.view(batch, -1, count, keys))
    scores = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    if is_causal and (rows.start + 1 < k.shape[2] or rows.stop - rows.start > 1):
        i = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
        scores = scores.masked_fill_(torch.arange(k.shape[2], device=q.device) > i, -torch.inf)
    if mask is None:
        return scores.softmax(-1)
    if mask.ndim > 2 and mask.shape[-3] > 1:
        mask = mask[..., list(heads), :, :]
    part = mask[..., rows, :] if mask.shape[-2] > 1 else mask
    scores = scores.masked_fill_(~part, -torch.inf) if part.dtype == torch.bool else scores.add_(part)
    blind = scores.amax(-1, keepdim=True) <= HIDDEN
    return scores.softmax(-1).masked_fill_(blind, 0.0)


@functools.lru_cache(1024)
def _of_kv_heads(heads: tuple[int, ...], group: int) -> list[tuple[slice, int]]:
    """Return runs of neighbouring heads that share a key head, in the order given."""
    runs: list[tuple[slice, int]] = []
    for head in heads:
        if runs and runs[-1][1] == head // group and head == runs[-1][0].stop:
            runs[-1] = slice(runs[-1][0].start, head + 1), head // group
        else:
            runs.append((slice(head, head + 1), head // group))
    return runs
