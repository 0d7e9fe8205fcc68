"""Find the tokens of a site's rows and columns from the ids of the model's input."""

from collections.abc import Mapping
from typing import Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.capture.streams import Place
from regard.capture.watched_call import Ids, WatchedCall

__all__ = ["Hearing", "Listener"]


class Listener(Protocol):
    """The interface of an object with the token ids of the model's current input."""

    whole: bool  # whether ids are those of the whole text instead of the running call

    def streams(self) -> Mapping[str, Int[Tensor, "batch positions"]]:
        """Return ids by stream: "text", or "source" and "target" of an encoder–decoder, or a tower."""
        ...

    def separators(self, ids: Int[Tensor, "..."]) -> Bool[Tensor, "..."] | None:
        """Return which ids are separators, or None if the text of tokens is unknown."""
        ...


class Hearing:
    """Joins the ids of one site's calls, if their number equals that of its positions."""

    def __init__(self, place: Place, listener: Listener) -> None:
        self._place, self._listener = place, listener
        self._queries: Tensor | None = None
        self._keys: Tensor | None = None
        self._calls = 0

    def is_of_others(self, *, cross: bool) -> bool:
        """Return whether only tokens of other streams are known, such as those of a text for an image tower."""
        known = self._listener.streams().keys()
        if cross:
            return bool(known) and known <= {"target", "text"}
        other = self._place.tower not in (None, "text") or self._place.role == "encoder"
        return bool(known) and other and not known & set(self._place.own_streams)

    def hear(self, call: WatchedCall, queries: int, filled: int, *, cross: bool) -> Ids | None:
        """Return the ids of all rows and columns, including the call that begins, or None if one is unknown."""
        self._calls += 1
        streams = self._listener.streams()
        names = ("target", "text") if cross else self._place.own_streams
        own = next((name for name in names if name in streams), None)
        mine = None if own is None else streams[own]
        end = queries if cross else filled
        self._queries = self._joined(self._queries, mine, call, end)
        if not cross:
            self._keys = self._queries
        elif self._calls == 1:
            others = (streams[name] for name in sorted(streams, key=lambda name: name != "source") if name != own)
            self._keys = next((ids for ids in others if ids.shape[1] == call.keys), None)
        if self._queries is None or self._keys is None:
            return None
        rows = self._queries[:, end - queries :]
        known = (one.expand(call.batch, -1) for one in (rows, self._keys) if len(one) in (1, call.batch))
        pair = tuple(known)
        return Ids(*pair, self._listener.separators) if len(pair) == 2 else None

    def _joined(self, known: Tensor | None, heard: Tensor | None, call: WatchedCall, end: int) -> Tensor | None:
        """Return ids up to position `end`: the known ones and a new one for each query of the call."""
        if heard is None:
            return None
        if self._listener.whole:
            return heard[:, :end] if heard.shape[1] >= end else None
        if heard.shape[1] != call.queries or end - call.queries != (0 if known is None else known.shape[1]):
            return None
        return heard if known is None else torch.cat([known, heard], 1)
