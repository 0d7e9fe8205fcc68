"""The one autograd function: an engine computes rows, and computes their weights again for the gradients."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from regard.backends.base import Answer
from regard.errors import InputError
from regard.normalizers.softmax import Sums
from regard.positions.base import is_by_distance
from regard.positions.evaluated import evaluate
from regard.problem import Problem, held_by, parts_of, with_parts
from regard.values import flatten, unflatten

__all__ = [
    "Engine", "Gradients", "Results", "answer", "as_first_derivatives", "attend", "differentiably", "hollow",
    "with_sink",
]  # fmt: skip

# Output, and peak and total of the sums of its rows (`normalizers.softmax.Sums`), None where nobody wants them.
Results = tuple[Tensor, Tensor | None, Tensor | None]
Gradients = list[Tensor | None]


class Engine(Protocol):
    """What computes calls that are ready (`_ready`), in float32 at least."""

    name: str
    keeps_rows: bool  # whether the backward needs the results of the forward

    def forward(self, call: Problem) -> Results:
        """Compute a call."""

    def backward(
        self, call: Problem, rows: Results | None, up: Tensor, up_total: Tensor | None, wanted: tuple[bool, ...]
    ) -> Gradients:
        """Give the gradients of q, k, v and of what the call's parts hold, as far as they are wanted.

        Args:
            call: The call.
            rows: The results of the forward, where the engine keeps them.
            up: The gradient of the output.
            up_total: That of the totals; None where it is zero.
            wanted: Whose gradients are wanted: q's, k's, v's, and those of `held_by(call)`.
        """


def attend(problem: Problem, engine: Engine, known: Results | None = None) -> Results:
    """Compute a problem, differentiably, in float32 at least; of results that are `known` only the graph is made."""
    with torch.autocast(problem.q.device.type, enabled=False):
        return differentiably(_ready(problem), engine, known)


def differentiably(call: Problem, engine: Engine, known: Results | None = None) -> Results:
    """Compute a call that is ready for its engine; of results that are `known` only the graph is made."""
    results: Results = _Attend.apply(engine, hollow(call), known, call.q, call.k, call.v, *held_by(call))  # type: ignore[no-untyped-call]
    return results


def answer(problem: Problem, results: Results) -> Answer:
    """What a caller gets of them."""
    output, peak, total = results
    lse = None
    if problem.wants_lse and peak is not None and total is not None:
        lse = Sums(peak, total).logarithm
    return Answer(output.to(problem.q.dtype), None, lse)


def _ready(problem: Problem) -> Problem:
    """The problem as engines compute it: in float32 at least, with its score prepared, and relative biases asked for
    once.
    """
    problem = problem.widened().prepared()
    place = problem.queries, problem.keys, problem.q_offset, problem.q.device
    terms = {name: getattr(problem, name) for name in ("bias", "weight_factor")}
    once: dict[str, Any] = {name: evaluate(term, *place) for name, term in terms.items() if is_by_distance(term)}
    problem = replace(problem, **once)
    leaves, form = flatten(parts_of(problem))
    wide = [leaf.to(problem.q.dtype) if leaf.is_floating_point() else leaf for leaf in leaves]
    return with_parts(problem, unflatten(form, wide))


def hollow(problem: Problem) -> Problem:
    """The same without any memory: what autograd keeps by the side must not keep tensors alive, nor their graphs."""
    q, k, v = (x.new_empty(()).expand(x.shape) for x in (problem.q, problem.k, problem.v))
    leaves, form = flatten(parts_of(problem))
    parts = unflatten(form, [leaf.new_empty(()).expand(leaf.shape) for leaf in leaves])
    return with_parts(replace(problem, q=q, k=k, v=v), parts)


def _with_tensors(call: Problem, q: Tensor, k: Tensor, v: Tensor, held: tuple[Tensor, ...] | list[Tensor]) -> Problem:
    """The same call with other tensors."""
    return with_parts(replace(call, q=q, k=k, v=v), unflatten(flatten(parts_of(call))[1], held))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, engine: Engine, call: Problem, known: Results | None, q: Tensor, k: Tensor, v: Tensor, *held: Tensor
    ) -> Results:
        if known is None:
            output, peak, total = engine.forward(_with_tensors(call, q, k, v, held))
        else:
            output, peak, total = known[0].detach(), *(None if x is None else x.detach() for x in known[1:])
        ctx.engine, ctx.call = engine, call
        ctx.save_for_backward(q, k, v, *held, *((output, peak, total) if engine.keeps_rows else ()))
        if peak is not None:
            ctx.mark_non_differentiable(peak)
        ctx.set_materialize_grads(False)
        return output, peak, total

    @staticmethod
    def backward(ctx: Any, up: Tensor | None, _: None, up_total: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: torch.utils.checkpoint gives them once
        rows, inputs = (saved[-3:], saved[:-3]) if ctx.engine.keeps_rows else (None, saved)
        q, k, v, *held = inputs
        with torch.autocast(q.device.type, enabled=False):
            if up is None:
                up = q.new_zeros(*q.shape[:3], v.shape[-1])
            call = _with_tensors(ctx.call, q, k, v, held)
            return None, None, None, *ctx.engine.backward(call, rows, up, up_total, ctx.needs_input_grad[3:])


class _FirstDerivative(torch.autograd.Function):
    """A first derivative as it is; what differentiates it again learns which backend can."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, _: str, *__: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: Any) -> None:
        ctx.words = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise InputError(ctx.words)


def as_first_derivatives(gradients: Sequence[Tensor | None], name: str, *given: Tensor, words: str = "") -> Gradients:
    """Gradients of a backend that raise an InputError where they are differentiated again, also by what they were
    computed of; in these `words`, or in those that name a backend which has second derivatives.
    """
    words = words or (
        f'the backend "{name}", which "auto" takes, has no second derivative: pass backend="strips" or '
        'backend="reference", or run the model under regard.use_backend("strips")'
    )
    return [None if one is None else _FirstDerivative.apply(one, words, *given) for one in gradients]  # type: ignore[no-untyped-call]


def with_sink(
    output: Float[Tensor, "batch heads queries value_dim"], sums: Sums, sink: Float[Tensor, " heads"]
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Sums]:
    """Rows of a softmax, and their sums, where a sink takes its share; a row that sees nothing stays 0."""
    sink = sink.to(sums.total.dtype)[:, None]
    before = torch.where(sums.total == 0, -torch.inf, sums.peak)
    peak = torch.maximum(before, sink.detach())
    peak = peak.masked_fill(peak == -torch.inf, 0.0)
    own = sums.total * (before - peak).exp()
    total = own + (sink - peak).exp()
    share = own / total.masked_fill(total == 0, 1.0)
    return (output.to(total.dtype) * share.unsqueeze(-1)).to(output.dtype), Sums(peak, total)
