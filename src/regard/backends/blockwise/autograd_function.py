"""The autograd function: visits the pieces forward, and again backward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.backends.base import are_rounded, merge
from regard.backends.blockwise.bias_tiles import Diagonals
from regard.backends.blockwise.block_layout import Sheet, zeros_to_add_to
from regard.backends.blockwise.fused_tiles import Fused
from regard.backends.blockwise.unfused import General
from regard.errors import InputError
from regard.problem import Problem, held_by, parts_of, with_parts
from regard.tensors import are_in_memory
from regard.torch_private import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor, peek_interpreter_stack
from regard.values import flatten, unflatten

__all__ = ["Attend", "BlockedProblem", "Passes", "gradients_of"]


class Passes(NamedTuple):
    """What computes a problem instead of the sheets: output, log-sum-exp and what rounding took from it, without sink;
    and the gradients of q, k and v, of `up`, log-sum-exp and `delta` (see `General.backward`), which adds `Diagonals`'.

    The plain backward runs instead where another bias or a score learns, and for second derivatives.
    """

    forward: Callable[[Problem], tuple[Tensor, Tensor, Tensor]]
    backward: Callable[[Problem, Tensor, Tensor, Tensor, "Gradients"], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class BlockedProblem:
    """A prepared problem, and the layout in which it is computed."""

    problem: Problem
    sheets: tuple[Sheet, ...]
    fused: bool  # forward
    fused_back: bool
    passes: Passes | None = None
    known: tuple[Tensor, Tensor, Tensor] | None = None  # the results, where only their graph is wanted

    def over(self, *new: Tensor) -> "BlockedProblem":
        """The same with other tensors: q, k, v and what score, bias, normalizer and factor hold."""
        q, k, v, *held = new
        parts = unflatten(flatten(parts_of(self.problem))[1], held)
        problem = with_parts(replace(self.problem, q=q, k=k, v=v), parts)
        return replace(self, problem=problem, sheets=tuple(replace(one, problem=problem) for one in self.sheets))


class Gradients:
    """The gradients of some tensors, begun with zeros and added to tile by tile."""

    def __init__(self, held: Sequence[Tensor], wanted: Sequence[bool]) -> None:
        self._sums = {id(one): torch.zeros_like(one) for one, want in zip(held, wanted, strict=True) if want}
        self._held = held  # keeps the ids alive

    def wants(self, one: Tensor) -> bool:
        """Whether anyone asks for the gradient of a tensor."""
        return id(one) in self._sums

    def of(self, one: Tensor) -> Tensor:
        """The sum so far, to be added to."""
        return self._sums[id(one)]

    def add(self, held: Sequence[Tensor], shares: Sequence[Tensor | None]) -> None:
        """Add a tile's shares to those that are asked for."""
        for one, share in zip(held, shares, strict=True):
            if share is not None and self.wants(one):
                self.of(one).add_(share)

    def all(self) -> list[Tensor | None]:
        """All gradients in order, None where nobody asked; a tensor that is there twice gets its gradient once."""
        sums = dict(self._sums)
        return [sums.pop(id(one), None) for one in self._held]


