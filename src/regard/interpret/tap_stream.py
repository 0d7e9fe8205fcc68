"""Tokens and their rows from a generation that runs in one worker thread, in the order of the tokens.

The queue between the threads is bounded, so that the generation waits for a slow reader. A reader that stops ends the
generation at its next token; what the generation raises is raised in the reader.
"""

import contextlib
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InputError, ObservationError
from regard.observe.attention_row import AttentionRow

__all__ = ["Pairs", "Token", "generation", "read_pairs"]

Token = int | Tensor  # of one text, or (batch,)
_WAITING = 8  # pairs that the generation may be ahead of its reader


class _StopReadingError(BaseException):
    """Ends a generation whose reader has stopped; no `except Exception` of a model holds it up."""


@dataclass(frozen=True, eq=False)
class _Failed:
    error: BaseException


class Pairs:
    """Puts tokens and rows together, whichever come first, and passes them to the reader's thread.

    Once the position of the first row is known, rows at other positions are left out, such as those in the middle of a
    prompt that is read in chunks.
    """

    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue(_WAITING)
        self._position: int | None = None  # of the next row
        self.stopped = threading.Event()
        self._tokens: deque[Token] = deque()
        self._rows: deque[AttentionRow] = deque()

    def add_token(self, token: Tensor) -> None:
        """Add the next token of each text."""
        self._tokens.append(int(token) if token.numel() == 1 else token)
        self._pass_on()

    def begin(self, length: int) -> None:
        """Note that the prompt has this many positions: its last one predicts the first token."""
        self._position = length - 1
        self._rows.clear()  # those of an encoder, which has run before

    def add_row(self, row: AttentionRow) -> None:
        """Add the next row, if a token is predicted from its position."""
        if self._position is not None:
            if row.position != self._position:
                return
            self._position += 1
        self._rows.append(row)
        self._pass_on()

    def finish(self) -> None:
        """Check at the end of a text that each token had its row.

        Raises:
            ObservationError: Tokens are left.
        """
        if self._tokens:
            raise ObservationError(
                f"{len(self._tokens)} tokens have no row: `stream` pairs a token with the row of the position before "
                "it, and the tapped heads had rows of other positions only; read them with `on_row` or `tap.rows`"
            )

    def _pass_on(self) -> None:
        if self.stopped.is_set():
            raise _StopReadingError
        while self._tokens and self._rows:
            self.queue.put((self._tokens.popleft(), self._rows.popleft()))
            if self.stopped.is_set():
                raise _StopReadingError


class _Streamer:
    """What transformers' `generate` hands its tokens to: first the prompt, then each step's."""

    def __init__(self, pairs: Pairs, embedded: int) -> None:
        self._pairs, self._embedded, self._begun = pairs, embedded, False

    def put(self, tokens: Tensor) -> None:
        """Add new tokens: (batch,), or of an assistant (1, several)."""
        if not self._begun:
            self._begun = True
            self._pairs.begin(tokens.shape[-1] or self._embedded)
            return
        for one in tokens.unbind(1) if tokens.ndim == 2 else [tokens]:
            self._pairs.add_token(one)

    def end(self) -> None:
        """Do nothing: the worker ends by itself."""


def generation(model: nn.Module, inputs: Any, pairs: Pairs, options: dict[str, Any]) -> Callable[[], object]:
    """Return the function that runs the model's own generation and adds its tokens to `pairs`.

    Raises:
        InputError: The model does not generate, beams are searched, the model runs twice for each token (guidance), or
            a `streamer` is given.
    """
    given = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
    if options.get("num_beams", 1) != 1:
        raise InputError("`stream` yields tokens that are final, and those of beams are not: use `on_row` with them")
    if "streamer" in options or "streamer" in given:
        raise InputError("`stream` is itself what receives the tokens: leave out `streamer`")
    settings = given | options
    defaults = (settings.get("generation_config"), getattr(model, "generation_config", None))
    scales = [settings.get("guidance_scale"), *(getattr(one, "guidance_scale", None) for one in defaults)]
    if next((one for one in scales if one is not None), 1) != 1:
        raise InputError("with `guidance_scale` a token comes from two rows, and `stream` has one: use `on_row`")
    if callable(own := getattr(model, "stream", None)):
        texts = inputs["input_ids"] if isinstance(inputs, Mapping) else inputs
        text = texts[0] if isinstance(texts, Tensor) and texts.ndim == 2 and len(texts) == 1 else texts

        def run() -> None:
            for token in own(text, **options):
                pairs.add_token(torch.tensor(token, device="cpu"))

        return run
    if not callable(generate := getattr(model, "generate", None)):
        raise InputError(f"`stream` runs the model's generate, and {type(model).__name__} has none: use `on_row`")
    embedded = getattr(settings.get("inputs_embeds"), "shape", (0, 0))[1]
    return lambda: generate(**given, **options, streamer=_Streamer(pairs, embedded))


def read_pairs(run: Callable[[], object], pairs: Pairs, finish: Callable[[], None]) -> Iterator[Any]:
    """Run a generation in a worker thread, and yield its tokens with their rows; `finish` is called at its end."""
    context, modes = contextvars.copy_context(), _modes_of_this_thread()

    def work() -> None:
        last: Any = None
        try:
            with modes():
                context.run(run)
                finish()
                pairs.finish()
        except _StopReadingError:
            pass
        except BaseException as error:
            last = _Failed(error)
        while not pairs.stopped.is_set():
            with contextlib.suppress(queue.Full):
                pairs.queue.put(last, timeout=0.1)
                return

    worker = threading.Thread(target=work, name="regard-tap", daemon=True)
    worker.start()
    try:
        while (found := pairs.queue.get()) is not None:
            if isinstance(found, _Failed):
                raise found.error
            yield found
    finally:
        pairs.stopped.set()
        with contextlib.suppress(queue.Empty):
            while True:
                pairs.queue.get_nowait()  # so that the worker does not wait for room
        worker.join()


def _modes_of_this_thread() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return what enters PyTorch's modes of this thread in another one."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    kinds = {kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)}
    casts = {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}

    @contextlib.contextmanager
    def modes() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.enter_context(torch.inference_mode(inference))
            for kind, dtype in casts.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            yield

    return modes
