"""Compute a rectangle of weights from the recorded queries and keys of a call site."""

import json
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.errors import AtlasError
from regard.masks import BoundMask, Global, Mask
from regard.masks.document import Inside
from regard.normalizers import Normalizer, Softmax
from regard.positions import Bias
from regard.record.kept_qk import Kept, Segment
from regard.scores import Score
from regard.serialization import read, tensor_of

__all__ = ["check", "weights"]

# The exceptions that an invalid form may raise when its values are made and used.
_BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)
_SMALL = 2**18  # up to this number of pairs, weights are computed in float64 for any dtype of q


@dataclass(frozen=True, eq=False)
class _Parts:
    """The values of a segment's form."""

    scale: float
    start: int  # position of the first query
    score: Score
    normalizer: Normalizer
    mask: BoundMask | None
    bias: Bias | None
    weight_factor: Bias | None


@dataclass(frozen=True)
class _Place:
    """One rectangle of one call, in its own rows and columns."""

    batch_index: slice
    head: slice
    rows: slice
    columns: slice


def weights(kept: Kept, batch_index: int, head: int, rows: slice, columns: slice) -> npt.NDArray[Any]:
    """Return every weight of the rectangle; the rows of each call are computed with its own mask, bias and scale."""
    q, k = kept.arrays["q"], kept.arrays["k"]
    pairs = (rows.stop - rows.start) * (columns.stop - columns.start)
    wide = torch.float64 if q.dtype == np.float64 or pairs <= _SMALL else torch.float32
    found = torch.zeros(rows.stop - rows.start, columns.stop - columns.start, dtype=wide, device="cpu")
    kv_head = head // (q.shape[1] // k.shape[1])
    for number, segment in enumerate(kept.segments):
        top, bottom = max(rows.start, segment.first), min(rows.stop, segment.first + segment.rows)
        left, right = max(columns.start, segment.shift), min(columns.stop, segment.shift + segment.keys)
        if top >= bottom or left >= right:
            continue
        place = _Place(
            *(slice(batch_index, batch_index + 1), slice(head, head + 1)),
            slice(top - segment.first, bottom - segment.first),
            slice(left - segment.shift, right - segment.shift),
        )
        here = tensor_of(q[batch_index, head, top:bottom], brain=kept.brain).to(wide)
        there = tensor_of(k[batch_index, kv_head, left:right], brain=kept.brain).to(wide)
        lse = tensor_of(kept.arrays["lse"][batch_index, head, top:bottom]).to(wide)
        part = _weigh(_parts(kept, number, segment), place, here, there, lse)
        found[top - rows.start : bottom - rows.start, left - columns.start : right - columns.start] = part
    array: npt.NDArray[Any] = found.numpy()
    return array


def check(kept: Kept, shape: tuple[int, int, int], widths: tuple[int, int], keys: int) -> None:
    """Raise for calls whose weights cannot be computed, by making their values and computing the corners of their
    rectangles.

    Queries and keys are not loaded. Of similar calls, such as decoding steps, only the first and the last are checked.

    Args:
        kept: The stored queries and keys of a layer.
        shape: The layer's batch, heads and queries.
        widths: The widths of queries and keys.
        keys: The number of keys.

    Raises:
        AtlasError: A form is nothing that `observe.serial` writes, or does not fit the layer.
    """
    alike: dict[str, list[Segment]] = {}
    for segment in kept.segments:
        alike.setdefault(json.dumps(dict(segment.form) | {"start": 0}, sort_keys=True), []).append(segment)
    try:
        for segments in alike.values():
            ends: list[Callable[[Segment], int]] = [
                lambda one: operator.index(one.form["start"]),
                lambda one: operator.index(one.form["start"]) + one.rows,
                lambda one: min(one.keys, keys - one.shift),
            ]
            outermost = [choose(segments, key=end) for end in ends for choose in (min, max)]
            for segment in {id(one): one for one in outermost}.values():
                _check_call(_made(kept, segment), segment, shape, widths, min(segment.keys, keys - segment.shift))
    except AtlasError:
        raise
    except _BROKEN as broken:
        raise AtlasError(f"a kept call is damaged: {broken}") from broken


