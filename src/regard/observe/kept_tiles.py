"""Compute a rectangle of weights from the recorded queries and keys of a call site."""

import math
import operator
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.backends.formula import weigh
from regard.errors import AtlasError
from regard.masks import BoundMask, Global, Mask
from regard.masks.document import Inside
from regard.normalizers import Normalizer, is_softmax
from regard.normalizers.softmax import Sums
from regard.observe.weigh import groups_of, plain_mode
from regard.part import Part
from regard.positions import Bias
from regard.problem import Problem
from regard.record.kept_qk import Kept, KeptFormula, Segment
from regard.scores import Score
from regard.serialization import read, tensor_of

__all__ = ["formula", "weights"]

# The exceptions that an invalid form may raise when its values are made and used.
_BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)


def weights(kept: Kept, batch_index: int, heads: slice, rows: slice, columns: slice) -> npt.NDArray[Any]:
    """Return every weight of a rectangle (heads, rows, columns), in float32 or the wider type of the queries; the rows
    of each call are computed with its own mask, bias and scale. Of heads that share their keys, `heads` are some, or
    all of several groups.

    Not in a wider type: the log-sum-exps are those of scores in this type, and most of what rounding does to a score
    cancels in the difference.
    """
    sizes = [one.stop - one.start for one in (heads, rows, columns)]
    wide = torch.float64 if kept.arrays["q"].dtype == np.float64 else torch.float32
    found = torch.zeros(*sizes, dtype=wide, device="cpu")
    batch = slice(batch_index, batch_index + 1)
    for number, segment in enumerate(kept.segments):
        top, bottom = max(rows.start, segment.first), min(rows.stop, segment.first + segment.rows)
        left, right = max(columns.start, segment.shift), min(columns.stop, segment.shift + segment.keys)
        if top >= bottom or left >= right:
            continue
        problem = _call(kept, number)
        own_rows = slice(top - segment.first, bottom - segment.first)
        part = _part(problem, segment, batch, heads, own_rows, slice(left - segment.shift, right - segment.shift))
        q = tensor_of(kept.arrays["q"][batch, heads, top:bottom], brain=kept.brain)
        k = tensor_of(kept.arrays["k"][batch, groups_of(problem, heads), left:right], brain=kept.brain)
        lse = tensor_of(kept.arrays["lse"][batch, heads, top:bottom])
        here = found[:, top - rows.start : bottom - rows.start, left - columns.start : right - columns.start]
        here.copy_(_weigh(problem, part, q, k, lse)[0])
    array: npt.NDArray[Any] = found.numpy()
    return array


def formula(kept: Kept, batch_index: int) -> KeptFormula:
    """Return what turns q and k of one sequence into weights; the calls of a generation have one score and normalizer,
    whose parameters are those of the last call.
    """
    _, heads, queries = kept.arrays["lse"].shape
    keys = kept.arrays["k"].shape[2]
    visible = np.zeros((heads, queries, keys), np.bool_)
    bias = np.zeros((heads, queries, keys), np.float64)
    scale = np.zeros(queries, np.float64)
    problems = [_call(kept, number) for number in range(len(kept.segments))]
    for problem, segment in zip(problems, kept.segments, strict=True):
        rows = slice(segment.first, segment.first + segment.rows)
        own = slice(0, min(segment.keys, keys - segment.shift))
        columns = slice(segment.shift, segment.shift + own.stop)
        batch = slice(batch_index, batch_index + 1)
        part = _part(problem, segment, batch, slice(0, heads), slice(0, segment.rows), own)
        shown = part.visible(problem.mask, problem.q.device)
        visible[:, rows, columns] = True if shown is None else shown[0].numpy()
        if problem.bias is not None:
            bias[:, rows, columns] = part.numbers(problem.bias, problem.q.device).detach().double()[0].numpy()
        scale[rows] = problem.scale
    bias[~visible] = 0.0
    last = problems[-1]
    return KeptFormula(
        score=type(last.score).__name__,
        is_product=all(one.score.product for one in problems),
        normalizer=type(last.normalizer).__name__,
        softcap=last.score.softcap,
        scale=scale,
        sink=None if last.sink is None else last.sink.detach().double().numpy(),
        visible=_once(visible),
        bias=_once(bias) if bias.any() else None,
        has_factor=any(one.weight_factor is not None for one in problems),
    )


