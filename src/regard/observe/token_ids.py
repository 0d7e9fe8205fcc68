"""Token ids: of each call of a model, by forward pass, and of the rows and columns of a call site."""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from regard.errors import InputError, ObservationError
from regard.observe.embedded_ids import EmbeddedIds
from regard.observe.streams import Place, reads_two_texts
from regard.observe.watched_call import Ids, WatchedCall
from regard.record.records import Record
from regard.record.tokenizer_adapter import TokenizerAdapter
from regard.record.tokens import Token
from regard.record.tokens_from_tokenizer import tokens_of, tokens_of_names

__all__ = ["Called", "GivenTokens", "Heard", "Hearing", "Listener", "Named", "Names", "Streams"]


class Listener(Protocol):
    """The interface of an object with the token ids of the model's current input."""

    whole: bool  # whether ids are those of the whole text instead of the running call

    def streams(self) -> Mapping[str, Int[Tensor, "batch positions"]]:
        """Return ids by stream: "text", or "source" and "target" of an encoder–decoder, or a tower."""
        ...

    def peek(self) -> Mapping[str, Int[Tensor, "batch positions"]]:
        """Return the same for what does without ids where they are not those of its layer."""
        ...

    def separators(self, ids: Int[Tensor, "..."]) -> Bool[Tensor, "..."] | None:
        """Return which ids are separators, or None if the text of tokens is unknown."""
        ...

    def special(self, ids: Int[Tensor, "..."]) -> Bool[Tensor, "..."] | None:
        """Return which ids are special tokens, or None without a tokenizer."""
        ...

    def reorder(self, index: int, rows: Int[Tensor, " batch"]) -> None:
        """Let each sequence of a record go on from the ids of another, as beam search reorders them."""
        ...


