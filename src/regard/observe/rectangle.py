"""A rectangle of weights, computed from the queries and keys that were kept of a site."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.errors import AtlasError
from regard.masks import BoundMask, Mask
from regard.normalizers import Normalizer, Softmax
from regard.observe.kept import Kept, Segment
from regard.observe.serial import read, tensor_of
from regard.positions import Bias
from regard.scores import Score

__all__ = ["weights"]

_SMALL = 2**18  # pairs that are computed in float64 whatever the type of q


@dataclass(frozen=True, eq=False)
class _Parts:
    """The values of a segment's form."""

    scale: float
    start: int  # position of the first query
    score: Score
    normalizer: Normalizer
    mask: BoundMask | None
    bias: Bias | None
    factor: Bias | None


@dataclass(frozen=True)
class _Place:
    """One rectangle of one call, in its own rows and columns."""

    sequence: slice
    head: slice
    rows: slice
    columns: slice


def weights(kept: Kept, sequence: int, head: int, rows: slice, columns: slice) -> npt.NDArray[Any]:
    """Every weight of the rectangle; rows of each call are computed with its own mask, bias and scale.

    Raises:
        AtlasError: The form of a call is damaged.
    """
    q, k = kept.arrays["q"], kept.arrays["k"]
    pairs = (rows.stop - rows.start) * (columns.stop - columns.start)
    wide = torch.float64 if q.dtype == np.float64 or pairs <= _SMALL else torch.float32
    found = torch.zeros(rows.stop - rows.start, columns.stop - columns.start, dtype=wide)
    kv_head = head // (q.shape[1] // k.shape[1])
    for number, segment in enumerate(kept.segments):
        top, bottom = max(rows.start, segment.first), min(rows.stop, segment.first + segment.rows)
        left, right = max(columns.start, segment.shift), min(columns.stop, segment.shift + segment.keys)
        if top >= bottom or left >= right:
            continue
        place = _Place(
            *(slice(sequence, sequence + 1), slice(head, head + 1)),
            slice(top - segment.first, bottom - segment.first),
            slice(left - segment.shift, right - segment.shift),
        )
        here = tensor_of(q[sequence, head, top:bottom], brain=kept.brain).to(wide)
        there = tensor_of(k[sequence, kv_head, left:right], brain=kept.brain).to(wide)
        lse = tensor_of(kept.arrays["lse"][sequence, head, top:bottom]).to(wide)
        part = _weigh(_parts(kept, number, segment), place, here, there, lse)
        found[top - rows.start : bottom - rows.start, left - columns.start : right - columns.start] = part
    array: npt.NDArray[Any] = found.numpy()
    return array


def _weigh(parts: _Parts, place: _Place, q: Tensor, k: Tensor, lse: Tensor) -> Tensor:
    """Scores made weights, as `observe.second_pass` makes them, the log-sum-exp being known."""
    i = torch.arange(place.rows.start, place.rows.stop) + parts.start
    j = torch.arange(place.columns.start, place.columns.stop)
    with torch.no_grad():
        scores = parts.score.of_heads(place.head).tile(q[None, None], k[None, None], i, j)[0, 0].to(q.dtype)
        scores = scores * parts.scale
        if (cap := parts.score.softcap) is not None:
            scores = (scores / cap).tanh() * cap
        if parts.bias is not None:
            scores = scores + parts.bias.tile(place.sequence, place.head, i, j)[0, 0].to(q.dtype)
        if parts.mask is not None:
            where = {"batch": place.sequence, "heads": place.head}
            visible = parts.mask.tile(place.rows, place.columns, **where, device=q.device)[0, 0]
            scores = scores.masked_fill(~visible, -torch.inf)
        if isinstance(parts.normalizer, Softmax):
            found = (scores - lse[:, None]).exp()
        else:
            # A hidden pair has weight 0, also of a normalizer that gives some to minus infinity.
            found = parts.normalizer.weights(scores[None, None], (scores > -torch.inf)[None, None])[0][0, 0]
        if parts.factor is not None:
            found = found * parts.factor.tile(place.sequence, place.head, i, j)[0, 0].to(q.dtype)
    return found


def _parts(kept: Kept, number: int, segment: Segment) -> _Parts:
    """The values of a form, read once."""
    if number not in kept._parts:
        form = segment.form
        try:
            mask, start = _read(kept, form["mask"], Mask | None), int(form["start"])
            kept._parts[number] = _Parts(
                scale=float(form["scale"]),
                start=start,
                score=_read(kept, form["score"], Score),
                normalizer=_read(kept, form["normalizer"], Normalizer),
                mask=None if mask is None else BoundMask(mask, segment.rows, segment.keys, start, given=mask),
                bias=_read(kept, form["bias"], Bias | None),
                factor=_read(kept, form["factor"], Bias | None),
            )
        except AtlasError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as broken:
            raise AtlasError(f"a kept call is damaged: {broken}") from broken
    found: _Parts = kept._parts[number]
    return found


def _read(kept: Kept, form: Any, kind: Any) -> Any:
    found = read(form, lambda name: kept.arrays[name])
    if not isinstance(found, kind):
        raise TypeError(f"a {type(found).__name__} stands where a {getattr(kind, '__name__', kind)} should")
    return found