class Attend(torch.autograd.Function):
    """Output and log-sum-exp, and what rounding took from it; the weights are computed again in the backward."""

    @staticmethod
    def forward(  # noqa: D102
        blocks: BlockedProblem, q: Tensor, k: Tensor, v: Tensor, *held: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        blocks = blocks.over(q, k, v, *held)
        problem = blocks.problem
        if blocks.known is not None:
            output, lse, low = (one.detach() for one in blocks.known)
            return output, lse, low
        if blocks.passes is not None:
            output, lse, low = blocks.passes.forward(problem)
        elif len(blocks.sheets) == 1:
            output, lse, low = (blocks.sheets[0].unfold_queries(x) for x in _forward(blocks.sheets[0], blocks.fused))
        else:
            output, lse, low = (q.new_empty(*q.shape[:3], *rest) for rest in ((v.shape[-1],), (), ()))
            for sheet in blocks.sheets:
                for whole, part in zip((output, lse, low), _forward(sheet, blocks.fused), strict=True):
                    whole[sheet.batch, sheet.heads] = sheet.unfold_queries(part)
        if problem.sink is not None:
            # The sink takes its share of the row: weights shrink by exp(lse) / (exp(lse) + exp(sink)).
            sink = problem.sink.to(lse.dtype)[:, None]
            (lse, low), (share, _) = merge(lse, low, sink, torch.zeros_like(sink))
            output.mul_(share.unsqueeze(-1))
        return output, lse, low

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], blocks: BlockedProblem, *given: Tensor) -> tuple[Any, Any]:
        """One call for each member: masks and biases of a batch keep their meaning."""
        return _each(Attend, info.batch_size, (blocks,), given, in_dims[1:])

    @staticmethod
    def setup_context(  # noqa: D102
        ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        blocks, *given = inputs
        ctx.blocks = blocks
        ctx.save_for_backward(*given, *outputs)
        ctx.mark_non_differentiable(outputs[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(  # noqa: D102
        ctx: Any, up: Tensor | None, up_lse: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: torch.utils.checkpoint gives them once
        with torch.autocast(saved[0].device.type, enabled=False):
            wanted = ctx.needs_input_grad[4:]
            if any(one is not None and _is_mapped(one) for one in (up, up_lse, *saved)):
                gradients = _Mapped.apply(ctx.blocks, wanted, up, up_lse, *saved)  # type: ignore[no-untyped-call]
            else:
                gradients = gradients_of(ctx.blocks, saved, wanted, up, up_lse)
        return None, *gradients

    @staticmethod
    def jvp(*_: Any) -> Any:  # noqa: D102
        raise InputError('blockwise has no forward-mode derivative (jvp, jacfwd, hessian): pass backend="reference"')


def _each(
    function: Any, size: int, fixed: tuple[Any, ...], given: Sequence[Any], dims: Sequence[Any]
) -> tuple[Any, Any]:
    """The results for each member of a batch that torch.func.vmap maps over, one above the other."""
    members = (
        function.apply(*fixed, *(x if dim is None else x.select(dim, at) for x, dim in zip(given, dims, strict=True)))
        for at in range(size)
    )
    whole = tuple(torch.stack(one) for one in zip(*members, strict=True))
    return whole, (0,) * len(whole)


def _is_mapped(x: Tensor) -> bool:
    """Whether torch.func.vmap maps over a tensor, inside other transforms too."""
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return True
        x = get_unwrapped(x)
    return False


class _Mapped(torch.autograd.Function):
    """The gradients of calls that torch.func.vmap maps over, one call for each member."""

    @staticmethod
    def forward(blocks: BlockedProblem, wanted: tuple[bool, ...], *given: Tensor | None) -> tuple[Tensor, ...]:
        up, up_lse, *saved = given
        found = gradients_of(blocks, tuple(saved), wanted, up, up_lse)  # type: ignore[arg-type]
        return tuple(
            torch.zeros_like(held) if one is None else one  # type: ignore[arg-type]
            for one, held in zip(found, saved, strict=False)
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], blocks: BlockedProblem, wanted: tuple[bool, ...], *given: Tensor | None
    ) -> tuple[Any, Any]:
        return _each(_Mapped, info.batch_size, (blocks, wanted), given, in_dims[2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(*_: Any) -> Any:
        raise InputError('blockwise has no second derivative under torch.func.vmap: pass backend="reference"')

    @staticmethod
    def jvp(*_: Any) -> Any:
        raise InputError('blockwise has no forward-mode derivative (jvp, jacfwd, hessian): pass backend="reference"')


def gradients_of(
    hollow: BlockedProblem,
    saved: tuple[Tensor, ...],
    wanted: tuple[bool, ...],
    up: Tensor | None,
    up_lse: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Those of q, k, v and what the parts hold."""
    q, k, v, *held, output, lse, low = saved
    blocks = hollow.over(q, k, v, *held)
    up = torch.zeros_like(output) if up is None else up
    delta = torch.linalg.vecdot(up, output)
    if up_lse is not None:
        delta = delta - up_lse
    into = Gradients(held, wanted)
    # The fused kernel's backward has no derivative. (torch.func asks for one always, wanted or not.)
    twice = torch.is_grad_enabled() and peek_interpreter_stack() is None
    passes = blocks.passes if not twice and _are_for_passes(blocks.problem, into, up, *saved) else None
    fused = passes is None and blocks.fused_back and not twice and up_lse is None and not are_rounded(lse)
    if not fused:
        # Weights are exp(s − lse − low); what is linear in them may take exp(−low) once a row rather than once a pair.
        rest = low.neg().exp_()
        up, delta = up * rest.unsqueeze(-1), delta * rest
    if passes is not None:
        dq, dk, dv = passes.backward(blocks.problem, up, lse, delta, into)
    elif len(blocks.sheets) == 1:
        sheet = blocks.sheets[0]
        parts = _backward(sheet, fused, sheet.fold_backward(up, output, lse, delta), into)
        dq, dk, dv = sheet.unfold_queries(parts[0]), sheet.unfold_keys(parts[1]), sheet.unfold_keys(parts[2])
    else:
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for sheet in blocks.sheets:
            parts = _backward(sheet, fused, sheet.fold_backward(up, output, lse, delta), into)
            dq[sheet.batch, sheet.heads] = sheet.unfold_queries(parts[0])
            dk[sheet.batch, sheet.kv] += sheet.unfold_keys(parts[1])
            dv[sheet.batch, sheet.kv] += sheet.unfold_keys(parts[2])
    sink = blocks.problem.sink
    if sink is not None and into.wants(sink):
        share = (sink.to(lse.dtype)[:, None] - lse).exp()
        into.of(sink).sub_((share * delta).sum((0, 2)).to(sink.dtype))
    return dq, dk, dv, *into.all()


def _are_for_passes(problem: Problem, into: Gradients, *given: Tensor) -> bool:
    """Whether only q, k, v, the sink and a bias of i − j are to get gradients, and tensors can be read in memory."""
    along = problem.bias.values if isinstance(problem.bias, Diagonals) else None
    learned = any(into.wants(one) for one in held_by(problem) if one is not problem.sink and one is not along)
    return not learned and are_in_memory(*given) and not any(map(is_functorch_wrapped_tensor, given))


def _folded(sheet: Sheet) -> tuple[Tensor, Tensor, Tensor]:
    problem = sheet.problem
    return sheet.fold_queries(problem.q), sheet.fold_keys(problem.k), sheet.fold_keys(problem.v)


def _forward(sheet: Sheet, fused: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, and what rounding took from it."""
    found = _visited(sheet, Fused(sheet) if fused else General(sheet))
    # The fused kernel gives a log-sum-exp in one number. Where that does not do, which lse shows at the cost of a look
    # at each row, the pieces are written out instead.
    return _visited(sheet, General(sheet)) if fused and are_rounded(found[1]) else found


def _visited(sheet: Sheet, engine: Fused | General) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = _folded(sheet)
    output = q.new_empty(*q.shape[:3], v.shape[-1])
    lse, low = q.new_full(q.shape[:3], -torch.inf), q.new_zeros(q.shape[:3])
    touched = torch.zeros(1, q.shape[1], dtype=torch.bool, device="cpu")
    for piece in sheet.chunks(engine.elements, columns=engine.columns):
        here = piece.rows_of(q), piece.keys_of(k, sheet.block), piece.keys_of(v, sheet.block)
        part, sums = engine.forward(piece, *here)
        before = piece.rows_of(touched)
        if bool(before.any()):
            if not bool(before.all()):
                output[:, ~touched[0]] = 0.0  # memory that nobody has written may hold what times 0 is NaN
            if sums is None:
                part += piece.rows_of(output)
            else:
                # Rows that have seen nothing yet hold zeros, and have no share.
                sums, shares = merge(*sums, piece.rows_of(lse), piece.rows_of(low))
                share, before_share = (one.unsqueeze(-1) for one in shares)
                part = torch.addcmul(part * share, piece.rows_of(output), before_share)
        piece.set_rows(touched, torch.tensor(True, device="cpu"))
        piece.set_rows(output, part)
        if sums is not None:
            piece.set_rows(lse, sums[0])
            piece.set_rows(low, sums[1])
    output[:, ~touched[0]] = 0.0
    return output, lse, low


def _backward(sheet: Sheet, fused: bool, folded: tuple[Tensor, ...], into: Gradients) -> tuple[Tensor, Tensor, Tensor]:
    up, output, lse, delta = folded
    engine = Fused(sheet) if fused else General(sheet)
    q, k, v = _folded(sheet)
    dq, dk, dv = zeros_to_add_to(q), zeros_to_add_to(k), zeros_to_add_to(v)
    lse = lse.masked_fill(lse == -torch.inf, 0.0)  # where nothing is seen, exp(−inf − 0) is 0
    for piece in sheet.chunks(engine.elements, columns=engine.columns):
        here = piece.rows_of(q), piece.keys_of(k, sheet.block), piece.keys_of(v, sheet.block)
        rows = piece.rows_of(up), piece.rows_of(lse)
        if isinstance(engine, Fused):
            parts = engine.backward(piece, *here, rows[0], piece.rows_of(output), rows[1])
        else:
            parts = engine.backward(piece, *here, *rows, piece.rows_of(delta), into)
        piece.add_rows(dq, parts[0])
        piece.add_keys(dk, parts[1])
        piece.add_keys(dv, parts[2])
    return dq, dk, dv
