"""watch(): record every attention call of a model, without changes to its code or its output."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, cast

from torch import Tensor, nn

from regard.errors import InputError, ObservationError
from regard.functional import attention
from regard.hooks import are_sharded
from regard.interpret.observation import Observation
from regard.interpret.unsupported import why_incomplete, why_nothing
from regard.interpret.vision_transformers import patch_tokens
from regard.jagged import Packing
from regard.masks import BoundMask
from regard.observe import listening
from regard.observe.before_attention import BeforeAttention
from regard.observe.call_kinds import CallFromQK
from regard.observe.intercept import Interception
from regard.observe.intercept.compiled_code import refuse_compiled, refuse_packages, refusing_compiled_code
from regard.observe.intercept.interception import Reader
from regard.observe.recorder import OnLayerEnd, Recorder
from regard.observe.requested_statistics import Asked, Keep
from regard.observe.selection import Heads, Keys, Queries
from regard.observe.statistics import KeySpanSums, Statistic
from regard.observe.token_ids import Called, GivenTokens, Heard, Named, Streams
from regard.observe.watched_call import WatchedCall
from regard.parallel.dtensors import read
from regard.parallel.sequence_parallel import SequenceShards, attend_local, call_over_shards
from regard.parallel.watched_shards import CallFromShards
from regard.problem import DEFAULT_MAX_BYTES, Options, Problem, complete
from regard.record.records import Record
from regard.record.tokenizer_adapter import adapt
from regard.record.tokens_from_tokenizer import tokens_of_names
from regard.tensors import without_autocast

__all__ = ["check_tokens", "given_tokens", "read_attention", "watch"]


def check_tokens(tokens: Any) -> None:
    """Check that `tokens` is a list of texts, a list of such lists of one length, or a dictionary of either by stream.

    Raises:
        InputError: It is none of them.
    """
    names = tokens if isinstance(tokens, Mapping) else {None: tokens}
    for stream, texts in names.items():
        where = "" if stream is None else f" for the stream {stream!r}"
        if isinstance(texts, str):
            raise InputError(
                f"`tokens` must be a list of texts, one a position, got the text {texts!r}{where}: tokens.split()?"
            )
        sequences = _sequences(texts) if _is_list(texts) else ()
        if not sequences or not all(
            _is_list(sequence) and all(text is None or isinstance(text, str) for text in sequence)
            for sequence in sequences
        ):
            raise InputError(
                "`tokens` must be a list of texts, one a position, or such lists by stream, "
                f'{{"source": [...], "target": [...]}}, or for each sequence of a batch, got {texts!r}{where}'
            )
        if len(lengths := {len(sequence) for sequence in sequences}) > 1:
            raise InputError(
                f"`tokens` must have as many names for each sequence of the batch, got {min(lengths)} to "
                f"{max(lengths)}{where}: None names a position of padding, before the text or after it"
            )


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _sequences(names: Any) -> Sequence[Sequence[str | None]]:
    """Return the names of each sequence of a batch, of which there is one if they are a list of texts."""
    return names if len(names) and _is_list(names[0]) else (names,)


def _numbered(tokens: Named) -> dict[str, list[list[str | None]]]:
    """Return the names of each sequence of each stream, for statistics of tokens: None for padding."""
    streams: Mapping[str, Any] = tokens if isinstance(tokens, Mapping) else {"text": tokens}
    return {
        stream: [[text or None for text in sequence] for sequence in _sequences(names)]
        for stream, names in streams.items()
    }


def given_tokens(tokens: Named, record: Record) -> Streams:
    """Return the tokens given by the caller, one for each position of each sequence of a stream; none where only its
    last positions have rows.

    Raises:
        InputError: The number of tokens or sequences differs from the stream's, a stream does not exist, or one list is
            given for several streams.
    """
    lengths = record.streams
    there = ", ".join(f"{length} ({stream})" for stream, length in lengths.items())
    if not isinstance(tokens, Mapping):
        name = "text" if "text" in lengths or len(lengths) != 1 else next(iter(lengths))
        if name not in lengths:
            lists = ", ".join(f'"{stream}": [...]' for stream in lengths)
            raise InputError(
                f"`tokens` must be a list for each stream where there are several, {there}, got one of {len(tokens)}: "
                f"tokens={{{lists}}} with those you know, or pass `tokenizer=`"
            )
        tokens = {name: tokens}
    named: Streams = {}
    for stream, names in tokens.items():
        if stream not in lengths:
            raise InputError(f"`tokens` must be of streams that there are, {there} positions, got {stream!r}")
        sequences = _sequences(names)
        sides = (layer for layer in record.layers if stream in (layer.query_tokens, layer.key_tokens))
        batch = next(sides).batch
        if len(sequences) != batch or {len(sequence) for sequence in sequences} != {lengths[stream]}:
            several = "" if batch == 1 else f", a list for each of the {batch} sequences of the batch"
            raise InputError(
                f"`tokens` must name all positions{several}, {there} of them in a batch of {batch}, got "
                f"{' and '.join(str(len(sequence)) for sequence in sequences[:8])} for {stream!r}: None is padding; "
                "or leave it out, or pass `tokenizer=`"
            )
        own = [one for one in record.layers if one.query_tokens == one.key_tokens == stream]
        if own and all(one.queries < one.keys for one in own):
            continue  # its rows are those of the last positions, and would have other names
        named[stream] = tokens_of_names(sequences)
    return named


def _agreed(given: Streams, heard: Mapping[str, Called], tokens: Named) -> Streams:
    """Return the given tokens, with what a tokenizer knows of those that are what it calls their ids: all of it where
    every name of a sequence is, else which are special.
    """
    agreed = dict(given)
    streams: Mapping[str, Any] = tokens if isinstance(tokens, Mapping) else dict.fromkeys(given, tokens)
    for stream in given.keys() & heard.keys():
        sequences = []
        for named, own, names in zip(given[stream], _sequences(streams[stream]), heard[stream], strict=True):
            same = [text == name if text else token.special for text, (name, token) in zip(own, names, strict=True)]
            known = [token for _, token in names]
            if not all(same):
                known = [
                    token if is_same and token.special else one
                    for one, is_same, token in zip(named, same, known, strict=True)
                ]
            sequences.append(tuple(known))
        agreed[stream] = tuple(sequences)
    return agreed


_Asked = ParamSpec("_Asked")


class _Watch(contextlib.AbstractContextManager[Observation]):
    """The context manager of one watch; it can be entered once."""

    def __init__(self, block: contextlib.AbstractContextManager[Observation]) -> None:
        self._block: contextlib.AbstractContextManager[Observation] | None = block
        self._entered: contextlib.AbstractContextManager[Observation] | None = None
        self._observation = Observation()

    def __enter__(self) -> Observation:
        if self._block is None:
            raise InputError(
                "this watch has been entered before, and each is good for one `with` block: call "
                "regard.watch(model) again for another"
            )
        self._entered, self._block = self._block, None
        self._observation = self._entered.__enter__()
        return self._observation

    def __exit__(self, *raised: Any) -> bool | None:
        assert self._entered is not None
        self._observation.failed = True  # also set if the block succeeds and the work at its end fails
        suppressed = self._entered.__exit__(*raised)
        self._observation.failed = raised[0] is not None
        return suppressed


def _entered_once(
    watching: Callable[_Asked, contextlib.AbstractContextManager[Observation]],
) -> Callable[_Asked, contextlib.AbstractContextManager[Observation]]:
    @functools.wraps(watching)
    def watch(*args: _Asked.args, **kwargs: _Asked.kwargs) -> contextlib.AbstractContextManager[Observation]:
        return _Watch(watching(*args, **kwargs))

    return watch


@_entered_once
@contextlib.contextmanager
def watch(
    model: nn.Module,
    *,
    keep: Keep = "maps",
    tokenizer: Any = None,
    tokens: Named | None = None,
    statistics: Sequence[str | Statistic] = (),
    layers: Sequence[int | str] | None = None,
    heads: Heads | None = None,
    queries: Queries | None = None,
    keys: Keys | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    on_layer_end: OnLayerEnd | None = None,
    strict: bool = True,
) -> Iterator[Observation]:
    """Record every attention call of `model` inside the `with` block; the model's output is bitwise the same.

    The following calls are supported: `F.scaled_dot_product_attention`, `nn.MultiheadAttention` and
    `nn.TransformerEncoder` with their fast paths, `regard.attention`, and attention written by hand (a softmax over
    products of queries and keys whose result multiplies values). Weights are recorded before dropout, and no random
    number is drawn. Rows are processed in blocks, so no n × n matrix is stored unless requested.

    On CPU, one pass of a native kernel computes the standard statistics of plain, causal and windowed calls with 512
    keys or more, and PyTorch those of all others. With `regard.use_backend("native")` shorter calls take the pass too,
    and `seen.fallback_reasons` says for each layer why one did not.

    Of a compiled model the fused kernels and regard's own operators are heard: inside the block its graphs are traced
    once more, left unchanged, and listened to as they run. Attention that the compiler takes apart is refused.

    Only calls in the thread that opened the watch are recorded. Calls of the model from other threads run unchanged
    and are counted in `seen.calls_elsewhere`.

    Args:
        model: Any module, also one that torch.compile has compiled as a whole.
        keep: "maps" stores pooled heat maps (exact up to 512 tokens), the 8 strongest keys of each query, entropy, and
            the attention received by each key. "weights" also stores every weight. "qk" stores queries and keys
            instead, (heads + kv heads) · head_dim numbers per position, from which any rectangle of weights is computed
            on demand by `seen.weights(...)` or regard.record.tiles.Matrix. "qkv" stores the values too, from which
            `seen.lesson(...)` computes the heads' outputs.
        tokenizer: The model's tokenizer, which names the positions by the `input_ids` of the call: one of transformers,
            tokenizers, tiktoken or SentencePiece, or any object with `decode(ids)`. If it cannot name an id, the
            record has no names, and says why where they are asked for.
        tokens: The tokens, one for each position; for a batch a list of such lists; for several streams a dictionary
            of either, `{"source": [...], "target": [...]}`. None or "" is a position of padding. Names copied from a
            vocabulary, as by `convert_ids_to_tokens` ("Ġcat", "▁cat", "##s", "[CLS]"), are shown as the text that they
            spell; with `tokenizer=` beside them it says which are special. `seen.streams` has the names and lengths of
            streams.
        statistics: Statistics to compute in the same pass, by name ("distance", "confidence", "sink", "self",
            "previous", "next", "first", "special_tokens", "separators", "duplicate_token", "induction", "value_norm",
            "gradient_x_attention", "importance") or as a value of regard.observe.statistics; `seen.statistic(name,
            layer=, head=)` returns them.
        layers: The layers to record, by the model's number (in every stream) or by name; by default all. The others
            are not in the record and cost almost nothing.
        heads: The heads to record: a list of "17.3", (17, 3), 17 for all heads of a layer, or an object with `heads` of
            such pairs. Only their rows are computed; `seen.weights(layer=17)` has those of the layer that were chosen.
        queries: The queries to record, by default all: "last" of the text, and of every later step; positions; or a
            range. All arrays are 0 at the other queries, and sums over queries are over these. Positions are those of
            the batch: pad it on the left, so that "last" is the last token of each text.
        keys: Named spans of key positions, {"document 1": (0, 120), "rest": (120, None)}, over which the weights of
            each query are summed: `seen.statistic("key_spans", layer=, head=)`, (batch, queries, spans).
        max_bytes: Limit of bytes for keep="weights", "qk" or "qkv".
        strict: Whether attention that ran and could not be recorded raises an error. With False, it is listed in
            `seen.missing` by module, reason and number of calls.
        on_layer_end: Called with the number and the layer when each is finished, for one pass over one text. The layer
            that it returns replaces the layer in the record; None leaves the record unchanged.

    Raises:
        InputError: `model` is not a module, `keep` is none of the four, `tokenizer` is no tokenizer, the number of
            `tokens` differs from the positions, a member of `statistics` is not a statistic, or one of `layers` was not
            called.
        ObservationError: A part of the model is compiled, its compiled code reports no kernels or its graph breaks, no
            attention call was seen or one could not be recorded (`strict`), `max_bytes` is too small, a statistic
            cannot follow beam search or needs unknown data (tokens, values, gradients), or keep="qk" or "qkv" is used
            with weights whose q and k (or v) are unknown, or with a score or normalizer that is not regard's own. What
            a statistic over all layers cannot follow is raised last, when `seen` has everything else.
    """
    refuse_packages(model)
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be an nn.Module, got {type(model).__name__}")
    if not listening.can_listen():
        raise ObservationError(
            "this PyTorch has no dispatcher key by which its attention kernels are heard: use one that has it, as 2.13"
        )
    if keep not in ("maps", "qk", "qkv", "weights"):
        raise InputError(f'`keep` must be "maps", "qk", "qkv" or "weights", got {keep!r}')
    if tokens is not None:
        check_tokens(tokens)
    names = None if tokenizer is None else adapt(tokenizer)
    before = _before(model, keep)
    model = getattr(model, "_orig_mod", model)  # what torch.compile(model) runs
    refuse_compiled(model, whole=False)
    if isinstance(statistics, str) or not isinstance(statistics, Sequence):
        raise InputError(f"`statistics` must be a list of names and statistics, got {statistics!r}: put it in [ ]")
    spans = () if keys is None else (KeySpanSums(keys),)
    chosen: dict[str, Any] = {"layers": layers, "heads": heads, "queries": queries}
    asked = Asked(keep, (*statistics, *spans), **chosen, max_bytes=max_bytes, before=before)
    heard = None
    if tokenizer is not None or (asked.needs("tokens") and tokens is None):
        heard = Heard(model, lambda: recorder.index, names)
    listener = GivenTokens(_numbered(tokens), names) if asked.needs("tokens") and tokens is not None else heard
    recorder = Recorder(model, keep, max_bytes, asked=asked, listener=listener, on_layer_end=on_layer_end)
    observation = Observation()
    with contextlib.closing(recorder):
        with contextlib.ExitStack() as stack:
            stack.enter_context(refusing_compiled_code())
            interception = stack.enter_context(Interception(model, recorder, _READERS))
            interception.hears = heard
            stack.enter_context(before or contextlib.nullcontext())
            yield observation
        observation.calls_elsewhere = interception.calls_elsewhere
        records = recorder.finish()
        if not any(record.layers for record in records) and (recorder.missing or not recorder.calls):
            raise ObservationError(why_nothing(model, interception.calls_elsewhere, recorder.missing))
        if strict and recorder.missing:
            raise ObservationError(why_incomplete(model, recorder.missing))
        records = tuple(_with_before(record, before) for record in records)
        named = _with_tokens(records, model, heard, tokens, keep, interception.image_grids)
        observation.records, observation.fallback_reasons = tuple(named.values()), recorder.fallback_reasons
        finished = [recorder.with_shared(index, record) for index, record in named.items()]
        observation.records = tuple(record for record, _ in finished)
        if refusals := [one for _, some in finished for one in some]:
            raise refusals[0]  # by now everything else is in the records


def _with_tokens(
    records: Sequence[Record],
    model: nn.Module,
    heard: Heard | None,
    tokens: Named | None,
    keep: Keep,
    image_grids: Collection[tuple[int, int]],
) -> dict[int, Record]:
    """Return the records that have layers, by the number of their pass, with the model's name and their tokens."""
    name = str(getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__)
    seen = {}
    for index, record in enumerate(records):
        if not record.layers:
            continue  # every pass was discarded
        words = {} if set(record.streams) <= {"text", "target"} else patch_tokens(model, record, image_grids)
        called = {} if heard is None else heard.tokens(index, record)
        words |= {stream: tuple(tuple(token for _, token in one) for one in many) for stream, many in called.items()}
        words |= {} if tokens is None else _agreed(given_tokens(tokens, record), called, tokens)
        notes = {"keep": keep, **record.notes}
        unnamed = {} if heard is None else heard.unnamed(index)
        if unnamed := {stream: reason for stream, reason in unnamed.items() if stream not in words}:
            notes["unnamed"] = unnamed
        seen[index] = Record(record.layers, words, name, notes, record.missing)
    return seen