def _once(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the numbers of all heads, or those of one if they are the same for all."""
    return numbers[:1].copy() if bool((numbers == numbers[:1]).all()) else numbers


def _weigh(problem: Problem, part: Part, q: Tensor, k: Tensor, lse: Tensor) -> Tensor:
    """Return weights of rows whose log-sum-exps are known: +inf of rows that see nothing, or were not chosen."""
    wide = torch.promote_types(q.dtype, torch.float32)
    peak = lse.to(wide)
    total = (lse - peak).exp().nan_to_num(1.0).to(wide)  # what rounding took from the logarithm
    with plain_mode(q.device):
        found, _ = weigh(problem, part, q.to(wide), k.to(wide), Sums(peak, total))
    return found if is_softmax(problem.normalizer) else found.masked_fill(lse.isposinf().unsqueeze(-1), 0.0)


def _part(problem: Problem, segment: Segment, batch: slice, heads: slice, rows: slice, columns: slice) -> Part:
    start = operator.index(segment.form["start"])
    return Part(batch, heads, rows, (columns,), start, (problem.batch, problem.heads))


def _call(kept: Kept, number: int) -> Problem:
    """Return a recorded call, without its numbers. Its form is read and checked once, when it is first asked for.

    Raises:
        AtlasError: The form is nothing that `serialization.py` writes, or does not fit the layer.
    """
    if number not in kept.calls:
        segment, (q, k) = kept.segments[number], (kept.arrays[name].shape for name in "qk")
        try:
            problem = _problem(kept, segment, q[:2], k[1], min(segment.keys, k[2] - segment.shift))
            _check_call(problem, segment, (q[3], k[3]))
        except _BROKEN as broken:
            raise AtlasError(f"a kept call is damaged: {broken}") from broken
        kept.calls[number] = problem
    found: Problem = kept.calls[number]
    return found


def _check_call(problem: Problem, segment: Segment, widths: tuple[int, int]) -> None:
    batch, heads, keys = problem.batch, problem.heads, problem.keys
    values: list[Mask | Bias] = [one for one in (problem.bias, problem.weight_factor) if one is not None]
    values += [] if problem.mask is None else _masks(problem.mask.mask)
    for one in values:
        if one.leading[0] not in (1, batch) or one.leading[1] not in (1, heads):
            raise ValueError(
                f"a {type(one).__name__} is of (batch, heads) {one.leading} and the layer of {batch, heads}"
            )
        end = max(keys, operator.index(segment.form["start"]) + segment.rows)
        if isinstance(one, Global) and not isinstance(one.tokens, Tensor) and max(one.tokens, default=0) > end:
            raise ValueError(f"Global has a token at {max(one.tokens)}, and the call ends at {end}")
        if isinstance(one, Inside) and not 0 <= int(one.lengths.min()) <= int(one.lengths.sum()) <= end:
            raise ValueError(f"the documents of a call have {int(one.lengths.sum())} keys, and the call ends at {end}")
    if not math.isfinite(problem.scale):
        raise ValueError(f"the scale is {problem.scale}")
    if 0 in (batch, heads, segment.rows) or keys < 1:
        return
    q, k = (torch.zeros(1, 1, 1, width, dtype=torch.float64, device="cpu") for width in widths)
    for corner in product(*({0, size - 1} for size in (batch, heads, segment.rows, keys))):
        part = _part(problem, segment, *(slice(at, at + 1) for at in corner))
        if _weigh(problem, part, q, k, torch.zeros(1, 1, 1, dtype=torch.float64, device="cpu")).shape != (1, 1, 1, 1):
            raise ValueError("it does not give one weight for a query and a key")


def _masks(mask: Mask) -> list[Mask]:
    """Return a mask and the masks that it is composed of."""
    held = [getattr(mask, name, None) for name in ("left", "right", "hidden", "documents", "within")]
    return [mask, *(inner for one in held if isinstance(one, Mask) for inner in _masks(one))]


def _problem(kept: Kept, segment: Segment, shape: tuple[int, ...], kv_heads: int, keys: int) -> Problem:
    """Return a recorded call, whose q and k have sizes alone."""
    form, nothing = segment.form, torch.zeros((), dtype=torch.float64, device="cpu")
    mask = _read(kept, form["mask"], Mask | None)
    k = nothing.expand(shape[0], kv_heads, keys, 1)
    return Problem(
        nothing.expand(*shape, segment.rows, 1),
        k,
        k,
        scale=float(form["scale"]),
        score=_read(kept, form["score"], Score),
        normalizer=_read(kept, form["normalizer"], Normalizer),
        mask=None if mask is None else BoundMask(mask, segment.rows, segment.keys, form["start"], given=mask),
        bias=_read(kept, form["bias"], Bias | None),
        weight_factor=_read(kept, form["weight_factor"], Bias | None),
    )


def _read(kept: Kept, form: Any, kind: Any) -> Any:
    found = read(form, lambda name: kept.arrays[name])
    if not isinstance(found, kind):
        raise TypeError(f"a {type(found).__name__} stands where a {getattr(kind, '__name__', kind)} should")
    return found