def _check_call(
    parts: _Parts, segment: Segment, shape: tuple[int, int, int], widths: tuple[int, int], keys: int
) -> None:
    batch, heads, _ = shape
    values: list[Mask | Bias] = [one for one in (parts.bias, parts.weight_factor) if one is not None]
    values += [] if parts.mask is None else _masks(parts.mask.mask)
    for one in values:
        if one.leading[0] not in (1, batch) or one.leading[1] not in (1, heads):
            raise ValueError(f"a {type(one).__name__} is of (batch, heads) {one.leading} and the layer of {shape[:2]}")
        end = max(keys, parts.start + segment.rows)
        if isinstance(one, Global) and not isinstance(one.tokens, Tensor) and max(one.tokens, default=0) > end:
            raise ValueError(f"Global has a token at {max(one.tokens)}, and the call ends at {end}")
        if isinstance(one, Inside) and not 0 <= int(one.lengths.min()) <= int(one.lengths.sum()) <= end:
            raise ValueError(f"the documents of a call have {int(one.lengths.sum())} keys, and the call ends at {end}")
    if not math.isfinite(parts.scale):
        raise ValueError(f"the scale is {parts.scale}")
    if 0 in (batch, heads, segment.rows) or keys < 1:
        return
    q, k = (torch.zeros(1, width, dtype=torch.float64, device="cpu") for width in widths)
    corners = product(*({0, size - 1} for size in (batch, heads, segment.rows, keys)))
    for corner in corners:
        place = _Place(*(slice(at, at + 1) for at in corner))
        if _weigh(parts, place, q, k, torch.zeros(1, dtype=torch.float64, device="cpu")).shape != (1, 1):
            raise ValueError("it does not give one weight for a query and a key")


def _masks(mask: Mask) -> list[Mask]:
    """Return a mask and the masks that it is composed of."""
    held = [getattr(mask, name, None) for name in ("left", "right", "hidden", "documents", "within")]
    return [mask, *(inner for one in held if isinstance(one, Mask) for inner in _masks(one))]


def _weigh(parts: _Parts, place: _Place, q: Tensor, k: Tensor, lse: Tensor) -> Tensor:
    """Convert scores to weights as `weights_from_qk` does, with a known log-sum-exp."""
    i = torch.arange(place.rows.start, place.rows.stop, device="cpu") + parts.start
    j = torch.arange(place.columns.start, place.columns.stop, device="cpu")
    with torch.no_grad():
        scores = parts.score.of_heads(place.head).tile(q[None, None], k[None, None], i, j)[0, 0].to(q.dtype)
        scores = scores * parts.scale
        if (cap := parts.score.softcap) is not None:
            scores = (scores / cap).tanh() * cap
        if parts.bias is not None:
            scores = scores + parts.bias.tile(place.batch_index, place.head, i, j)[0, 0].to(q.dtype)
        if parts.mask is not None:
            where = {"batch": place.batch_index, "heads": place.head}
            visible = parts.mask.tile(place.rows, place.columns, **where, device=q.device)[0, 0]
            scores = scores.masked_fill(~visible, -torch.inf)
        if isinstance(parts.normalizer, Softmax):
            found = (scores - lse[:, None]).exp()
        else:
            # A hidden pair has weight 0, also of a normalizer that gives some to minus infinity.
            found = parts.normalizer.weights(scores[None, None], (scores > -torch.inf)[None, None])[0][0, 0]
            found = found.masked_fill(lse.isposinf()[:, None], 0.0)  # rows that were not chosen
        if parts.weight_factor is not None:
            found = found * parts.weight_factor.tile(place.batch_index, place.head, i, j)[0, 0].to(q.dtype)
    return found


def _parts(kept: Kept, number: int, segment: Segment) -> _Parts:
    """Return the values of a form, which is decoded once."""
    if number not in kept._parts:
        kept._parts[number] = _made(kept, segment)
    found: _Parts = kept._parts[number]
    return found


def _made(kept: Kept, segment: Segment) -> _Parts:
    form = segment.form
    mask, start = _read(kept, form["mask"], Mask | None), operator.index(form["start"])
    return _Parts(
        scale=float(form["scale"]),
        start=start,
        score=_read(kept, form["score"], Score),
        normalizer=_read(kept, form["normalizer"], Normalizer),
        mask=None if mask is None else BoundMask(mask, segment.rows, segment.keys, start, given=mask),
        bias=_read(kept, form["bias"], Bias | None),
        weight_factor=_read(kept, form["weight_factor"], Bias | None),
    )


def _read(kept: Kept, form: Any, kind: Any) -> Any:
    found = read(form, lambda name: kept.arrays[name])
    if not isinstance(found, kind):
        raise TypeError(f"a {type(found).__name__} stands where a {getattr(kind, '__name__', kind)} should")
    return found