def _before(model: nn.Module, keep: Keep) -> BeforeAttention | None:
    """Return what measures the making of queries and keys, for the values of a lesson; a compiled model has no modules
    that are called one by one.
    """
    return BeforeAttention(model) if keep == "qkv" and not hasattr(model, "_orig_mod") else None


def _with_before(record: Record, before: BeforeAttention | None) -> Record:
    """Return a record whose notes have what was measured before its calls."""
    if before is None:
        return record
    return dataclasses.replace(record, notes={**record.notes, "before": before.notes([one.name for one in record])})


def read_attention(q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto", **asked: Any) -> WatchedCall:  # noqa: ARG001
    """Return a call of regard.attention as a watched call."""
    q, k, v = q.detach(), k.detach(), v.detach()
    is_bound = isinstance(asked.get("mask"), BoundMask)
    if are_sharded(q, k, v):
        return CallFromShards.of(read(q, k, v, complete(_without_dropout(asked))), is_bound=is_bound)
    options = complete(_without_dropout(asked))
    if q.is_nested or k.is_nested or v.is_nested:  # as one packed text
        packing = Packing.of(q, k, v).rotated(options["rotary"])
        q, k, v, options = packing.q, packing.k, packing.v, packing.asked(options)
    problem = Problem.of(q, k, v, **options)
    with without_autocast(q.device):  # a score's projections are computed without it, as in the call
        return CallFromQK(problem, v=problem.v, is_bound=is_bound)


def _read_local(q: Tensor, k: Tensor, v: Tensor, *, shards: SequenceShards, **asked: Any) -> WatchedCall:
    """Return a call inside sequence_parallel as a watched call over all ranks."""
    asked.pop("backend", None)
    options = complete(_without_dropout(asked))
    return CallFromShards.of(call_over_shards(shards, q.detach(), k.detach(), v.detach(), options), is_bound=False)


def _without_dropout(asked: dict[str, Any]) -> Options:
    """Weights are recorded before dropout, and a second seed would advance the generator of the model's call."""
    return cast(Options, asked | {"return_weights": False, "return_lse": False, "dropout": 0.0, "generator": None})


_READERS: Mapping[Callable[..., Any], Reader] = {attention: read_attention, attend_local: _read_local}