class Hearing:
    """Joins the ids of one site's calls, if their number equals that of its positions."""

    def __init__(self, place: Place, listener: Listener, *, peeks: bool = False) -> None:
        self._place, self._listener = place, listener
        self._streams = listener.peek if peeks else listener.streams
        self._queries: Tensor | None = None
        self._keys: Tensor | None = None
        self._calls = 0

    def is_of_others(self, *, cross: bool) -> bool:
        """Return whether only tokens of other streams are known, such as those of a text for an image tower."""
        known = self._streams().keys()
        if cross:
            return bool(known) and known <= {"target", "text"}
        other = self._place.tower not in (None, "text") or self._place.role == "encoder"
        return bool(known) and other and not known & set(self._place.own_streams)

    def hear(self, call: WatchedCall, queries: int, filled: int, *, cross: bool) -> Ids | None:
        """Return the ids of all rows and columns, including the call that begins, or None if one is unknown."""
        self._calls += 1
        streams = self._streams()
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
        return Ids(*pair, self._listener.separators, self._listener.special) if len(pair) == 2 else None

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Let each sequence go on from the ids of another."""
        at = rows.cpu()
        queries, keys = (one if one is None or len(one) != len(at) else one[at] for one in (self._queries, self._keys))
        self._queries, self._keys = queries, queries if self._keys is self._queries else keys

    def _joined(self, known: Tensor | None, heard: Tensor | None, call: WatchedCall, end: int) -> Tensor | None:
        """Return ids up to position `end`: the known ones and a new one for each query of the call."""
        if heard is None:
            return None
        if self._listener.whole:
            return heard[:, :end] if heard.shape[1] >= end else None
        if heard.shape[1] != call.queries or end - call.queries != (0 if known is None else known.shape[1]):
            return None
        return heard if known is None else torch.cat([known, heard], 1)


Streams = dict[str, tuple[tuple[Token, ...], ...]]
Called = tuple[tuple[tuple[str, Token], ...], ...]  # the tokens of each sequence, after the vocabulary's name for each
Names = Sequence[str | None] | Sequence[Sequence[str | None]]  # of one sequence, or of each of a batch
Named = Names | Mapping[str, Names]  # in the form of `tokens=`
_Ids = dict[str, list[Tensor]]

# Separators besides the end-of-sequence token: marks that end a sentence or a clause.
_SEPARATORS = frozenset(".,;:!?…。，、；：！？")
_SEPARATING = frozenset({"[SEP]", "</s>", "<sep>", "<|endoftext|>"})


ModuleCall = tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]  # with its positional and named arguments


class Heard:
    """Records the token ids in the runs of a model.

    The ids are those of the outermost running call that has some, by name, as its first argument, or in a dictionary:
    that of the model, of a part of it whose method was called, or of the module that embeds them. The record of a run
    is known only after the run: then `index` returns the index of this record. The steps of one generation belong to
    one record, and their ids are concatenated. Where the tokenizer cannot name them, the record has no tokens, and
    `unnamed` the reason.
    """

    whole = False

    def __init__(self, model: nn.Module, index: Callable[[], int], tokenizer: TokenizerAdapter | None) -> None:
        self._model, self._index = model, index
        self._tokenizer = tokenizer
        self._unnamed: dict[int, dict[str, str]] = {}  # reasons why streams of records have no names
        self._ids: dict[int, _Ids] = {}
        self._pending: dict[str, Tensor] = {}
        self._streams: dict[str, Tensor] = {}  # ids of the running call
        self._embedded = EmbeddedIds()
        self._has_attended = False  # whether the run has attention
        self._looks = True  # whether this call's embeddings are seen: those of compiled code are not
        self._mixed: set[int] = set()  # records whose model has embedded other texts too
        self._unread: set[tuple[int, str]] = set()  # records and arguments whose ids were not embedded as given
        self._encodes: bool | None = None  # whether the model has an encoder, and a decoder with other ids
        self._of_other_input: set[str] = set()  # names of layers
        self._turns: Counter[str] = Counter()  # calls of each module in the running call
        self._own: set[int] = set()  # records whose model has embedded its own ids
        self._was_read = False  # whether statistics have used ids
        self._separates: dict[int, bool] = {}
        special = () if tokenizer is None else sorted(tokenizer.special)
        self._special_ids = torch.tensor(special, dtype=torch.long, device="cpu")
        self._last: tuple[Tensor | None, Tensor | None] = None, None  # ids, and which of them are special tokens
        self._blank: dict[int, bool] = {}  # whether a token at the beginning of a text has no text of its own

    def begin(self, calls: Sequence[ModuleCall]) -> None:
        """Record the ids of a run, of which these calls are running, the outermost first.

        A run without attention, such as that of an embedding alone, reads its ids for the next one.
        """
        if self._has_attended or not self._pending:
            self._settle()
            self._embedded, self._looks = EmbeddedIds(self._special), True
        found = next(filter(None, (_ids_in(args, kwargs) for _, args, kwargs in calls)), {})
        for name, ids in found.items():
            self._pending[name] = ids.detach().to("cpu", copy=True)  # a loop may fill one buffer again and again
        self._streams = _by_stream(self._model, self._pending)
        if self._encodes is None:
            self._encodes = reads_two_texts(self._model)
        self._turns, self._has_attended = Counter(), False

    def look_away(self) -> None:
        """Note that the embeddings of the running call are not seen, as in compiled code or of other ranks."""
        self._looks = False

    def look_up(self, ids: Tensor, table: Tensor) -> bool:
        """Note which ids the running call embeds; return whether they are those that the model was called with."""
        return self._embedded.add(self._streams, ids.detach().cpu(), table)

    def note_input(self, name: str, *, is_other: bool) -> None:
        """Note a call of a module, and whether its queries were made of other inputs than these ids, such as those of a
        second tower.
        """
        self._has_attended = True
        if not self._streams:  # outside of calls no ids are known
            return
        self._turns[name] += 1
        if is_other:
            self._of_other_input.add(name if self._turns[name] == 1 else f"{name}#{self._turns[name]}")

    def end(self) -> None:
        """Assign the ids of the run that has ended, and clear them, since calls outside of it have other inputs."""
        if self._has_attended:
            self._settle()
            self._streams = {}

    def reorder(self, index: int, rows: Int[Tensor, " batch"]) -> None:
        """Let each sequence of a record go on from the ids of another, where there are as many."""
        at = rows.cpu()
        for name, steps in self._ids.get(index, {}).items():
            self._ids[index][name] = [one[at] if len(one) == len(at) else one for one in steps]

    def streams(self) -> Mapping[str, Tensor]:
        """Return the ids of the running call, by stream."""
        self._was_read = True
        return self._streams

    def peek(self) -> Mapping[str, Tensor]:
        """Return the ids of the running call, for what does without them."""
        return self._streams

    def special(self, ids: Tensor) -> Tensor | None:
        """Return the mask of tokens that are no text, as the record names them: those that are special by their id, and
        where a text begins a token that is only the space that the tokenizer adds.
        """
        if self._tokenizer is None:
            return None
        known, found = self._last
        if known is not None and torch.equal(known, ids):  # as in every layer of a run
            return found
        special = torch.isin(ids, self._special_ids)
        begins = ~special
        begins[:, 1:] &= special[:, :-1]
        first = ids[begins].tolist()
        for index in set(first) - self._blank.keys():
            self._blank[index] = _is_blank(self._tokenizer, index)
        special[begins] = torch.tensor([self._blank[index] for index in first], dtype=torch.bool, device=ids.device)
        self._last = ids, special
        return special

    def separators(self, ids: Tensor) -> Tensor | None:
        """Return the mask of end-of-sequence tokens and of tokens that consist only of a mark between sentences or
        clauses.
        """
        if self._tokenizer is None:
            return None
        for index in set(ids.unique().tolist()) - self._separates.keys():
            self._separates[index] = index in self._tokenizer.ends or _is_separator(self._tokenizer, index)
        return torch.isin(
            ids,
            torch.tensor([one for one, does in self._separates.items() if does], dtype=torch.long, device=ids.device),
        )

    @property
    def _special(self) -> frozenset[int]:
        """The ids of tokens that are no text, with that of unknown text."""
        if self._tokenizer is None:
            return frozenset()
        unknown = self._tokenizer.unknown
        return self._tokenizer.special if unknown is None else self._tokenizer.special | {unknown}

    def _settle(self) -> None:
        """Assign the ids of the finished call to its record."""
        if self._pending:
            index = self._index()
            heard = self._ids.setdefault(index, {})
            # An encoder–decoder reads two texts anyway.
            self._mixed |= {index} if "text" in self._streams and self._embedded.are_mixed() else set()
            self._own |= {index} if self._embedded.tables else set()
            unread = self._streams.keys() - self._embedded.read if self._looks else set()
            self._unread |= {(index, "decoder_input_ids" if name == "target" else "input_ids") for name in unread}
            for name, ids in self._pending.items():
                heard.setdefault(name, []).append(ids)
            self._pending = {}
        self._has_attended = False

    def tokens(self, index: int, record: Record) -> dict[str, Called]:
        """Return the tokens of one record, each after the vocabulary's name for it, where their number equals that of
        its positions.

        Raises:
            ObservationError: A statistic has used ids of a call in which the model embeds several texts or other ids.
        """
        if self._has_attended:
            self._settle()
        others = _streams_of_others(record, self._of_other_input) if index in self._own else set()
        found: dict[str, Called] = {}
        for argument, steps in self._ids.get(index, {}).items():
            if any(len(step) != len(steps[0]) for step in steps):
                continue
            ids = [[int(one) for step in steps for one in step[batch_index]] for batch_index in range(len(steps[0]))]
            stream = _stream_of(argument, len(ids[0]), record, encodes=self._encodes is True)
            if index in self._mixed or stream in others:
                self._refuse_statistics(_MIXED)
            elif (index, argument) in self._unread:
                self._refuse_statistics(_UNREAD.format(argument))
            elif (
                self._tokenizer is not None
                and stream is not None
                and {one.batch for one in record.layers if stream in (one.query_tokens, one.key_tokens)} == {len(ids)}
            ):
                try:
                    found[stream] = tuple(
                        tuple(zip(self._tokenizer.name(one), tokens_of(self._tokenizer, one), strict=True))
                        for one in ids
                    )
                except Exception as problem:  # names never cost the record
                    said = str(problem) if isinstance(problem, InputError) else repr(problem)
                    self._unnamed.setdefault(index, {})[stream] = said
        return found

    def unnamed(self, index: int) -> Mapping[str, str]:
        """Return for each stream of a record whose ids the tokenizer could not name the reason."""
        return self._unnamed.get(index, {})

    def _refuse_statistics(self, reason: str) -> None:
        """Raise if statistics have used ids of a record whose layers may have other texts."""
        if self._was_read:
            raise ObservationError(reason)


_MIXED = (
    "the model reads something else of the length of its `input_ids` in the same call, and statistics of tokens do not "
    "know which of the two a layer has: watch the part of the model that reads the text, or pass `tokens=`"
)
_UNREAD = (
    "the model was not seen to embed its `{}` as they were given (by nn.Embedding, an index or a one-hot vector), so "
    "statistics of tokens do not know which token a position has: watch the part of the model that reads the text, or "
    "pass `tokens=`"
)


def _streams_of_others(record: Record, names: Collection[str]) -> set[str]:
    """Return the streams of the layers with these names, unless the same module has another call in its stream: the
    boxes of the words, as LiLT has them, are the words' positions.
    """
    own = {(one.name.partition("#")[0], one.query_tokens) for one in record.layers if one.name not in names}
    others = (one for one in record.layers if one.name in names)
    return {one.query_tokens for one in others if (one.name.partition("#")[0], one.query_tokens) not in own}


class GivenTokens:
    """Tokens named by the caller, numbered so that equal texts are equal tokens.

    Args:
        names: The names of each sequence of each stream, None for padding.
        tokenizer: Names further special tokens.
    """

    whole = True

    def __init__(
        self, names: Mapping[str, Sequence[Sequence[str | None]]], tokenizer: TokenizerAdapter | None = None
    ) -> None:
        texts = itertools.chain.from_iterable(itertools.chain.from_iterable(names.values()))
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        self._ids = {
            stream: torch.tensor([[numbers[text] for text in sequence] for sequence in sequences], device="cpu")
            for stream, sequences in names.items()
        }
        read = {
            text: token
            for sequences in names.values()
            for own, tokens in zip(sequences, tokens_of_names(sequences), strict=True)
            for text, token in zip(own, tokens, strict=True)
        }
        self._separating = torch.tensor([_separates(read[text].text) for text in numbers], device="cpu")
        special = _special_names(tokenizer)
        self._special = torch.tensor([read[text].special or text in special for text in numbers], device="cpu")

    def reorder(self, index: int, rows: Int[Tensor, " batch"]) -> None:
        """Do nothing if there is one sequence.

        Raises:
            ObservationError: There are several, and beam search continues one with another.
        """
        if any(len(ids) > 1 for ids in self._ids.values()):
            raise ObservationError(
                "`tokens` name the sequences of a batch, and beam search continues one with another, so statistics of "
                "tokens do not know which token a position has: pass `tokenizer=`"
            )

    def streams(self) -> Mapping[str, Tensor]:
        """Return the ids of the whole text of each stream."""
        return self._ids

    def separators(self, ids: Tensor) -> Tensor | None:
        """Return the mask of separators."""
        return self._separating[ids]

    def peek(self) -> Mapping[str, Tensor]:
        """Return the ids of the whole text of each stream."""
        return self._ids

    def special(self, ids: Tensor) -> Tensor | None:
        """Return the mask of padding, and of special tokens by their names: other tokens are text."""
        return self._special[ids]


_ARGUMENTS = ("input_ids", "decoder_input_ids")


def _ids_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the ids among the arguments of a call, by name."""
    given: dict[str, Any] = {"input_ids": args[0]} if args and isinstance(args[0], Tensor) else {}
    for one in (*args, *kwargs.values()):
        given |= {name: one[name] for name in _ARGUMENTS if name in one} if isinstance(one, Mapping) else {}
    given |= {name: kwargs[name] for name in _ARGUMENTS if name in kwargs}
    return {name: one for name, one in given.items() if _are_ids(one)}


