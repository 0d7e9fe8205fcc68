"""A part of a call: some rows of some sequences and heads, and the keys that they are asked about.

It is the one way to ask a mask, a score, a bias or dropout about a rectangle, be it a strip of rows with the keys that
these see, what one rank has of a sequence, or all of a call.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.dropout import Dropout
from regard.errors import InputError
from regard.masks import BoundMask
from regard.positions import Bias
from regard.scores import ScaledDot, Score
from regard.values import tensors

__all__ = ["Part", "product"]


@dataclass(frozen=True)
class Part:
    """Some rows of some sequences and heads of a call, and spans of its keys.

    Args:
        batch: The sequences.
        heads: The query heads; of heads that share their keys all, or some of one group.
        rows: The queries, by their indices.
        spans: The keys, by their indices: ranges in ascending order that do not touch.
        q_offset: The position of the call's first query; keys are at their indices.
        whole: The numbers of sequences and of query heads of the call.
        is_masked: Whether the mask may hide some pair.
    """

    batch: slice
    heads: slice
    rows: slice
    spans: tuple[slice, ...]
    q_offset: int
    whole: tuple[int, int]
    is_masked: bool = True

    @classmethod
    def everything(cls, batch: int, heads: int, queries: int, keys: int, q_offset: int) -> "Part":
        """All rows and all keys of a call with these sizes."""
        part: Part = object.__new__(cls)  # compilers fix the lengths in slices that a class is called with
        for name, value in (
            ("batch", slice(0, batch)),
            ("heads", slice(0, heads)),
            ("rows", slice(0, queries)),
            ("spans", (slice(0, keys),)),
            ("q_offset", q_offset),
            ("whole", (batch, heads)),
        ):
            object.__setattr__(part, name, value)
        return part

    @property
    def columns(self) -> int:
        """The number of keys."""
        return sum(span.stop - span.start for span in self.spans)

    def i(self, device: torch.device) -> Int[Tensor, " rows"]:
        """The positions of the queries."""
        return torch.arange(self.rows.start, self.rows.stop, device=device) + self.q_offset

    def cut(self, x: Float[Tensor, "batch kv_heads keys width"]) -> Float[Tensor, "batch kv_heads columns width"]:
        """The keys or values of the spans, a view where there is one span."""
        return self._along(lambda span: x[:, :, span], -2)

    def visible(
        self, mask: BoundMask | None, device: torch.device
    ) -> Bool[Tensor, "#batch #heads rows columns"] | None:
        """Which pairs the mask leaves; None where it leaves all."""
        if mask is None or not self.is_masked:
            return None
        return self._along(
            lambda span: mask.tile(self.rows, span, batch=self.batch, heads=self.heads, device=device), -1
        )

    def numbers(self, bias: Bias, device: torch.device) -> Float[Tensor, "#batch #heads rows columns"]:
        """The numbers of a bias, or of a factor on the weights."""
        i = self.i(device)
        return self._along(lambda span: bias.tile(self.batch, self.heads, i, _range(span, device)), -1)

    def scores(
        self,
        score: Score,
        scale: float,
        q: Float[Tensor, "batch heads rows dim"],
        k: Float[Tensor, "batch kv_heads columns key_dim"],
    ) -> Float[Tensor, "batch heads rows columns"]:
        """The scaled scores of the queries with the keys of the spans, which lie side by side.

        Raises:
            InputError: What the score gives is no (batch, heads, rows, columns).
        """
        if type(score).tile is ScaledDot.tile:  # rows that are scaled before need not be gone through once more
            return product(q * scale, k.mT)
        k = repeated(k, q.shape[1])
        found = [self._scored(score, q, k[:, :, at], span) for span, at in self._places()]
        return scale * (found[0] if len(found) == 1 else torch.cat(found, -1))

    def value_term(
        self, score: Score, weights: Float[Tensor, "batch heads rows columns"], value_dim: int
    ) -> Float[Tensor, "batch heads rows value_dim"] | None:
        """Σ_j weights_ij · a_ij, where the score adds a term a_ij to the value j, else None.

        Raises:
            InputError: What the score gives is no (batch, heads, rows, value_dim).
        """
        if type(score).value_term is Score.value_term:
            return None
        found: Tensor | None = None
        for span, at in self._places():
            part = weights[..., at]
            term: Tensor | None = self._asked(score, "value_term", (part,), span)
            if term is not None:
                shape = *weights.shape[:3], value_dim
                term = _expanded(score, "value_term", "(batch, heads, rows, value_dim)", term, shape)
                found = term if found is None else found + term
        return found

    def kept(self, dropout: Dropout) -> Bool[Tensor, "batch heads rows columns"]:
        """Which weights dropout keeps."""
        device = dropout.seed.device
        columns = self._along(lambda span: _range(span, device), -1)
        return dropout.keep(self.batch, self.heads, _range(self.rows, device), columns)

    def _along(self, ask: Callable[[slice], Tensor], dim: int) -> Tensor:
        """What is found for each span, side by side: values are asked about runs of consecutive positions."""
        found = [ask(span) for span in self.spans]
        return found[0] if len(found) == 1 else torch.cat(found, dim)

    def _places(self) -> list[tuple[slice, slice]]:
        """Each span, and where its keys lie among those of all spans."""
        if len(self.spans) == 1:
            return [(self.spans[0], slice(None))]
        places, start = [], 0
        for span in self.spans:
            stop = start + span.stop - span.start
            places.append((span, slice(start, stop)))
            start = stop
        return places

    def _scored(self, score: Score, q: Tensor, k: Tensor, span: slice) -> Tensor:
        found = self._asked(score, "tile", (q, k), span)
        return _expanded(score, "tile", "(batch, heads, rows, columns)", found, (*q.shape[:3], k.shape[2]))

    def _asked(self, score: Score, method: str, parts: tuple[Tensor, ...], span: slice) -> Any:
        """Ask a score about these sequences and heads, as far as it can be told which they are."""
        device = parts[0].device
        i, j = self.i(device), _range(span, device)
        hears = _hears.__wrapped__ if torch.compiler.is_compiling() else _hears  # a compiler cannot see its cache
        if hears(getattr(type(score), method)):
            where = (_range(one, device) for one in (self.batch, self.heads))
            return getattr(score, method)(*parts, i, j, *where)
        part = score.of_heads(self.heads)
        cuts_heads = type(score).of_heads is not Score.of_heads or bool(score.per_head)
        held = [] if type(score).__module__.startswith("regard.") else tensors(score)
        # A score of one's own may hold something by sequence or head, and cannot be told which are these: it is asked
        # about all, the others being copies of these, whose numbers are finite as theirs are, and whose results are
        # cut off.
        sides = zip((self.batch, self.heads), self.whole, strict=True)
        wanted = [
            None if _covers(one, size) or not any(size in x.shape for x in held) or (cuts_heads and dim == 1) else one
            for dim, (one, size) in enumerate(sides)
        ]
        if wanted == [None, None]:
            return getattr(part, method)(*parts, i, j)
        found = getattr(part, method)(*(_filled(one, wanted, self.whole) for one in parts), i, j)
        for dim, one in enumerate(wanted):
            if found is not None and one is not None and found.shape[dim] > 1:
                found = found.narrow(dim, one.start, one.stop - one.start)
        return found


def product(
    x: Float[Tensor, "batch heads rows inner"], y: Float[Tensor, "batch kv_heads inner columns"]
) -> Float[Tensor, "batch heads rows columns"]:
    """x · y for heads of which several in a row share one of y, without a copy of y for each."""
    if x.shape[1] == y.shape[1]:
        return x @ y
    batch, heads, rows, inner = x.shape
    kv_heads = y.shape[1]
    stacked = x.reshape(batch, kv_heads, heads // kv_heads * rows, inner) @ y
    return stacked.reshape(batch, heads, rows, y.shape[-1])


def repeated(k: Float[Tensor, "batch kv_heads keys dim"], heads: int) -> Float[Tensor, "batch heads keys dim"]:
    """The keys or values for each query head."""
    return k if k.shape[1] == heads else k.repeat_interleave(heads // k.shape[1], 1)


def _range(part: slice, device: torch.device) -> Int[Tensor, " n"]:
    return torch.arange(part.start, part.stop, device=device)


def _covers(part: slice, size: int) -> bool:
    return bool(part.start == 0 and part.stop >= size)


def _expanded(score: Score, method: str, words: str, found: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What the score gives, in the shape that it must have."""
    if found.shape == shape:
        return found
    try:
        return found.expand(shape)
    except RuntimeError:
        raise InputError(
            f"{type(score).__name__}.{method} must give {words}, here {shape}, got {tuple(found.shape)}: take `batch` "
            "and `head` after j, the indices of the tile's sequences and heads, and look up by them what the score "
            "holds for each, such as self.gain[head]"
        ) from None


def _filled(x: Tensor, wanted: list[slice | None], whole: tuple[int, int]) -> Tensor:
    """These sequences or heads in their places among all."""
    for dim, (one, size) in enumerate(zip(wanted, whole, strict=True)):
        if one is not None:
            x = x.index_select(dim, (torch.arange(size, device=x.device) - one.start) % x.shape[dim])
    return x


@functools.cache
def _hears(method: Callable[..., Any]) -> bool:
    """Whether a method takes `batch` and `head` after j."""
    names = list(inspect.signature(method).parameters)
    return names[-2:] == ["batch", "head"]
