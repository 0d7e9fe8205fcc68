"""The backend, with the calls that it supports."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.backends import strips
from regard.backends.attend import Gradients, Results, answer, as_first_derivatives, attend, with_sink
from regard.backends.base import DERIVATIVES, FEATURES, OPERATORS, SOFTMAX_OF_PRODUCTS, Answer, Backend
from regard.backends.call_form import unwritable
from regard.backends.native import choice, library
from regard.backends.native.mask_tables import bytes_of_tables
from regard.backends.operators import Operator
from regard.dropout import Dropout
from regard.normalizers import Softmax
from regard.normalizers.softmax import Sums
from regard.positions.base import is_by_distance
from regard.positions.evaluated import Evaluated
from regard.problem import Problem, held_by
from regard.tensors import are_in_memory, human_bytes, is_traced
from regard.values import tensors

if TYPE_CHECKING:
    from regard.backends.native.calls import Call

__all__ = ["Native"]


class Native(Backend):
    """Softmax or sigmoid of products with any mask, bias, softcap, sink and dropout, grouped queries and log-sum-exp.

    Sums and softmax are in float32. bfloat16 is multiplied in pairs if the processor supports it (AVX-512 BF16), with
    weights rounded to bfloat16 as in PyTorch. The backward pass is in float32; where a bias learns that does not depend
    on the distance alone, it is that of the strips. There is no second derivative.
    """

    name = "native"

    lacks = (
        DERIVATIVES
        | OPERATORS
        | {
            "torch.func": "it does not run inside torch.func",
            "device with memory but cpu": "it runs on CPU, and the queries are on {}",  # "meta" asks about this machine
            "float64": "it computes in float32, and the queries are torch.float64",
        }
        | {part: sentence for part, sentence in SOFTMAX_OF_PRODUCTS.items() if part not in ("dropout", "normalizer")}
        | {"normalizer of whole rows": "it has no {}, only softmax and sigmoid"}
        | {"mapped mask": "it cannot plan for a mask that torch.func.vmap maps over"}
    )

    not_for = "device but cpu", "autocast"  # by name alone

    def suits(self, problem: Problem) -> bool:
        """Whether there are kernels, and they were measured to be faster."""
        # Sizes first, as every call comes here; but a length that a compiler compares makes a guard.
        if not torch.compiler.is_compiling() and problem.keys < choice.LEAST_KEYS:
            return False
        if any(FEATURES[what](problem) for what in self.not_for):
            return False
        return library.refuses() is None and choice.takes(problem)

    def limits(self, problem: Problem) -> str | None:
        """What cannot be read, and where there are no kernels."""
        return self._refuses_tensors(problem) or library.refuses() or self._refuses_size(problem)

    def _refuses_tensors(self, problem: Problem) -> str | None:
        held = (problem.q, problem.k, problem.v)
        if torch.compiler.is_compiling() or problem.q.device.type == "meta":
            return None  # the call leaves the graph; none is only asked about
        return None if are_in_memory(*held) else "it reads memory, and the tensors are traced or carry a tangent"

    def _refuses_size(self, problem: Problem) -> str | None:
        if torch.compiler.is_compiling():
            return None  # compilers must not trace the planning
        needed = _bias_bytes(problem) + bytes_of_tables(problem)
        if needed > problem.max_bytes:
            return (
                f"the bias and what the mask divides would be tensors of {human_bytes(needed)}, more than the limit "
                f"of {human_bytes(problem.max_bytes)}"
            )
        return None

    def bytes(self, problem: Problem) -> int:
        """Return the bytes of the packed keys (and of values in pairs), of the bias as a tensor, and of the mask's
        tables.
        """
        return (problem.k.numel() + problem.v.numel()) * 4 + _bias_bytes(problem) + bytes_of_tables(problem)

    def cost(self, problem: Problem) -> float:
        """Where it suits, nothing was measured to be faster."""
        return 0.0

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """Return the call with its arguments for the kernels prepared, if nothing is learned or added, else None."""
        if _learns(problem) or problem.bias is not None:
            return None
        from regard.backends.native.calls import Call

        if problem.dropout is not None:
            return partial(_dropped, Call(problem), problem.dropout.p)
        return partial(_output_of, Call(problem))

    def leaves_graph(self, problem: Problem) -> bool:
        """Whether a value of the call is written in Python."""
        return unwritable(problem) is not None

    def __call__(self, problem: Problem) -> Answer:
        """Compute the call, ignoring autocast."""
        return OPERATOR(problem) if is_traced(problem.q) else _computed(problem)


def _computed(problem: Problem) -> Answer:
    return answer(problem, _results(problem, None, _learns(problem)))


def _results(problem: Problem, known: Results | None, learned: bool) -> Results:
    if learned:
        return attend(problem, ENGINE, known)
    with torch.autocast("cpu", enabled=False):
        output, peak, total = _attend(problem.prepared())
    return output.to(problem.q.dtype), peak, total


class _Engine:
    name, keeps_rows = "native", True

    def forward(self, call: Problem) -> Results:
        return _attend(call)

    def backward(
        self, call: Problem, rows: Results | None, up: Tensor, up_total: Tensor | None, wanted: tuple[bool, ...]
    ) -> Gradients:
        assert rows is not None
        with torch.no_grad():
            found = self._gradients(call, rows, up, up_total, wanted)
        if not torch.is_grad_enabled():
            return found
        given = (call.q, call.k, call.v, *held_by(call), up, *([] if up_total is None else [up_total]))
        return as_first_derivatives(found, self.name, *given)

    def _gradients(
        self, call: Problem, rows: Results, up: Tensor, up_total: Tensor | None, wanted: tuple[bool, ...]
    ) -> Gradients:
        held, along = held_by(call), call.bias.values if isinstance(call.bias, Evaluated) else None
        if any(want and one is not call.sink and one is not along for one, want in zip(held, wanted[3:], strict=True)):
            return strips.ENGINE.backward(call, None, up, up_total, wanted)
        from regard.backends.native.calls import gradients

        output, peak, total = rows
        delta = torch.linalg.vecdot(up, output)
        if peak is not None and total is not None and isinstance(call.normalizer, Softmax):
            # Weights are exp(s − peak) / total, and what is linear in them takes the total once a row.
            delta = delta if up_total is None else delta - up_total * total
            whole = total.masked_fill(total == 0, 1.0)
            up, delta = up / whole.unsqueeze(-1), delta / whole
        assert peak is not None
        wants = {id(one) for one, want in zip(held, wanted[3:], strict=True) if want}
        dq, dk, dv, of_bias = gradients(call, up, peak, delta, of_bias=along is not None and id(along) in wants)
        found = {id(along): of_bias} if along is not None else {}
        if call.sink is not None:
            found[id(call.sink)] = -((call.sink[:, None] - peak).exp() * delta).sum((0, 2))
        return [
            dq,
            dk,
            dv,
            *(found.pop(id(one), None) if want else None for one, want in zip(held, wanted[3:], strict=True)),
        ]


ENGINE = _Engine()
OPERATOR = Operator(
    "native", _results, output_dtype=lambda dtype, learned: torch.float32 if learned else dtype, keeps_rows=True
)


def _output_of(call: "Call", q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return call.output(q, k, v)


def _dropped(call: "Call", p: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    dropout = Dropout.of(p, None, q.device)
    assert dropout is not None
    return call.output(q, k, v, seed=int(dropout.seed))


def _learns(problem: Problem) -> bool:
    parts = (problem.q, problem.k, problem.v, problem.score, problem.bias, problem.normalizer)
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors(parts))


def _bias_bytes(problem: Problem) -> int:
    if problem.bias is None:
        return 0
    batch, heads = problem.bias.leading
    if is_by_distance(problem.bias):
        return heads * (problem.queries + problem.keys) * 4
    return batch * heads * problem.queries * problem.keys * 4


def _attend(problem: Problem) -> Results:
    """Return output, peaks and totals of a prepared problem."""
    from regard.backends.native.calls import Call

    output, peak, total = Call(problem)(problem.q, problem.k, problem.v)
    if problem.sink is None:
        return output, peak, total
    output, sums = with_sink(output, Sums(peak, total), problem.sink)
    return output, sums.peak, sums.total