def _are_ids(one: Any) -> bool:
    return isinstance(one, Tensor) and not one.is_floating_point() and not one.is_nested and one.ndim == 2


def _special_names(tokenizer: TokenizerAdapter | None) -> Collection[str | None]:
    try:
        return () if tokenizer is None else set(tokenizer.name(sorted(tokenizer.special)))
    except InputError:
        return ()


def _is_separator(tokenizer: TokenizerAdapter, index: int) -> bool:
    try:
        return _separates(tokens_of(tokenizer, [index])[0].text)
    except Exception:  # an id that cannot be named is no mark, and does not end the run
        return False


def _is_blank(tokenizer: TokenizerAdapter, index: int) -> bool:
    """Return whether a token without any before it is marked as special, though its id is none."""
    try:
        return tokens_of(tokenizer, [index])[0].special
    except InputError:
        return False


def _separates(text: str) -> bool:
    return text in _SEPARATING or (text != "" and set(text) <= _SEPARATORS)


def _by_stream(module: nn.Module, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Assign ids to streams; ids that an encoder–decoder makes for its decoder itself are not known."""
    crossed = "decoder_input_ids" in ids or getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    names = {"input_ids": "source" if crossed else "text", "decoder_input_ids": "target"}
    return {names[name]: one for name, one in ids.items()}


def _stream_of(argument: str, count: int, record: Record, *, encodes: bool) -> str | None:
    """Return the stream whose tokens an argument of the model holds, or None if their number differs from its
    positions.
    """
    lengths = record.streams
    if argument == "decoder_input_ids":
        names = ["target"]
    else:  # a decoder watched without its encoder calls its target ids so, and no layer encodes the source
        encodes |= any(layer.kind == "self" and layer.query_tokens == "source" for layer in record.layers)
        names = ["text", "source" if encodes else "target"]
    return next((name for name in names if name in lengths and count == lengths[name]), None)
