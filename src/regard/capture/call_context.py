"""The context of a watched call (token ids, values, output projection), computed only if a statistic needs it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.capture.weights_from_qk import HIDDEN, Call, Computed, Given
from regard.errors import ObservationError

__all__ = ["Around", "Ids", "first_seen"]


@dataclass(frozen=True, eq=False)
class Ids:
    """The token ids of all rows and columns so far; equal ids are equal tokens."""

    queries: Int[Tensor, "batch queries"]
    keys: Int[Tensor, "batch keys"]
    separating: Callable[[Tensor], Tensor | None]

    @property
    def separators(self) -> Bool[Tensor, "batch keys"] | None:
        """Which keys are separators; None if their text is unknown."""
        return self.separating(self.keys)

    def to(self, device: torch.device) -> "Ids":
        """Return the ids on another device; separators are determined on the CPU, where the ids were recorded."""

        def separating(_: Tensor) -> Tensor | None:
            found = self.separators
            return None if found is None else found.to(device)

        return Ids(self.queries.to(device), self.keys.to(device), separating)


@dataclass(frozen=True, eq=False)
class Around:
    """The context of one call at one call site.

    Column j of the call's own keys is column j + `shift` of the record: a sliding cache has dropped `shift` keys.
    """

    site: str
    call: Call
    shift: int = 0
    ids: Ids | None = None
    read_values: Callable[[], Tensor | None] = lambda: None
    find_projection: Callable[[int], Tensor] | None = None
    output: Float[Tensor, "batch heads queries value_dim"] | None = None
    gradient: Float[Tensor, "batch heads queries value_dim"] | None = None

    @cached_property
    def first(self) -> Int[Tensor, " batch"]:
        """The first column that any query of each sequence sees, after padding on the left; −1 if there is none."""
        own = first_seen(self.call)
        return torch.where(own < 0, own, own + self.shift)

    def tokens(self, statistic: str) -> Ids:
        """Return the token ids, or raise an error with the way to provide them."""
        if self.ids is None:
            raise ObservationError(
                f"{statistic!r} needs to know the tokens, and {self._here} did not show them: call the model itself "
                "with `input_ids`, pass `tokens=` to regard.watch, or `ids=` to the statistic"
            )
        return self.ids

    def values(self, statistic: str) -> Float[Tensor, "batch kv_heads keys value_dim"]:
        """Return the values of the call, with as many heads as the keys."""
        values = self.read_values()
        whole = (self.call.batch, self.call.keys)
        fits = values is not None and values.ndim == 4 and (values.shape[0], values.shape[2]) == whole
        if values is None or not fits or self.call.heads % values.shape[1]:
            raise ObservationError(
                f"{statistic!r} needs the values, and {self._here} does not show them as (batch, heads, keys, width): "
                "let it call F.scaled_dot_product_attention or regard.attention"
            )
        return values.detach()

    def projection(self, width: int) -> Float[Tensor, "in_width out_width"]:
        """Return the weight of the output projection whose input has `width` numbers, the concatenated heads."""
        if self.find_projection is None:
            raise ObservationError(f"the output projection of {self._here} is not known: pass `projection=`")
        return self.find_projection(width)

    @property
    def _here(self) -> str:
        return self.site or "this call"


def first_seen(call: Call) -> Int[Tensor, " batch"]:
    """Return the first key that any query of each sequence sees, −1 if there is none; the mask is evaluated in runs of
    128 columns.
    """
    if isinstance(call, Computed) and call.problem.mask is None and call.problem.bias is None:
        return torch.zeros(call.batch, dtype=torch.long, device=call.problem.q.device)
    found = torch.full((call.batch,), -1)
    for left in range(0, call.keys, 128):
        columns = slice(left, min(left + 128, call.keys))
        some = _seen_columns(call, columns).cpu()
        fresh = (found < 0) & some.any(1)
        found = torch.where(fresh, some.int().argmax(1) + left, found)
        if bool((found >= 0).all()):
            break
    return found.to(_device(call))


def _seen_columns(call: Call, columns: slice) -> Bool[Tensor, "batch columns"]:
    """Return which of some keys any query of each sequence sees."""
    seen = torch.zeros(call.batch, columns.stop - columns.start, dtype=torch.bool, device=_device(call))
    for top in range(0, call.queries, 1024):
        rows = slice(top, min(top + 1024, call.queries))
        seen |= _visible(call, rows, columns).any(1).any(1)
        if bool(seen[:, 0].all()):
            break  # no position precedes the first
    return seen


def _visible(call: Call, rows: slice, columns: slice) -> Bool[Tensor, "#batch #heads rows columns"]:
    if isinstance(call, Given):
        return call.weights[:, :, rows, columns] > 0
    if not isinstance(call, Computed):
        return torch.stack([call.row(at)[..., columns] for at in range(rows.start, rows.stop)], 2)
    problem = call.problem
    visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=problem.q.device)
    if problem.mask is not None:
        sizes = {"batch": problem.batch, "heads": problem.heads}
        visible = problem.mask.tile(rows, columns, **sizes, device=visible.device)
    if (bias := problem.bias_tile(rows=rows, columns=columns)) is not None:
        visible = visible & (bias > HIDDEN)
    return visible


def _device(call: Call) -> torch.device:
    if isinstance(call, Computed):
        return call.problem.q.device
    return call.weights.device if isinstance(call, Given) else torch.device("cpu")
