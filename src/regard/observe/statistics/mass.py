"""Mass: the share of its attention that each query gives to certain keys."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError, ObservationError
from regard.observe.statistics.base import Extent, PerQuery
from regard.observe.watched_call import Ids
from regard.observe.weight_rows import RowBlock

__all__ = ["MASSES", "Mass"]


class Mass(PerQuery):
    """Σ_{j ∈ S(i)} p_ij, the weight that query i gives to a set of keys; (batch, heads, queries), 0 if S is empty.

    The set is one of these by name, or some `keys` (columns of the record), or some `token_ids`:

        "self"        {i}, the query's own position
        "previous"    {i − 1}; Voita et al. 2019 (https://arxiv.org/abs/1905.09418) call such heads positional
        "next"        {i + 1}; with `tokenizer=`, neither is a special token: the first word has none before it
        "first"       the first token of the text: no padding on the left and, with `tokenizer=`, no special token
        "special_tokens"  [CLS], BOS and others that are no text; with `tokenizer=`
        "separators"  [SEP] and other ends of sequence, commas, stops and their like; Clark et al. 2019
                      (https://arxiv.org/abs/1906.04341, section 3.2)
        "duplicate_token"  earlier keys with the same token: a duplicate-token head (Wang et al. 2022,
                      https://arxiv.org/abs/2211.00593)
        "induction"   keys directly after an earlier occurrence of the same token; on a random sequence that is repeated
                      once, the mean over its second half is the induction score (Olsson et al. 2022,
                      https://arxiv.org/abs/2209.11895)

    The last four need the token ids: those that the model was called with under regard.watch, or `input_ids`
    (positions,) or (batch, positions). In cross-attention "duplicate_token" is any key with the query's token,
    "induction" any key after one, and positions count from the first token of each text. Several of one kind need a
    `name` each. Which rows the mean that pages and the terminal show is over goes by the name: under "previous" and
    "next" those with such a key, under any other all rows of the text.

    Raises:
        InputError: Not exactly one set is given, or its name is unknown.
        ObservationError: The set needs tokens, and these are unknown.

    >>> from regard.observe.statistics import of_weights
    >>> weights = [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.3, 0.2]]
    >>> of_weights(Mass("previous"), weights)["previous"]
    array([0.  , 0.25, 0.3 ], dtype=float32)
    >>> of_weights(Mass("induction"), weights, input_ids=[7, 8, 7])["induction"]  # the last 7: behind the first comes 8
    array([0. , 0. , 0.3], dtype=float32)
    >>> of_weights(Mass(keys=[0, 2], name="ends"), weights)["ends"]
    array([1.  , 0.25, 0.7 ], dtype=float32)
    """

    by_head = True

    def __init__(
        self,
        key_set: str | None = None,
        *,
        keys: Iterable[int] | None = None,
        token_ids: Iterable[int] | None = None,
        input_ids: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if sum(one is not None for one in (key_set, keys, token_ids)) != 1:
            raise InputError(
                "`Mass` needs one set of keys: a name such as Mass('previous'), keys=[...] or token_ids=[...]"
            )
        if key_set is not None and key_set not in MASSES:
            raise InputError(f"`key_set` must be one of {', '.join(map(repr, MASSES))}, got {key_set!r}")
        self._on = key_set or ("keys" if keys is not None else "tokens")
        self._chosen = _numbers("keys" if keys is not None else "token_ids", keys if token_ids is None else token_ids)
        self._given = None if input_ids is None else _batched(input_ids)
        self.name = name or self._on
        if self._on in _TOLD_BY_TOKENS and input_ids is None:
            self.needs = frozenset({"tokens"})
        self.may_use_tokens = self._on in ("first", "previous", "next")
        self._special: Tensor | None = None
        self._ids: Ids | None = None
        self._firsts: Tensor | None = None
        self._columns: Tensor | None = None

    def start(self, extent: Extent, /) -> None:
        """Store the data that determine the set: tokens, or the first key."""
        super().start(extent)
        if self._on in _TOLD_BY_TOKENS:
            self._ids = self._known(extent)
        if self.may_use_tokens and extent.around is not None and extent.around.ids is not None:
            special = extent.around.ids.special
            self._special = None if special is None else special.to(extent.device)
        if self._on == "first":
            first = _first(extent, self.name, self._special, begins=self._firsts is None)
            known = first if self._firsts is None else self._firsts
            self._firsts = torch.where(known < 0, first, known)
        self._columns = self._set(extent)

    def of(self, rows: RowBlock) -> Float[Tensor, "heads rows"]:
        """Return the mass of some rows."""
        if self._columns is not None:
            some = self._columns[rows.batch_index if len(self._columns) > 1 else 0, rows.columns]
            return rows.weights[..., : len(some)] @ some.to(rows.weights.dtype)
        if self._on in _STEPS:
            return self._beside(rows, _STEPS[self._on])
        return self._told(rows)

    def _beside(self, rows: RowBlock, step: int) -> Tensor:
        """Return the weight of one key per row, at a constant distance from it."""
        i = torch.arange(rows.rows.start, rows.rows.stop, device=rows.weights.device) + self.extent.offset
        at, columns = i + step - rows.key_start, rows.weights.shape[2]
        inside = (at >= 0) & (at < columns)
        index = at.clamp(0, columns - 1)[:, None].expand(*rows.weights.shape[:2], 1)
        if step and self._special is not None:
            special = self._special[rows.batch_index]
            inside &= ~special[(i + step).clamp(0, len(special) - 1)]
        return rows.weights.gather(-1, index)[..., 0] * inside

    def _told(self, rows: RowBlock) -> Tensor:
        """Return the mask of keys with the query's token, or directly after one; for self-attention, only earlier
        ones.
        """
        assert self._ids is not None
        behind = 1 if self._on == "induction" else 0
        queries = self._ids.queries[rows.batch_index, rows.rows]
        j = torch.arange(rows.columns.start, rows.columns.stop, device=rows.weights.device) - behind
        keys = self._ids.keys[rows.batch_index]
        inside = (j >= 0) & (j < len(keys))
        chosen = (queries[:, None] == keys[j.clamp(0, len(keys) - 1)]) & inside
        if self.extent.padding is not None:  # may have the id of a token
            padding = torch.tensor(self.extent.padding.keys[rows.batch_index], device=j.device)
            chosen &= ~padding[j.clamp(0, len(padding) - 1)]
        if not self.extent.cross:
            i = torch.arange(rows.rows.start, rows.rows.stop, device=j.device) + self.extent.offset
            chosen &= j < i[:, None]
        mass: Tensor = torch.linalg.vecdot(rows.weights, chosen.to(rows.weights.dtype))
        return mass

    def _known(self, extent: Extent) -> Ids:
        """Return the ids given to this statistic, or those of the model's input."""
        if self._given is None:
            return extent.needs(self.name).tokens(self.name).to(extent.device)
        given = self._given.to(extent.device).expand(extent.batch, -1)
        positions = extent.queries + extent.offset
        two = extent.cross or extent.offset < 0
        if two or given.shape[1] < positions:
            seen = f"{extent.queries} queries and {extent.keys} keys" if two else f"{positions} so far"
            raise ObservationError(
                f"`input_ids` of {self.name!r} must name every position of a text that attends to itself ({seen}), "
                f"got {given.shape[1]}: watch that text's own model"
            )
        return Ids(given[:, extent.offset :], given, lambda _: None)

    def _set(self, extent: Extent) -> Tensor | None:
        """Return 1 for keys in a set that is the same for all rows, 0 for others, of shape (batch or 1, keys)."""
        if self._on == "keys":
            keys = torch.tensor([key for key in self._chosen if key < extent.keys], dtype=torch.long, device="cpu")
            return torch.zeros(1, extent.keys, device=extent.device).index_fill(1, keys.to(extent.device), 1.0)
        if self._on == "first":
            assert self._firsts is not None
            return torch.arange(extent.keys, device=extent.device) == self._firsts[:, None]
        if self._on == "tokens":
            assert self._ids is not None
            return torch.isin(self._ids.keys, torch.tensor(self._chosen, device=extent.device))
        if self._on in ("separators", "special_tokens"):
            assert self._ids is not None
            found = self._ids.separators if self._on == "separators" else self._ids.special
            if found is None:
                raise ObservationError(
                    f"{self.name!r} needs to know which tokens are {self._on.replace('_', ' ')}: pass `tokenizer=` or "
                    "`tokens=` to regard.watch, or name their ids with Mass(token_ids=[...])"
                )
            return found
        return None


def _first(extent: Extent, name: str, special: Tensor | None, *, begins: bool) -> Tensor:
    """Return the first key of each sequence that is neither padding nor a special token, as far as these are known,
    (batch,), −1 if there is none; where no padding is known, none before the first that any query sees.
    """
    if extent.padding is not None:
        shown = torch.tensor(~extent.padding.keys, device=extent.device)
    else:
        around = extent.needs(name)
        first = around.first
        if begins and around.shift:  # a cache has dropped the first key, or padding, before all calls
            first = torch.where(first == around.shift, 0, first)
        if special is None:
            return first
        shown = (torch.arange(extent.keys, device=extent.device) >= first[:, None]) & (first >= 0)[:, None]
    if special is not None:
        known = special[:, : extent.keys]
        shown = shown[:, : known.shape[1]] & ~known
        if (unknown := extent.keys - known.shape[1]) > 0:
            shown = functional.pad(shown, (0, unknown))
    return torch.where(shown.any(1), shown.int().argmax(1), -1)


_STEPS: Mapping[str, int] = {"self": 0, "previous": -1, "next": 1}
_TOLD_BY_TOKENS = ("separators", "special_tokens", "duplicate_token", "induction", "tokens")
MASSES = (*_STEPS, "first", "special_tokens", "separators", "duplicate_token", "induction")


def _numbers(name: str, chosen: Iterable[int] | None) -> tuple[int, ...]:
    numbers = tuple(chosen or ())
    if any(isinstance(one, bool) or not hasattr(one, "__index__") or one < 0 for one in numbers):
        raise InputError(f"`{name}` must be numbers from 0 on, got {numbers}")
    return tuple(int(one) for one in numbers)


def _batched(ids: Any) -> Tensor:
    known = torch.as_tensor(ids)
    if known.is_floating_point() or known.ndim not in (1, 2):
        raise InputError(
            f"`input_ids` must be whole numbers (positions,) or (batch, positions), got {known.dtype} of shape "
            f"{tuple(known.shape)}"
        )
    return known if known.ndim == 2 else known[None]
