"""watch(): see every attention call of a model, without changing a line of it or a bit of its output."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

from torch import Tensor, nn

from regard.capture.call_site import Keep, Seen
from regard.capture.intercept import Interception
from regard.capture.recorder import OnLayerEnd, Recorder
from regard.capture.records import Record
from regard.capture.requested_statistics import Asked
from regard.capture.statistics import Statistic
from regard.capture.weights_from_qk import Computed
from regard.errors import InputError, ObservationError
from regard.functional import attention
from regard.interpret.input_ids_hook import Given, Heard, Named, check_tokens, given_tokens
from regard.interpret.observation import Observation
from regard.interpret.unsupported import refuse_compiled, refuse_missing, refusing_compiled_code, why_nothing
from regard.interpret.vision_transformers import patch_tokens
from regard.problem import DEFAULT_MAX_BYTES, Problem

__all__ = ["read_attention", "watch"]

_Asked = ParamSpec("_Asked")


class _Watch(contextlib.AbstractContextManager[Observation]):
    """One watch, entered once."""

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
        self._observation.failed = True  # also where the block went well, and what comes at its end does not
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
    max_bytes: int = DEFAULT_MAX_BYTES,
    on_layer_end: OnLayerEnd | None = None,
    strict: bool = True,
) -> Iterator[Observation]:
    """See every attention call of `model` inside the `with` block; its output stays the same to the bit.

    Sees `F.scaled_dot_product_attention`, `nn.MultiheadAttention` and `nn.TransformerEncoder` with their fast paths,
    `regard.attention`, and attention written out by hand: a softmax over products of queries and keys that multiplies
    values. Weights are those before dropout, and no random number is drawn. Rows are folded block by block: no n × n
    matrix is kept unless asked for.

    Within `regard.use_backend("numba")` calls on CPU are folded by compiled loops, in about three quarters of the time
    (this needs `regard[numba]`); within `regard.use_backend("triton")` calls on CUDA by fused kernels, which have not
    been run on a GPU yet. Where one cannot, PyTorch folds as ever, and `seen.fallback_reasons` has the reason by layer.

    A watch sees the thread that opened it. Calls of the model from other threads run as ever, unseen, and are counted
    in `seen.calls_elsewhere`; code that is compiled there is not touched.

    Args:
        model: Any module; a compiled one is refused.
        keep: "maps" keeps pooled heat maps (exact up to 512 tokens), the 8 strongest keys of each query, entropy, and
            what each key received. "weights" keeps every weight too, within `max_bytes`. "qk" keeps queries and keys
            instead, (heads + kv heads) · width numbers a position, from which any rectangle of weights is computed
            when it is asked for: `seen.weights(...)`, or regard.capture.matrix_pyramid.Matrix.
        tokenizer: A Hugging Face tokenizer; the `input_ids` that the model is called with are then known as words.
        tokens: The tokens themselves, one for each position of a batch of one; of several streams a list for each that
            is known, `{"source": [...], "target": [...]}`. `seen.streams` has their names and lengths.
        statistics: What else to fold in the same sweep, by name ("distance", "confidence", "sink", "self", "previous",
            "next", "first", "separators", "duplicate_token", "induction", "value_norm", "gradient_x_attention",
            "importance") or by value of regard.capture.statistics; read with `seen.statistic(name, layer=, head=)`.
        layers: The layers that are watched, by the model's own number (in every stream) or by name; all of them unless
            given. The others are not in the record and cost next to nothing.
        max_bytes: Bytes that keep="weights" or "qk" may take.
        strict: Whether attention that ran and could not be seen is an error. With False what was seen is kept, and
            `seen.missing` lists the rest: module, reason, number of calls.
        on_layer_end: Called with the number and the layer as soon as each is finished, for one pass over one text. What
            it returns takes the layer's place in the record; None leaves it.

    Raises:
        InputError: `model` is not a module, `keep` is none of the three, `tokens` are not as many as positions, a
            name or a value of `statistics` is no statistic, or one of `layers` never came.
        ObservationError: The model is compiled, no attention call was seen or one could not be (`strict`), `max_bytes`
            is too small, a cache was reordered by beam search, a statistic needs something that is not known (tokens,
            values, gradients), or keep="qk" meets weights whose q and k are not known, or a score or normalizer that
            is not regard's own.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be an nn.Module, got {type(model).__name__}")
    if keep not in ("maps", "qk", "weights"):
        raise InputError(f'`keep` must be "maps", "qk" or "weights", got {keep!r}')
    if tokens is not None:
        check_tokens(tokens)
    refuse_compiled(model)
    asked = Asked(keep, statistics, layers=layers, max_bytes=max_bytes)
    heard = Heard(lambda: recorder.passes, tokenizer)
    listener = heard if tokens is None else Given(tokens)
    recorder, observation = (
        Recorder(model, keep, max_bytes, asked=asked, listener=listener, on_layer_end=on_layer_end),
        Observation(),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(refusing_compiled_code())
        interception = stack.enter_context(Interception(model, recorder, {attention: read_attention}))
        if tokenizer is not None or (asked.needs("tokens") and tokens is None):
            interception.hears = heard
        yield observation
    observation.calls_elsewhere = interception.calls_elsewhere
    records = recorder.finish()
    if not any(record.layers for record in records) and (recorder.missing or not recorder.calls):
        raise ObservationError(why_nothing(model, interception.calls_elsewhere, recorder.missing))
    if strict:
        refuse_missing(model, recorder.missing)
    name = str(getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__)
    forwards = []
    for index, record in enumerate(records):
        if not record.layers:
            continue  # all of it was taken back
        words = patch_tokens(model, record) | heard.tokens(tokenizer, index, record)
        words |= {} if tokens is None else given_tokens(tokens, record)
        forwards.append(Record(record.layers, words, name, {"keep": keep, **record.notes}, record.missing))
    observation.forwards, observation.fallback_reasons = tuple(forwards), recorder.fallback_reasons


def read_attention(q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto", **asked: Any) -> Seen:  # noqa: ARG001
    """Read a call of regard.attention itself."""
    # No dropout: weights are those before it, and a second seed would be taken from the generator of the model's call.
    asked = asked | {"return_weights": False, "return_lse": False, "dropout": 0.0, "generator": None}
    problem = Problem.of(q.detach(), k.detach(), v.detach(), **asked)
    return Seen(Computed(problem), problem.k, values=problem.v)
