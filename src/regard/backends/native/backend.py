"""The backend, with the calls that it supports."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.backends.base import DERIVATIVES, FEATURES, SOFTMAX_OF_PRODUCTS, Answer, Backend, with_sink
from regard.backends.blockwise import Passes, results_in_blocks
from regard.backends.blockwise.autograd_function import Gradients
from regard.backends.blockwise.bias_tiles import Diagonals
from regard.backends.call_form import unwritable
from regard.backends.native import choice, library
from regard.backends.native.mask_tables import bytes_of_tables
from regard.backends.operators import Known, Operator
from regard.dropout import Dropout
from regard.positions import Relative
from regard.problem import Problem
from regard.tensors import are_in_memory, human_bytes, is_traced
from regard.torch_private import peek_interpreter_stack
from regard.values import tensors

if TYPE_CHECKING:
    from regard.backends.native.calls import Call

__all__ = ["Native"]


class Native(Backend):
    """Softmax or sigmoid of products with any mask, bias, softcap, sink and dropout, grouped queries and log-sum-exp.

    Sums and softmax are in float32. bfloat16 is multiplied in pairs if the processor supports it (AVX-512 BF16), with
    weights rounded to bfloat16 as in PyTorch. The backward pass is in float32; where a bias learns that does not depend
    on the distance alone, or gradients have derivatives, it is that of the plain blocks.
    """

    name = "native"

    lacks = (
        DERIVATIVES
        | {
            "device with memory but cpu": "it runs on CPU, and the queries are on {}",  # "meta" asks about this machine
            "float64": "it computes in float32, and the queries are torch.float64",
        }
        | {part: sentence for part, sentence in SOFTMAX_OF_PRODUCTS.items() if part not in ("dropout", "normalizer")}
        | {"normalizer of whole rows": "it has no {}, only softmax and sigmoid"}
        | {"mapped mask": "it cannot plan for a mask that torch.func.vmap maps over"}
    )

    not_for = "device but cpu", "torch.func", "autocast"  # by name alone

    def suits(self, problem: Problem) -> bool:
        """Whether there are kernels, and they were measured to be faster."""
        if problem.keys < choice.LEAST_KEYS or any(FEATURES[what](problem) for what in self.not_for):
            return False
        return library.refuses() is None and choice.takes(problem)

    def limits(self, problem: Problem) -> str | None:
        """What cannot be read, and where there are no kernels."""
        return self._refuses_tensors(problem) or library.refuses() or self._refuses_size(problem)

    def _refuses_tensors(self, problem: Problem) -> str | None:
        held = (problem.q, problem.k, problem.v)
        if torch.compiler.is_compiling() or peek_interpreter_stack() is not None or problem.q.device.type == "meta":
            return None  # the call leaves the graph, and torch.func's tensors are unwrapped; none is only asked about
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
    learned = peek_interpreter_stack() is not None or _learns(problem)
    output, lse, _ = _results(problem, None, learned)
    return Answer(output.to(problem.q.dtype), None, lse)


def _results(problem: Problem, known: Known | None, learned: bool) -> Known:
    if learned:
        return results_in_blocks(problem, Passes(_attend, _gradients), known)
    with torch.autocast("cpu", enabled=False):
        output, lse, low = _attend(problem.prepared())
        if problem.sink is not None:
            output, lse = with_sink(output, lse, problem.sink, low)
    return output.to(problem.q.dtype), lse, low


OPERATOR = Operator(
    "native", _results, output_dtype=lambda dtype, learned: torch.float32 if learned else dtype, has_low=True
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
    if isinstance(problem.bias, Relative):
        return heads * (problem.queries + problem.keys) * 4
    return batch * heads * problem.queries * problem.keys * 4


def _attend(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Return output and log-sum-exp, as two numbers, of a prepared problem without its sink."""
    from regard.backends.native.calls import Call

    return Call(problem)(problem.q, problem.k, problem.v)


def _gradients(
    problem: Problem, up: Tensor, lse: Tensor, delta: Tensor, into: Gradients
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v of a prepared problem, and add that of a bias of i − j where it is wanted."""
    from regard.backends.native.calls import gradients

    along = problem.bias.values if isinstance(problem.bias, Diagonals) else None
    along = along if along is not None and into.wants(along) else None
    dq, dk, dv, of_bias = gradients(problem, up, lse, delta, of_bias=along is not None)
    if along is not None and of_bias is not None:
        into.of(along).add_(of_bias)
    return dq, dk, dv
