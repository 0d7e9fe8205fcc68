"""The heads of a record as data for the page of a lesson: q, k and v of a layer, and what makes weights of them.

    p_ij = exp(cap(scale · q_i·k_j) + bias_ij) / Σ_j' … where visible,    z_i = Σ_j p_ij v_j

Numbers are in the types of the record, except that 16 bits become 32, which changes none of them: the page computes
with what the record has, in float64, and compares its weights with the record's own.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, ObservationError
from regard.lessons.lesson import Lesson, lesson_of_head
from regard.lessons.steps import CapturedHead, Worked, work_captured
from regard.lessons.text import Steps
from regard.lessons.text_words import Language, wording
from regard.record.highlight import choose_focus
from regard.record.kept_qk import Kept, KeptFormula
from regard.record.layers import Stream, head_at, in_stream, several_streams, stream_of
from regard.record.names import layer_name, visible
from regard.record.places import Name
from regard.record.records import Layer, Record
from regard.record.tokens import Token
from regard.render.labels import key_labels, query_labels

__all__ = ["LARGEST_LAYER", "LARGEST_OF_ALL", "MOST_TOKENS", "RecordedHeads", "lesson_of_record", "recorded_heads"]

MOST_TOKENS = 256  # of a side: every row of a head stays readable, and every weight of the record is known
LARGEST_OF_ALL = 2_000_000  # characters of all layers; where they have more, the page has the layer that was chosen
LARGEST_LAYER = 8_000_000  # characters of one layer

Array = npt.NDArray[Any]

_UNKNOWN = ["unknown"]
_TABLES = ("sinusoidal", "other")


@dataclass(frozen=True, eq=False)
class RecordedHeads:
    """The heads of some layers for a page, and the one that is looked at first.

    `data` is JSON: "model", "layers", "streams" (the tokens), "positions", "left_out", and "start", the state of the
    step: `layer` (an index into "layers"), `head`, `query` and `key`. Each layer has its numbers as one deflated blob
    in base64, described by "arrays": name, type ("f4", "f8" or "u1") and count of each, in planes of bytes.
    `steps` has the chosen row as text.
    """

    data: Mapping[str, Any]
    steps: Steps

    @property
    def start(self) -> Mapping[str, int]:
        """The layer, head, query and key that are looked at first."""
        start: Mapping[str, int] = self.data["start"]
        return start


def lesson_of_record(
    record: Record,
    *,
    token: Name | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    batch_index: int = 0,
    stream: Stream | None = None,
    lang: Language = "en",
) -> Lesson:
    """Return a lesson that opens with a head of a record.

    Raises:
        InputError: There is no such token, layer, head or sequence, the text has more than 256 tokens, or the weights
            of the layer are no softmax of products of queries and keys.
        ObservationError: The record keeps no queries and keys, or its tokens are not known.
    """
    heads = recorded_heads(
        record, token=token, layer=layer, head=head, batch_index=batch_index, stream=stream, lang=lang
    )
    return lesson_of_head(heads.steps, {"real": heads.data}, **heads.start)


def recorded_heads(
    record: Record,
    *,
    token: Name | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    batch_index: int = 0,
    stream: Stream | None = None,
    lang: Language = "en",
) -> RecordedHeads:
    """Return the heads of a record for a page: those of all layers up to 2 MB, else of the chosen layer.

    `token`, `layer`, `head`, `batch_index` and `stream` are those of `choose_focus`.

    Raises:
        InputError, ObservationError: As `lesson_of_record`.
    """
    _check_kept(record)
    index, head, query, key = _choice(record, token, layer, head, batch_index, stream)
    chosen = record.layers[index]
    if (refusal := _refusal(chosen, batch_index)) is not None:
        raise InputError(f"{layer_name(record, index)} cannot be shown as a lesson: {refusal}")
    packed = _packed(record, index, batch_index)
    streams: dict[str, Any] = {}
    layers = []
    for number, (about, blob) in packed.items():
        names = _tokens(record, record.layers[number], batch_index, streams)
        layers.append({**about, "tokens": names, "blob": blob})
    refusals = {
        number: _refusal(layer, batch_index) for number, layer in enumerate(record.layers) if number not in packed
    }
    data = {
        "model": visible(record.model) if record.model else "",
        "layers": layers,
        "streams": streams,
        "positions": _positions(record),
        "left_out": [[layer_name(record, number), why] for number, why in refusals.items() if why is not None],
        "too_large": sum(why is None for why in refusals.values()),
        "start": {"layer": list(packed).index(index), "head": head, "query": query, "key": key},
    }
    return RecordedHeads(data, _steps(record, chosen, batch_index, head, query, lang))


def _check_kept(record: Record) -> None:
    if not record.layers:
        raise ObservationError("the record holds no attention layer, so there is none for a lesson")
    if all(layer.qk is None for layer in record.layers):
        raise ObservationError(
            "a lesson of a real head needs its queries, keys and values, and this record keeps none: watch with "
            'keep="qkv", as in regard.watch(model, keep="qkv") or regard look TEXT --keep qkv --out it.atlas'
        )


def _choice(
    record: Record,
    token: Name | None,
    layer: int | str | None,
    head: int | None,
    batch_index: int,
    stream: Stream | None,
) -> tuple[int, int, int, int]:
    """Return the index of the layer, the head, the query and the key that are looked at first, as `regard look` chooses
    them; of a word of several tokens, the first, as `regard steps` does, and the key that it gives the largest weight.
    """
    if not record.tokens:
        return _unnamed_choice(record, token, layer, head, batch_index, stream)
    focus = choose_focus(record, token=token, layer=layer, head=head, batch_index=batch_index, stream=stream)
    look = focus.looks[0]
    index = look.layer % len(record.layers)
    rows, columns = focus.queries[focus.word].pieces, focus.keys[look.target].pieces
    kept = record.layers[index].qk
    if kept is None:
        raise ObservationError(
            f'{layer_name(record, index)} keeps no queries and keys: watch it too, with keep="qkv", or name another '
            "`layer`"
        )
    if max(record.layers[index].queries, record.layers[index].keys) > MOST_TOKENS:
        return index, look.head, rows[0], columns[0]  # which is refused
    weights = _weights(record.layers[index], kept, focus.batch_index)[look.head, rows[0], list(columns)]
    return index, look.head, rows[0], columns[int(weights.argmax())]


def _unnamed_choice(
    record: Record,
    token: Name | None,
    layer: int | str | None,
    head: int | None,
    batch_index: int,
    stream: Stream | None,
) -> tuple[int, int, int, int]:
    """Return the same of a record whose tokens are not known: the positions have numbers alone."""
    chosen = _first_layer(record, stream) if layer is None else record.layer(layer, stream)
    index = next(at for at, other in enumerate(record.layers) if other is chosen)
    head = head_at(chosen, chosen.recorded_heads[0] if head is None else head)
    if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
        raise ObservationError(
            f"the tokens of this record are not known, so {token!r} names none: watch with tokens= or tokenizer=, or "
            "give the position, counted from 0"
        )
    query = chosen.queries - 1 if token is None else token
    if not -chosen.queries <= query < chosen.queries:
        raise InputError(f"`token` must be a position from 0 to {chosen.queries - 1}, got {token}")
    query %= chosen.queries
    return index, head, query, int(chosen.top_keys[batch_index, head, query, 0])


def _first_layer(record: Record, stream: Stream | None) -> Layer:
    """Return the first layer of a stream; by default of cross-attention, if there is any, as `choose_focus` does."""
    layers = in_stream(record.layers, stream)
    crossed = [layer for layer in layers if layer.kind == "cross"] if stream is None else []
    return [*crossed, *layers][0]


def _refusal(layer: Layer, batch_index: int) -> str | None:
    """Return why a page cannot show a layer, or None if it can."""
    kept = layer.qk
    if kept is None:
        return 'it keeps no queries and keys (watch with keep="qkv")'
    longest = max(layer.queries, layer.keys)
    if longest > MOST_TOKENS:
        return (
            f"a page shows every row of a head, of at most {MOST_TOKENS} tokens, and this text has {longest:,}: record "
            f"a part of it, as `regard look TEXT --tokens 1:{MOST_TOKENS} --keep qkv --out part.atlas` does, and make "
            'the page of that: regard.load_atlas("part.atlas").lesson().to_html("page.html")'
        )
    formula = kept.formula(batch_index)
    if not formula.is_product:
        return (
            f"its scores are those of {formula.score}, no products of queries and keys; regard.explain describes such "
            "a call"
        )
    if formula.normalizer != "Softmax":
        return f"its weights are made by {formula.normalizer}, and the page computes a softmax"
    return "its weights are multiplied by a factor after the softmax" if formula.has_factor else None


def _packed(record: Record, chosen: int, batch_index: int) -> dict[int, tuple[dict[str, Any], str]]:
    """Return the layers of a page by their index: all that can be shown, if they are small enough, else the chosen."""
    first = _pack(record, chosen, batch_index)
    size = len(first[1])
    if size > LARGEST_LAYER:
        raise InputError(
            f"a page holds at most {LARGEST_LAYER:,} bytes of a layer, and {layer_name(record, chosen)} has {size:,}: "
            "watch a shorter text"
        )
    packed = {}
    for index, layer in enumerate(record.layers):
        if index == chosen:
            packed[index] = first
        elif _refusal(layer, batch_index) is None:
            packed[index] = _pack(record, index, batch_index)
            size += len(packed[index][1])
        if size > LARGEST_OF_ALL:
            return {chosen: first}
    return packed


def _pack(record: Record, index: int, batch_index: int) -> tuple[dict[str, Any], str]:
    """Return what describes a layer, and its numbers."""
    layer = record.layers[index]
    kept = layer.qk
    assert kept is not None  # `_refusal` was asked
    formula = kept.formula(batch_index)
    arrays = {name: _numbers(kept, name, batch_index) for name in ("q", "k", "v") if name in kept.arrays}
    if formula.bias is not None:
        exact = formula.bias.astype(np.float32)
        arrays["bias"] = exact if bool((exact == formula.bias).all()) else formula.bias
    if not formula.visible.all():
        arrays["visible"] = formula.visible.astype(np.uint8)
    arrays["weights"] = _weights(layer, kept, batch_index)
    stream, has_streams = stream_of(layer), several_streams(record.layers)
    about = {
        "name": visible(layer.name) if layer.name else "",
        "number": record.number(layer),
        "stream": " → ".join([stream] if isinstance(stream, str) else stream) if has_streams else "",
        "kind": layer.kind,
        "heads": list(layer.recorded_heads),
        "sizes": {name: list(array.shape) for name, array in arrays.items()},
        "arrays": [[name, array.dtype.str[1:], array.size] for name, array in arrays.items()],
        "stored": "bfloat16" if kept.brain else str(kept.arrays["q"].dtype),
        **_numbers_of(formula),
        "before": _before_layer(record, layer),
    }
    raw = b"".join(_planes(array) for array in arrays.values())
    return about, base64.b64encode(zlib.compress(raw, 9)).decode()


def _numbers_of(formula: KeptFormula) -> dict[str, Any]:
    scale = formula.scale.tolist()
    return {
        "scale": scale[0] if len(set(scale)) == 1 else scale,
        "softcap": formula.softcap,
        "sinks": None if formula.sink is None else formula.sink.tolist(),
    }


def _numbers(kept: Kept, name: str, batch_index: int) -> Array:
    """Return q, k or v of one sequence (heads, positions, width), in 32 bits or more."""
    array = np.asarray(kept.arrays[name][batch_index])
    if kept.brain:  # the upper half of float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _weights(layer: Layer, kept: Kept, batch_index: int) -> Array:
    """Return the record's own weights (heads, queries, keys)."""
    if layer.exact is not None:
        return np.asarray(layer.exact[batch_index])
    whole = slice(0, layer.queries), slice(0, layer.keys)
    return np.stack([kept.tile(batch_index, head, *whole) for head in range(layer.heads)])


