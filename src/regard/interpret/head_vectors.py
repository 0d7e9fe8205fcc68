"""Capture the q, k and v of one head of a real model, as they enter the formula, and compute its steps from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from regard.errors import InputError, ObservationError
from regard.functional import attention
from regard.interpret.look import look, prepare
from regard.interpret.watch import read_attention
from regard.lessons.steps import CapturedHead, Worked, work_captured
from regard.observe.call_kinds import CallFromQK
from regard.observe.intercept import Interception
from regard.observe.sink import Sink
from regard.observe.watched_call import WatchedCall
from regard.record.places import Name, Place, find_place
from regard.record.tokens import Token

__all__ = ["HeadSteps", "capture_head", "choose", "head_steps", "query_place"]


def choose(
    model: str, text: str, *, layer: int | None = None, head: int | None = None, token: str | None = None
) -> tuple[int, int, str | None]:
    """Return layer, head and token as requested; unspecified ones are chosen as in `regard look`."""
    if layer is not None and head is not None:
        return layer, head, token
    looked = look(text, model=model, token=token, layer=layer, head=head)
    first = looked.highlight.looks[0]
    return first.layer, first.head, token or looked.highlight.queries[looked.highlight.word].text


class _Calls(Sink):
    """The calls themselves, one per layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.seen: list[WatchedCall] = []

    def see(self, call: WatchedCall) -> None:
        """Keep the call without processing it."""
        self.calls += 1
        self.seen.append(call)


def capture_head(model: str, text: str, layer: int, head: int) -> CapturedHead:
    """Run a model on a text and return the vectors that one head computes with.

    Raises:
        InputError: No such layer or head.
        ObservationError: The model computes its weights where q and k cannot be told.
    """
    prepared = prepare(text, model=model)
    sink = _Calls(prepared.loaded.model)
    with Interception(prepared.loaded.model, sink, {attention: read_attention}):
        prepared.run()
    if not -len(sink.seen) <= layer < len(sink.seen):
        raise InputError(f"`layer` must be from 0 to {len(sink.seen) - 1} for {model}, got {layer}")
    seen = sink.seen[layer]
    if not isinstance(seen, CallFromQK) or seen.v is None:
        raise ObservationError(
            f"{model} computes the weights of layer {layer} itself, without a call that shows q, k and v: choose a "
            "model that uses PyTorch's scaled_dot_product_attention"
        )
    problem = seen.problem
    if not 0 <= head < problem.heads:
        raise InputError(f"`head` must be from 0 to {problem.heads - 1} for {model}, got {head}")
    visible, added = problem.visible(), problem.bias
    bias = None if added is None else problem.everything.numbers(added, problem.q.device)
    group = problem.heads // problem.kv_heads
    streams = tuple(prepared.tokens.values())
    sinks = problem.sink
    pairs = (problem.queries, problem.keys)
    crossed = len(streams) > 1
    return CapturedHead(
        tokens=next(one[0] for one in streams if len(one[0]) == problem.keys),
        queries=problem.q[0, head].double().numpy(),
        keys=problem.k[0, head // group].double().numpy(),
        values=seen.v[0, head // group].double().numpy(),
        scale=problem.scale,
        visible=None if visible is None else np.asarray(visible.expand(1, problem.heads, *pairs)[0, head]),
        bias=None if bias is None else bias.expand(1, problem.heads, *pairs)[0, head].double().numpy(),
        softcap=problem.score.softcap,
        sink=None if sinks is None else float(sinks[head]),
        query_tokens=next(one[0] for one in streams if len(one[0]) == problem.queries) if crossed else None,
    )


def query_place(tokens: Sequence[Token], token: Name | None, *, first: int = 0) -> Place:
    """Return the place of a token, by default of the last one that is not special; the first has number `first`."""
    if token is None:
        token = max((row for row, one in enumerate(tokens) if not one.special), default=len(tokens) - 1)
    return find_place(tokens, token, first=first)


WHOLE = 512  # up to this number of keys every row is computed; for longer texts only the chosen row


@dataclass(frozen=True, eq=False)
class HeadSteps:
    """The steps of a head, the row shown, and its token."""

    worked: Worked
    row: int
    token: Place


def head_steps(captured: CapturedHead, token: Name | None = None) -> HeadSteps:
    """Compute the steps of a captured head for one token (see `find_place`; of a word the first), by default the last
    one that is not special.

    For a text of more than 512 tokens only that token's row is computed.

    Raises:
        InputError: the text has no such token.
    """
    tokens = captured.query_tokens or captured.tokens[-len(captured.queries) :]
    found = query_place(tokens, token, first=captured.position(0))
    if len(captured.keys) > WHOLE:
        return HeadSteps(work_captured(captured.row(found.first)), 0, found)
    return HeadSteps(work_captured(captured), found.first, found)
