"""The backend: what the loops compute, and what not."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, peek_interpreter_stack

from regard.backends import kernel_compilers
from regard.backends.base import Answer, run_eagerly
from regard.backends.blockwise import attend_in_blocks
from regard.backends.log_sums import with_sink
from regard.backends.numba_loops.mask_tables import bytes_of_tables
from regard.backends.plan_cache import covered
from regard.backends.softmax_only import refuses_other_parts
from regard.backends.tensor_memory import are_in_memory
from regard.errors import InputError
from regard.frozen import tensors
from regard.positions import Relative
from regard.problem import Problem
from regard.shapes import human_bytes

if TYPE_CHECKING:
    from regard.backends.numba_loops.choose_loops import Call

__all__ = ["Compiled"]


class Compiled:
    """Softmax of products with any mask, bias, softcap and sink, grouped queries and log-sum-exp, on CPU.

    Sums and softmax are in float32; bfloat16 is multiplied in pairs where the processor can (AVX-512 BF16), with
    weights rounded to it, as PyTorch does. The backward is that of the plain blocks, from float32. The first call on a
    machine compiles for some seconds.
    """

    name = "numba"

    def refuses(self, problem: Problem) -> str | None:
        """What the loops do not compute, and where they cannot be compiled."""
        if problem.q.device.type not in ("cpu", "meta"):  # without any memory it is asked about this machine
            return f"it runs on CPU, and the queries are on {problem.q.device}"
        if problem.q.dtype == torch.float64:
            return "it computes in float32, and the queries are torch.float64"
        return (
            refuses_other_parts(problem)
            or self._refuses_tensors(problem)
            or kernel_compilers.refuses_numba()
            or self._refuses_size(problem)
        )

    def _refuses_tensors(self, problem: Problem) -> str | None:
        if problem.mask is not None and any(is_batchedtensor(one) for one in tensors(problem.mask.mask)):
            return "it cannot plan for a mask that torch.func.vmap maps over"
        held = (problem.q, problem.k, problem.v)
        if torch.compiler.is_compiling() or peek_interpreter_stack() is not None or problem.q.device.type == "meta":
            return None  # the call leaves the graph, and torch.func's tensors are unwrapped; none is only asked about
        return None if are_in_memory(*held) else "it reads memory, and the tensors are traced or carry a tangent"

    def _refuses_size(self, problem: Problem) -> str | None:
        if torch.compiler.is_compiling():
            return None  # planning is not for compilers to follow
        needed = _bias_bytes(problem) + bytes_of_tables(problem)
        if needed > problem.max_bytes:
            return (
                f"the bias and what the mask divides would be tensors of {human_bytes(needed)}, more than the limit "
                f"of {human_bytes(problem.max_bytes)}"
            )
        return None

    def bytes(self, problem: Problem) -> int:
        """Keys, and values in pairs, laid out anew; the bias as a tensor, and what the mask divides."""
        return (problem.k.numel() + problem.v.numel()) * 4 + _bias_bytes(problem) + bytes_of_tables(problem)

    def work(self, problem: Problem) -> float:
        """The pairs of the blocks that the mask leaves; it is chosen by name, so nothing is compared with this yet."""
        return covered(problem).share * problem.batch * problem.heads * problem.queries * problem.keys

    def plain(self, problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """The call with what it tells the loops ready-made, where nothing is learned."""
        if _learns(problem):
            return None
        from regard.backends.numba_loops.choose_loops import Call

        return partial(_output_of, Call(problem))

    @run_eagerly
    def __call__(self, problem: Problem) -> Answer:
        """Compute, whatever autocast would have; of tensors without memory, their shapes."""
        if problem.q.device.type == "meta":
            output = problem.q.new_empty(*problem.q.shape[:3], problem.v.shape[-1])
            return Answer(output, None, problem.q.new_empty(problem.q.shape[:3], dtype=torch.float32))
        if peek_interpreter_stack() is not None or _learns(problem):
            return attend_in_blocks(problem, _attend)
        if not are_in_memory(problem.q, problem.k, problem.v):
            raise InputError("the backend 'numba' reads memory, and cannot be exported: take backend=\"reference\"")
        with torch.autocast("cpu", enabled=False):
            ready = problem.prepared()
            output, lse, low = _attend(ready)
            if problem.sink is not None:
                output, lse = with_sink(output, lse, problem.sink, low)
        return Answer(output, None, lse)


def _output_of(call: "Call", q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return call(q, k, v)[0]


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
    """Output and log-sum-exp, in two numbers, of a prepared problem without its sink."""
    from regard.backends.numba_loops.choose_loops import Call

    return Call(problem)(problem.q, problem.k, problem.v)