def _planes(array: Array) -> bytes:
    """Return all first bytes, then all second bytes, …, of the numbers, little end first: alike bytes compress well."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _tokens(record: Record, layer: Layer, batch_index: int, streams: dict[str, Any]) -> list[str]:
    """Return the names of the tokens of queries and keys among `streams`, to which they are added."""
    names = []
    sides = (query_labels(record, layer, batch_index), key_labels(record, layer, batch_index))
    for side, tokens in zip((layer.query_tokens, layer.key_tokens), sides, strict=True):
        name = f"{side} {len(tokens)}"
        streams[name] = {
            "texts": [token.text for token in tokens],
            "special": [at for at, token in enumerate(tokens) if token.special],
        }
        names.append(name)
    return names


def _noted(record: Record, name: str) -> Mapping[Any, Any] | None:
    """Return what is noted of the steps before attention; None in records that do not say, or not as regard does."""
    before = record.notes.get("before")
    noted = before.get(name) if isinstance(before, Mapping) else None
    return noted if isinstance(noted, Mapping) else None


def _positions(record: Record) -> dict[str, str] | None:
    """Return the tables of positions that the model looked up, by the names of their modules."""
    noted = _noted(record, "positions")
    if noted is None or not all(isinstance(name, str) and kind in _TABLES for name, kind in noted.items()):
        return None
    return {visible(name): kind for name, kind in noted.items()}


def _before_layer(record: Record, layer: Layer) -> dict[str, Any] | None:
    """Return what was measured of a layer."""
    noted = (_noted(record, "layers") or {}).get(layer.name)
    if not isinstance(noted, Mapping):
        return None
    known: dict[str, Any] = {
        name: visible(noted[name]) for name in ("input", "bias_table", "class") if isinstance(noted.get(name), str)
    }
    for side in ("query", "key", "value"):
        if isinstance(made := noted.get(side), Mapping) and isinstance(made.get("bias"), bool):
            known[side] = {"bias": made["bias"]}
            if "then" in made and (changes := _changes(made["then"])) != _UNKNOWN:
                known[side]["then"] = changes
    return known or None


def _changes(then: Any) -> list[Any] | None:
    """Return what followed a projection; None where it became something else, `_UNKNOWN` where the note is no note of
    regard's.
    """
    if then is None:
        return None
    changes: list[Any] = []
    for change in then if isinstance(then, list) else [then]:
        match change:
            case "rotated" | "turned" | "scaled":
                changes.append(change)
            case ["norm", str(name)]:
                changes.append(["norm", visible(name)])
            case _:
                return _UNKNOWN
    return changes


def _steps(record: Record, layer: Layer, batch_index: int, head: int, query: int, lang: Language) -> Steps:
    kept = layer.qk
    assert kept is not None  # `_refusal` was asked
    captured = _captured(record, layer, kept, batch_index, head)
    worked = work_captured(replace(captured, scale=float(kept.formula(batch_index).scale[query])))
    note = "" if kept.has_values else wording(lang).no_values
    return Steps(
        _without_values(worked) if not kept.has_values else worked,
        query,
        lang,
        model=record.model or layer.name,
        layer=record.number(layer),
        head=head,
        note=note,
    )


def _without_values(worked: Worked) -> Worked:
    """Return the steps up to the weights: values and outputs of no width."""
    return replace(worked, values=worked.values[:, :0], output=worked.output[:, :0])


def _captured(record: Record, layer: Layer, kept: Kept, batch_index: int, head: int) -> CapturedHead:
    formula = kept.formula(batch_index)

    def of_head(array: Array) -> Array:
        return np.asarray(array[head * len(array) // layer.heads])

    q, k = (_numbers(kept, name, batch_index) for name in "qk")
    v = _numbers(kept, "v", batch_index) if kept.has_values else np.zeros((1, layer.keys, 1))
    queries: Sequence[Token] = query_labels(record, layer, batch_index)
    keys = key_labels(record, layer, batch_index)
    crossed = layer.kind == "cross" or layer.queries > layer.keys
    return CapturedHead(
        tokens=tuple(keys),
        queries=of_head(q),
        keys=of_head(k),
        values=of_head(v),
        visible=of_head(formula.visible),
        bias=None if formula.bias is None else of_head(formula.bias),
        softcap=formula.softcap,
        sink=None if formula.sink is None else float(formula.sink[head]),
        query_tokens=tuple(queries) if crossed else None,
    )
