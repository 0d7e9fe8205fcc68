"""tap(): the rows of a few heads while a model generates, at almost no cost."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, Self

from torch import nn

from regard.errors import InputError, ObservationError
from regard.functional import attention
from regard.interpret.tap_stream import Pairs, Token, generation, read_pairs
from regard.interpret.unsupported import why_nothing
from regard.interpret.watch import read_attention
from regard.observe.attention_row import AttentionRow
from regard.observe.intercept.compiled_code import refuse_compiled, refuse_packages, refusing_compiled_code
from regard.observe.intercept.tap_mode import TapMode
from regard.observe.selection import Heads, HeadsChosen, Keys, KeySpans, Queries, QueriesChosen
from regard.observe.streams import reads_two_texts
from regard.observe.tap_steps import TapSteps
from regard.problem import DEFAULT_MAX_BYTES
from regard.record.layers import Stream
from regard.tensors import check_max_bytes, human_bytes

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
        check_max_bytes(max_bytes)
        self._given, self._on_row = model, on_row
        self._model = model = getattr(model, "_orig_mod", model)  # of torch.compile(model)
        self._left = self._max_bytes = max_bytes
        self._rows: list[AttentionRow] = []
        names = ("input_ids",) if stream == "source" else ("decoder_input_ids", "input_ids")
        names = names[:1] if reads_two_texts(model) else names
        self._steps = TapSteps(queries, keys, self._take, names=names)
        self._mode = TapMode(model, heads, stream, self._steps, {attention: read_attention})
        self._spans = () if keys is None else keys.names
        self._queries, self._layers = queries, heads.layers
        self._stack: Any = None
        self._state = "new"
        self._pairs: Pairs | None = None
        self._reading: Callable[[], Generator[Any, None, None] | None] = lambda: None

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
        """The rows so far, in order; those that `stream` yields are not kept.

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
        if (reading := self._reading()) is not None:
            reading.close()
        self._state = "closed"
        try:
            self._stack.__exit__(kind, error, trace)
            if kind is None:
                self._steps.finish()
        finally:
            self._steps.forget()
        if kind is None and not self._steps.calls:
            raise ObservationError(
                f"{why_nothing(self._model, self._mode.calls_elsewhere)}. A tap sees the layers of its heads alone "
                f"({', '.join(map(str, self._layers))}): regard.watch shows which layers of a model attend"
            )

    def stream(self, inputs: Any, **generate_kwargs: Any) -> Generator[tuple[Token, AttentionRow], None, None]:
        """Run the model's own generation in a worker thread, and yield each new token with its row.

        The row is that of the query which the token was predicted from, the last one before it. It is not kept in
        `rows`. `break` ends the generation at its next token; what the generation raises is raised here.

        Args:
            inputs: Token ids, or a dictionary of the arguments of `generate` such as a tokenizer returns.
            generate_kwargs: Further arguments of the model's `generate` (of regard's own models, of `stream`).

        Yields:
            The token, an int for one text and a tensor (batch,) for several, and its row.

        Raises:
            InputError: The tap is not open, another stream is read, `on_row`, `queries` or `streamer` was given, beams
                are searched, guidance is used, or the model does not generate.
            ObservationError: The tapped heads had no row for a token.
        """
        if self._state != "open":
            raise InputError("`stream` needs an open tap: call it inside `with regard.tap(...) as tap:`")
        if self._on_row is not None or self._queries.rule != "last":
            raise InputError("`stream` pairs each token with one row: leave out `on_row` and `queries` of the tap")
        pairs = Pairs()
        run = generation(self._given, inputs, pairs, generate_kwargs)

        def work() -> object:
            self._mode.listen(threading.get_ident())
            return run()

        reading = self._read(work, pairs, threading.get_ident())
        self._reading = weakref.ref(reading)  # so that it ends as soon as its reader drops it
        return reading

    def _read(self, work: Callable[[], object], pairs: Pairs, thread: int) -> Generator[Any, None, None]:
        if self._pairs is not None:
            raise InputError("one stream is read at a time: read the other to its end, or close it")
        self._pairs = pairs
        try:
            yield from read_pairs(work, pairs, self._steps.finish)
        finally:
            self._mode.listen(thread)
            self._steps.forget()
            self._pairs = None

    def _take(self, row: AttentionRow) -> None:
        if self._pairs is not None:
            self._pairs.add_row(row)
            return
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

    The model's kernels keep running. A row is computed from the q and k of the call, for the chosen heads only. A
    compiled model is traced once more inside the block, and its unchanged graphs are listened to as they run.

    Args:
        model: Any module, compiled as a whole or not; its `generate`, or a loop that calls it.
        heads: A list of heads: "17.3", (17, 3), 17 for all heads of a layer, or an object with `heads` of such pairs.
            A layer may also be named by its module, ("model.layers.17.self_attn", 3).
        keys: Named spans of key positions over which weights are summed: {"document 1": (0, 120), "image": range(5,
            581), "commas": [3, 9], "answer": (300, None)}. By default the weight of every key.
        queries: "last", the last position of the prompt and every later one; "new", every position that the model
            runs on; or positions, a list or a range.
        stream: Of a model with several streams: "source", "target", "text", "image", or ("target", "source") for
            cross-attention.
        on_row: Called with each row in the thread that generates, at the end of the model's call. What it raises ends
            the generation. Without it, `tap.rows` has all rows that `stream` does not yield.
        max_bytes: Limit of bytes for `tap.rows`.

    Raises:
        InputError: A layer or head does not exist, or an argument has another form.
        ObservationError: A part of the model is compiled, its compiled code reports no kernels, a chosen layer did not
            attend or cannot be read, or no row was seen.
    """
    refuse_packages(model, to="tap")
    if not isinstance(model, nn.Module):
        raise InputError(f"`model` must be an nn.Module, got {type(model).__name__}")
    if on_row is not None and not callable(on_row):
        raise InputError(f"`on_row` must be a function of a row, got {on_row!r}")
    refuse_compiled(getattr(model, "_orig_mod", model), whole=False, to="tap")
    spans = None if keys is None else KeySpans.of(keys)
    stream = getattr(heads, "stream", None) if stream is None else stream
    return Tap(model, HeadsChosen.of(heads), spans, QueriesChosen.of(queries), stream, on_row, max_bytes)
