"""The steps of a tapped generation: which query of which call is which position, and when its row is certain.

A step is one call of the model. Its first position is the length of the cache that the call was given, from which
follow the keys that a sliding window has dropped and the columns that a static cache has not filled yet.

Rows of several queries after a cache are those of tokens that an assistant has proposed. They are held until the next
call, or the end, shows how many of them the cache still has: the others were rejected, and are never delivered.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import ObservationError
from regard.observe.attention_row import AttentionRow, continued_rows
from regard.observe.cached_text import given_cache, length_of
from regard.observe.selection import KeySpans, QueriesChosen
from regard.observe.tap_texts import TapText, TapTexts, proposed_tokens
from regard.observe.watched_call import Rows

__all__ = ["TapSite", "TapSteps"]


@dataclass(frozen=True, eq=False)
class TapSite:
    """One attention call of a tapped layer, as its first call has shown it; `heads` are the chosen ones."""

    number: int | str  # the layer as the caller named it
    name: str  # the module's
    module: Any
    heads: tuple[int, ...]
    cross: bool
    count: int  # of all heads
    groups: tuple[int, int | None]  # of heads, which may be packed as queries (`unpack_groups`)


@dataclass(eq=False)
class _Step:
    past: int | None  # positions before its first query; None if the model was not given a cache that has a length
    last: int | None  # queries whose logits are computed, if the call specified it
    ids: Tensor | None
    cache: Any
    whole: bool  # whether it began with the call of the model, at whose end it ends
    queries: int = 0
    rows: Rows = field(default_factory=list)
    weights: dict[TapSite, Tensor] = field(default_factory=dict)


class TapSteps:
    """Turns the weights of the tapped layers into rows, one step after the other."""

    def __init__(
        self,
        queries: QueriesChosen,
        spans: KeySpans | None,
        deliver: Callable[[AttentionRow], None],
        *,
        names: Sequence[str],
    ) -> None:
        self._queries, self._spans, self._deliver = queries, spans, deliver
        self._names = names  # of the arguments that may hold the ids of the rows, the first that is given
        self._step: _Step | None = None
        self._texts = TapTexts()
        self._held: list[AttentionRow] = []
        self._held_cache: Any = None
        self.calls = 0  # steps that have ended

    @property
    def running(self) -> bool:
        """Whether the model's own call is running."""
        return self._step is not None and self._step.whole

    @property
    def captured(self) -> Collection[TapSite]:
        """The sites whose weights the running step has."""
        return () if self._step is None else self._step.weights.keys()

    @property
    def is_begun(self) -> bool:
        """Whether weights of the running step were captured."""
        return bool(self.captured)

    @property
    def is_placed(self) -> bool:
        """Whether the position of the first query is known."""
        return self._step is not None and self._step.past is not None

    @property
    def cache(self) -> Any:
        """The cache that the running call was given."""
        return None if self._step is None else self._step.cache

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a step with a call of the model."""
        cache = given_cache(kwargs)
        past = length_of(cache)
        self._settle(cache, past)
        keep = kwargs.get("logits_to_keep", kwargs.get("num_logits_to_keep"))
        last = keep if isinstance(keep, int) and not isinstance(keep, bool) and keep > 0 else None
        if last is None and past == 0 and (proposed := proposed_tokens()) is not None:
            last = 1 + proposed
        self._step = _Step(past if cache is not None else None, last, self._ids(args, kwargs), cache, whole=True)

    def _rows(self, step: _Step, past: int, queries: int) -> Rows:
        return self._queries.rows(past, queries, step.last or (1 if past == 0 else queries))

    def _ids(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        found = next((kwargs[name] for name in self._names if kwargs.get(name) is not None), None)
        if found is None and "input_ids" in self._names and args:
            found = args[0]
        known = isinstance(found, Tensor) and found.ndim == 2 and not found.is_floating_point()
        return found if known else None

    def capture(
        self, site: TapSite, sizes: tuple[int, int], newest: Callable[[], int], weights_of: Callable[[Rows], Tensor]
    ) -> None:
        """Take the weights of a call with `sizes` (queries, keys); `newest` finds the column of its newest key."""
        queries, keys = sizes
        self.place(site, queries, newest)
        step = self._step
        assert step is not None
        assert step.past is not None
        if not step.weights:
            step.queries = queries
            step.rows = self._rows(step, step.past, queries)
        if site in step.weights:
            raise ObservationError(
                f"{site.name or 'the model'} attended twice in one step, where its first step attended once: tap its "
                "two attentions in blocks of their own"
            )
        nothing = step.rows.start >= step.rows.stop if isinstance(step.rows, slice) else not step.rows
        end = step.past + queries
        step.weights[site] = (
            torch.empty(0, dtype=torch.float32, device="cpu")
            if nothing
            else self._over_keys(weights_of(step.rows), keys, site, end)
        )

    def place(self, site: TapSite, queries: int, newest: Callable[[], int]) -> None:
        """Find the position of the first query from the keys of a self-attention, if no cache has shown it."""
        step = self._step = self._step or _Step(None, None, None, None, whole=False)
        if step.past is None:
            step.past = 0 if site.cross else max(0, newest() + 1 - queries)

    def _over_keys(self, weights: Tensor, keys: int, site: TapSite, end: int) -> Tensor:
        """Return weights by key position, or their sums over the spans."""
        shift = 0
        if not site.cross:
            shift = max(0, end - keys)
            if end < keys and not weights[..., end:].any():  # a query may see keys after its own position
                weights = weights[..., :end]
        if self._spans is not None:
            return self._spans.sum(weights, shift)
        return functional.pad(weights, (shift, 0)) if shift else weights

    def withdraw(self, site: TapSite) -> None:
        """Drop what was captured of a site in this step."""
        if self._step is not None:
            self._step.weights.pop(site, None)

    def is_complete(self, sites: Sequence[TapSite]) -> bool:
        """Return whether the running step has the weights of these sites."""
        return self._step is not None and bool(sites) and all(one in self._step.weights for one in sites)

    def drop(self) -> None:
        """End the step without its rows, after an exception or without a tapped layer."""
        self._step = None

    def end(self, order: Sequence[TapSite], permutation: Sequence[int] | None) -> None:
        """End the step and deliver its rows, or hold them until they are certain."""
        step, self._step = self._step, None
        assert step is not None
        assert step.past is not None
        first = step.weights[order[0]]
        cache = step.cache if length_of(step.cache) else None  # some models fill no cache, although given one
        text, parent = self._follow(step, cache, len(first) if first.numel() else None)
        self.calls += 1
        if not first.numel():
            return
        rows = range(*step.rows.indices(step.queries)) if isinstance(step.rows, slice) else step.rows
        weights = first if len(order) == 1 else _joined([step.weights[one] for one in order])
        weights = weights if permutation is None else weights[:, list(permutation)]
        ids = text.ids if text.ids is not None and text.ids.shape[1] == step.queries else None
        places = [step.past + row for row in rows]
        ends = self._spans is None and not order[0].cross and len(places) > 1 and not _see_later(weights, places)
        found = [
            AttentionRow(
                text.number,
                place,
                None if ids is None else ids[:, row],
                weights[:, :, at, : place + 1] if ends else weights[:, :, at],
                parent,
            )
            for at, (row, place) in enumerate(zip(rows, places, strict=True))
        ]
        proposes = len(found) > 1 or (step.queries > 1 and self._queries.rule is None)
        if proposes and cache is not None and step.last != 1:
            self._held, self._held_cache = found, cache
            return
        for one in found:
            self._deliver(one)

    def _follow(self, step: _Step, cache: Any, batch: int | None) -> tuple[TapText, Tensor | None]:
        """Return the text that a step continues or begins, and which of its rows each sequence continues; `batch` is
        None if no row was chosen.
        """
        assert step.past is not None
        text, rows = self._texts.of(cache, step.past), None
        if batch is None:
            batch = text.batch if step.ids is None else len(step.ids)
        whole = cache is None and step.past == 0  # texts are read from the beginning
        continues = batch == text.batch
        if whole and text.ids is not None and step.ids is not None:
            rows = continued_rows(step.ids, text.ids)
            continues = rows is not None
        again = whole and not text.cached and step.queries == text.end + 1
        if (step.past == 0 and not (again and continues)) or text.number < 0:
            text = self._texts.begin(cache)
        parent, text.parent = text.parent, None
        if whole and batch > 1:  # no cache is reordered, and only token ids tell
            parent = rows
        elif parent is None and batch == text.batch:
            parent = torch.arange(batch, device="cpu")
        elif parent is not None and len(parent) != batch:
            parent = None
        text.number, text.batch, text.cached = text.number + 1, batch, cache is not None
        text.end = step.past + step.queries
        text.numbers[text.end] = text.number
        text.ids = None if step.ids is None else step.ids.clone()  # a loop may fill one buffer again and again
        return text, parent if text.number else None

    def reordered(self, cache: Any, rows: Tensor | int) -> None:
        """Note that a text continues with these rows of its cache, or with each of them so many times."""
        text = self._texts.known(cache)
        if text is None:
            return
        if isinstance(rows, int):
            before = torch.arange(text.batch, device="cpu") if text.parent is None else text.parent
            text.parent = before.repeat_interleave(rows)
        else:
            text.parent = rows.detach().clone() if text.parent is None else text.parent[rows]

    def _settle(self, cache: Any, past: int) -> None:
        """Deliver held rows that the cache still has."""
        if not self._held:
            return
        kept = past if cache is self._held_cache else length_of(self._held_cache)
        held, self._held, self._held_cache = self._held, [], None
        emptied = kept == 0 and held[0].step == 0  # for another text: nothing was generated after this prompt
        for one in held:
            if emptied or one.position < kept:
                self._deliver(one)

    def finish(self) -> None:
        """Deliver the rows that are certain at the end of a text."""
        self._settle(None, 0)

    def forget(self) -> None:
        """Drop everything that was held."""
        self._held, self._held_cache, self._step = [], None, None
        self._texts = TapTexts()


def _see_later(weights: Float[Tensor, "batch heads rows keys"], positions: Sequence[int]) -> bool:
    """Return whether any of these rows sees a key after its own position: the call is not causal."""
    return any(bool(weights[:, :, at, place + 1 :].any()) for at, place in enumerate(positions))


def _joined(layers: Sequence[Tensor]) -> Tensor:
    """Return the heads of all layers, with weight 0 for keys after the last that a layer sees."""
    keys = max(one.shape[-1] for one in layers)
    return torch.cat(
        [one if one.shape[-1] == keys else functional.pad(one, (0, keys - one.shape[-1])) for one in layers], 1
    )
