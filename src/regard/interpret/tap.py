"""tap(): the rows of a few heads while a model generates, at almost no cost."""

import contextlib
from collections.abc import Callable
from typing import Any, Self

from torch import nn

from regard.capture.attention_row import AttentionRow
from regard.capture.intercept.tap_mode import TapMode
from regard.capture.intercept.watching_mode import refuse_compiled, refusing_compiled_code
from regard.capture.layers import Stream
from regard.capture.selection import Heads, HeadsChosen, Keys, KeySpans, Queries, QueriesChosen
from regard.capture.tap_steps import Steps
from regard.errors import InputError, ObservationError
from regard.functional import attention
from regard.interpret.unsupported import why_nothing
from regard.interpret.watch import read_attention
from regard.problem import DEFAULT_MAX_BYTES
from regard.tensors import human_bytes

__all__ = ["Tap", "tap"]


class Tap:
    """An open tap: `tap.rows` after or during generation, `tap.heads` and `tap.spans` name the dimensions of weights.

    `regard.tap` makes it; it is entered once.
    """

    def __init__(
        self,
        model: nn.Module,
        heads: HeadsChosen,
        keys: KeySpans | None,
        queries: QueriesChosen,
        stream: Stream | None,
        on_row: Callable[[AttentionRow], object] | None,
        max_bytes: int,
    ) -> None:
        self._model, self._on_row = model, on_row
        self._left = self._max_bytes = max_bytes
        self._rows: list[AttentionRow] = []
        self._steps = Steps(queries, keys, self._take, source=stream == "source")
        self._mode = TapMode(model, heads, stream, self._steps, {attention: read_attention})
        self._spans = () if keys is None else keys.names
        self._stack: Any = None
        self._state = "new"

    @property
    def heads(self) -> tuple[tuple[int | str, int], ...]:
        """Layer and head of each row of weights; known after the first step."""
        return self._mode.heads

    @property
    def spans(self) -> tuple[str, ...]:
        """The names of `keys=`; none if weights are to single keys."""
        return self._spans

    @property
    def calls_elsewhere(self) -> int:
        """Number of calls of the model from other threads, which have no rows."""
        return self._mode.calls_elsewhere

    @property
    def rows(self) -> tuple[AttentionRow, ...]:
        """The rows so far, in order.

        Raises:
            InputError: `on_row` was given, which receives them instead.
        """
        if self._on_row is not None:
            raise InputError("`rows` are not kept if `on_row` receives them: append them to a list there")
        return tuple(self._rows)

    def __enter__(self) -> Self:
        """Begin to tap the calls of this thread."""
        if self._state != "new":
            raise InputError(
                "this tap has been entered before, and each is good for one `with` block: call regard.tap(model, ...) "
                "again for another"
            )
        self._state = "open"
        with contextlib.ExitStack() as stack:
            stack.enter_context(refusing_compiled_code())
            stack.enter_context(self._mode)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Restore everything, and deliver the rows that were still held."""
        self._state = "closed"
        try:
            self._stack.__exit__(kind, error, trace)
            if kind is None:
                self._steps.finish()
        finally:
            self._steps.forget()
        if kind is None and not self._steps.calls:
            raise ObservationError(why_nothing(self._model, self._mode.calls_elsewhere))

    def _take(self, row: AttentionRow) -> None:
        if self._on_row is not None:
            self._on_row(row)
            return
        self._left -= row.weights.nbytes
        if self._left < 0:
            raise ObservationError(
                f"the rows need more than the limit of {human_bytes(self._max_bytes)}: read them with `on_row`, name "
                "spans with `keys`, choose fewer heads, or raise `max_bytes`"
            )
        self._rows.append(row)


def tap(
    model: nn.Module,
    *,
    heads: Heads,
    keys: Keys | None = None,
    queries: Queries = "last",
    stream: Stream | None = None,
    on_row: Callable[[AttentionRow], object] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Tap:
    """Read the weights of a few heads inside the `with` block while `model` generates; its output is bitwise the same.

    The model's kernels keep running. A row is computed from the q and k of the call, for the chosen heads only.

    Args:
        model: Any module; its `generate`, or a loop that calls it.
        heads: A list of heads: "17.3", (17, 3), 17 for all heads of a layer, or an object with `heads` of such pairs.
            A layer may also be named by its module, ("model.layers.17.self_attn", 3).
        keys: Named spans of key positions over which weights are summed: {"document 1": (0, 120), "image": range(5,
            581), "commas": [3, 9], "answer": (300, None)}. By default the weight of every key.
        queries: "last", the last position of the prompt and every later one; "new", every position that the model
            runs on; or positions, a list or a range.
        stream: Of a model with several streams: "source", "target", "text", "image", or ("target", "source") for
            cross-attention.
        on_row: Called with each row in the thread that generates, at the end of the model's call. What it raises ends
            the generation. Without it, `tap.rows` has all rows.
        max_bytes: Limit of bytes for `tap.rows`.

    Raises:
        InputError: A layer or head does not exist, or an argument has another form.
        ObservationError: The model is compiled, a chosen layer did not attend or cannot be read, or no row was seen.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be an nn.Module, got {type(model).__name__}")
    if on_row is not None and not callable(on_row):
        raise InputError(f"`on_row` must be a function of a row, got {on_row!r}")
    refuse_compiled(model)
    spans = None if keys is None else KeySpans.of(keys)
    return Tap(model, HeadsChosen.of(heads), spans, QueriesChosen.of(queries), stream, on_row, max_bytes)
