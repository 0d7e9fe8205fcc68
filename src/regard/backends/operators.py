"""Backends as operators of PyTorch, torch.ops.regard.<name>: what compilers and torch.export put into their graphs.

    <name>(q, k, v, held, form, ints, floats)                              → output, peak and total of the rows' sums
    <name>_backward(up, up_total, q, k, v, held, output, peak, total, …)   → the gradients that are wanted

Eager calls do not pass through them: a backend calls its operator only where its call is traced. At run time it makes
the problem from its operands (`call_form.py`) and computes it as an eager call would. A program with operators that was
exported can be loaded where `regard.backends` has been imported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.backends.attend import Results, answer
from regard.backends.base import Answer
from regard.backends.call_form import asks_for_gradients, asks_for_sums, read, unwritable, write
from regard.errors import InputError
from regard.problem import Problem
from regard.torch_private import OpOverload

__all__ = ["Operator"]

Known = tuple[Tensor, Tensor, Tensor]

_LIBRARY = torch.library.Library("regard", "DEF")
_CALL = "Tensor q, Tensor k, Tensor v, Tensor[] held, str form, SymInt[] ints, float[] floats"
_KNOWN = "Tensor output, Tensor peak, Tensor total"


@dataclass(frozen=True, eq=False)
class Operator:
    """The operator of one backend.

    Args:
        name: That of the backend.
        results: Computes a problem, differentiably. Where the second argument has the results of an earlier call, only
            their graph is wanted. The third is whether gradients are wanted.
        output_dtype: The type of the output, for queries of a type where gradients are wanted or not.
        keeps_rows: Whether the backward needs the sums of rows; otherwise they are there where the log-sum-exp is
            wanted, and else empty.
    """

    name: str
    results: Callable[[Problem, Results | None, bool], Results]
    output_dtype: Callable[[torch.dtype, bool], torch.dtype]
    keeps_rows: bool = False

    def __post_init__(self) -> None:
        """Define both operators; PyTorch imports its compiler only when something is compiled."""
        _LIBRARY.define(f"{self.name}({_CALL}) -> (Tensor, Tensor, Tensor)")
        back = f"Tensor? up, Tensor? up_total, {_CALL.partition(', Tensor[]')[0]}, Tensor[] held, {_KNOWN}"
        _LIBRARY.define(
            f"{self.name}_backward({back}, str form, SymInt[] ints, float[] floats, bool[] wanted) -> Tensor[]"
        )
        forward, backward = f"regard::{self.name}", f"regard::{self.name}_backward"
        _LIBRARY.impl(self.name, self._forward, "CompositeExplicitAutograd")
        _LIBRARY.impl(f"{self.name}_backward", self._backward, "CompositeExplicitAutograd")
        torch.library.register_fake(forward, self._shapes, lib=_LIBRARY)
        torch.library.register_fake(backward, _shapes_of_gradients, lib=_LIBRARY)
        torch.library.register_autograd(forward, self._differentiate, setup_context=_save, lib=_LIBRARY)
        torch.library.register_vmap(forward, self._map, lib=_LIBRARY)
        torch.library.register_vmap(backward, self._map_backward, lib=_LIBRARY)

    @property
    def op(self) -> OpOverload:
        """The operator, as graphs name it."""
        found: OpOverload = getattr(torch.ops.regard, self.name).default
        return found

    def __call__(self, problem: Problem) -> Answer:
        """Put a call into the graph that is being traced.

        Raises:
            InputError: A value of the call is written in Python.
        """
        if (kind := unwritable(problem)) is not None:
            raise InputError(
                f"the backend {self.name!r} cannot be traced with {kind}, which is written in Python: a graph holds "
                'values of regard alone; take backend="reference", or a mask made of regard.masks'
            )
        form = write(problem)
        q, k, v = problem.q, problem.k, problem.v
        output, peak, total = self.op(q, k, v, form.held, form.text, form.ints, form.floats)
        return answer(problem, (output, peak, total))

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, *form: Any) -> Known:
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            output, peak, total = self.results(read(q, k, v, *form), None, asks_for_gradients(form[1]))
        if peak is None or total is None or not self._has_sums(form[1]):
            peak, total = (output.new_empty(0, dtype=torch.promote_types(q.dtype, torch.float32)) for _ in range(2))
        return output.contiguous(), peak.contiguous(), total.contiguous()  # which share no memory

    def _has_sums(self, text: str) -> bool:
        return self.keeps_rows or asks_for_sums(text)

    def _shapes(self, q: Tensor, k: Tensor, v: Tensor, held: Sequence[Tensor], text: str, *_: Any) -> Known:
        wide = torch.promote_types(q.dtype, torch.float32)
        rows = q.shape[:3]
        output = q.new_empty(*rows, v.shape[-1], dtype=self.output_dtype(q.dtype, asks_for_gradients(text)))
        peak, total = (q.new_empty(rows if self._has_sums(text) else (0,), dtype=wide) for _ in range(2))
        return output, peak, total

    def _differentiate(self, ctx: Any, up: Tensor | None, _: Tensor | None, up_total: Tensor | None) -> tuple[Any, ...]:
        q, k, v, *held, output, peak, total = ctx.saved_tensors
        needs = ctx.needs_input_grad
        wanted = [*needs[:3], *needs[3]]
        backward = getattr(torch.ops.regard, f"{self.name}_backward").default
        found = iter(backward(up, up_total, q, k, v, held, output, peak, total, *ctx.form, wanted))
        dq, dk, dv, *rest = (next(found) if want else None for want in wanted)
        return dq, dk, dv, rest, None, None, None

    def _backward(
        self,
        up: Tensor | None,
        up_total: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        held: Sequence[Tensor],
        *rest: Any,  # output, peak, total, text, ints, floats, wanted
    ) -> list[Tensor]:
        output, peak, total, text, ints, floats, wanted = rest
        known: Results = (output, peak, total) if self._has_sums(text) else (output, None, None)
        with torch.enable_grad(), torch.autocast(q.device.type, enabled=False):
            leaves = [one.detach().requires_grad_(want) for one, want in zip((q, k, v, *held), wanted, strict=True)]
            output, _, total = self.results(
                read(leaves[0], leaves[1], leaves[2], leaves[3:], text, ints, floats), known, True
            )
            pairs = [
                (one, grad)
                for one, grad in ((output, up), (total, up_total))
                if one is not None and grad is not None and one.requires_grad
            ]
            inputs = [one for one in leaves if one.requires_grad]
            grads: Sequence[Tensor | None] = [None] * len(inputs)
            if pairs and inputs:
                outputs, ups = zip(*pairs, strict=True)
                grads = torch.autograd.grad(outputs, inputs, ups, allow_unused=True)
        return [_whole(one, grad) for one, grad in zip(inputs, grads, strict=True)]

    def _map(self, info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        found = [self.op(*member) for member in _members(info, in_dims, given)]
        return tuple(torch.stack(one) for one in zip(*found, strict=True)), (0, 0, 0)

    def _map_backward(self, info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        backward = getattr(torch.ops.regard, f"{self.name}_backward").default
        found = [backward(*member) for member in _members(info, in_dims, given)]
        whole = [torch.stack(one) for one in zip(*found, strict=True)]
        return whole, [0] * len(whole)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Known) -> None:
    q, k, v, held, *ctx.form = inputs
    ctx.save_for_backward(q, k, v, *held, *output)
    ctx.set_materialize_grads(False)


def _shapes_of_gradients(*given: Any) -> list[Tensor]:
    _, _, q, k, v, held, *_, wanted = given
    return [one.new_empty(one.shape) for one, want in zip((q, k, v, *held), wanted, strict=True) if want]


def _whole(one: Tensor, grad: Tensor | None) -> Tensor:
    """A gradient in memory of its own, in the order of its dimensions."""
    return torch.zeros(one.shape, dtype=one.dtype, device=one.device) if grad is None else grad.contiguous()


def _members(info: Any, in_dims: Sequence[Any], given: Sequence[Any]) -> list[list[Any]]:
    """The operands of each member of a batch that torch.func.vmap maps over."""

    def member(x: Any, dim: Any, at: int) -> Any:
        if isinstance(dim, list | tuple):
            return [member(one, d, at) for one, d in zip(x, dim, strict=True)]
        return x if dim is None else x.select(dim, at)

    return [[member(x, dim, at) for x, dim in zip(given, in_dims, strict=True)] for at in range(info.batch_size)]
